"""The doctor's look at a report: what it says of the models. (The rest is tested on engines, with the whole doctor.)"""

from __future__ import annotations

from helpers.bad_reporters import Serve, answering, http

from jupyter_gpufit.cluster.examine import examine_reporter
from jupyter_gpufit.inventory import NodeSpec
from jupyter_gpufit.models import Gpu, Report, StoredModel, encode


async def examined(serve: Serve, models: tuple[StoredModel, ...] | None, store: str | None) -> tuple[str, str, str]:
    report = Report(gpus=(Gpu(uuid="GPU-1", index=0, memory_total=4, memory_free=3),), models=models)
    url = await serve(answering(http(encode(report))))
    checks, believed = await examine_reporter(NodeSpec(name="n1", report=url, models=store, timeout=10.0))
    assert believed is not None, "the rest of the doctor goes on with it"
    [_, found] = checks
    return found.verdict, found.message, found.fix


async def test_models_are_counted(serve: Serve) -> None:
    verdict, message, _ = await examined(serve, (StoredModel(name="bert"),), "/srv/models")
    assert (verdict, message.rpartition(", ")[0]) == ("right", "1 GPU, 1 model")
    assert "0 models" in (await examined(serve, (), "/srv/models"))[1]


async def test_a_reporter_that_was_not_told_of_the_store(serve: Serve) -> None:
    verdict, message, fix = await examined(serve, None, "/srv/models")
    assert (verdict, message) == ("wrong", "it does not tell which models are in /srv/models, or cannot read it")
    assert "--models /srv/models" in fix
    assert (await examined(serve, None, None))[0] == "right"
