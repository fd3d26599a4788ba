"""What is in a model store, found in a thread that nobody waits for."""

from __future__ import annotations

import logging
import math
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from helpers.reporting import Machine, until
from standins.nvml import StandinGpu

from jupyter_gpufit.models import StoredModel, decode, encode
from jupyter_gpufit.reporting import model_store
from jupyter_gpufit.reporting.model_store import MOST_MODELS, ModelStore, is_model_name
from jupyter_gpufit.reporting.source import LocalSource, SimulatedSource

THEN = 1_700_000_000.0


def write(path: Path, size: int, modified: float = THEN) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    os.utime(path, (modified, modified))
    return path


def look(store: ModelStore) -> tuple[StoredModel, ...] | None:
    """What a look that begins now finds."""
    store._due = -math.inf
    store.models()
    if (thread := store._thread) is not None:
        thread.join(60)
    return store._found


def found(directory: Path, **options: Any) -> dict[str, tuple[int | None, float | None]]:
    models = look(ModelStore(directory, **options))
    assert models is not None
    assert [model.name for model in models] == sorted(model.name for model in models)
    return {model.name: (model.size, model.modified) for model in models}


def test_files_and_directories_with_size_and_newest_moment(tmp_path: Path) -> None:
    write(tmp_path / "bert.gguf", 10)
    write(tmp_path / "llama-7b" / "weights" / "1.safetensors", 1000)
    write(tmp_path / "llama-7b" / "weights" / "2.safetensors", 500, THEN + 60)
    write(tmp_path / "llama-7b" / "config.json", 3)
    write(tmp_path / ".cache" / "x", 7)
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "empty").mkdir()
    os.utime(tmp_path / "empty", (THEN, THEN))
    assert found(tmp_path) == {"bert.gguf": (10, THEN), "empty": (0, THEN), "llama-7b": (1503, THEN + 60)}


def test_links(tmp_path: Path) -> None:
    """A container has the store alone: what a link leads to has to be in it."""
    store, outside = tmp_path / "store", tmp_path / "outside"
    write(outside / "big", 5000)
    write(store / "llama-2" / "blobs" / "1", 100)
    (store / "llama-2" / "snapshot").symlink_to("blobs/1")  # as Hugging Face has it: counted once
    (store / "llama-2" / "up").symlink_to("..")  # and round in circles
    (store / "llama-2" / "elsewhere").symlink_to(outside)
    os.link(store / "llama-2" / "blobs" / "1", store / "llama-2" / "blobs" / "2")
    (store / "latest").symlink_to("llama-2")
    (store / "out").symlink_to(outside)
    (store / "nowhere").symlink_to("nothing")
    (store / "all").symlink_to(".")
    sizes = {name: size for name, (size, _) in found(store).items()}
    assert sizes.keys() == {"latest", "llama-2"}
    assert sizes["latest"] == sizes["llama-2"]
    links = sum(os.lstat(store / "llama-2" / name).st_size for name in ("snapshot", "up", "elsewhere"))
    assert sizes["llama-2"] in (100, 100 + links)
    (tmp_path / "linked").symlink_to(store)
    assert found(tmp_path / "linked").keys() == sizes.keys()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_cannot_be_read_is_of_unknown_size(tmp_path: Path) -> None:
    write(tmp_path / "private" / "deep" / "x", 10)
    (tmp_path / "private" / "deep").chmod(0)
    try:
        assert found(tmp_path) == {"private": (None, None)}
    finally:
        (tmp_path / "private" / "deep").chmod(0o700)


def test_an_error_of_the_file_system_is_of_that_model_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bad", "good"):
        write(tmp_path / name / "x", 10)
    scandir = os.scandir

    def broken(path: str) -> Any:
        if str(path).endswith("bad"):
            raise OSError(5, "Input/output error")
        return scandir(path)

    monkeypatch.setattr(model_store.os, "scandir", broken)
    assert found(tmp_path) == {"bad": (None, None), "good": (10, THEN)}


@pytest.mark.parametrize("name", ["plain", "with space", "Qwen2.5-7B", "模型", "a" * 255])
def test_names_that_can_be_asked_for(name: str) -> None:
    assert is_model_name(name)


@pytest.mark.parametrize(
    "name", ["", ".hidden", "..", "a/b", "a\nb", "\x1b[31m", "\u202egnp", "\udcff", " a", "a" * 256, "模" * 86, "a\0"]
)
def test_names_that_cannot(name: str) -> None:
    assert not is_model_name(name)


def test_odd_names_on_the_disk_are_passed_over(tmp_path: Path) -> None:
    for name in (b"good", b"\xff\xfe", b"two\nlines", b"\x1b[31m"):
        with open(os.path.join(os.fsencode(tmp_path), name), "wb"):
            pass
    models = look(ModelStore(tmp_path))
    assert [model.name for model in models or ()] == ["good"]
    assert decode(encode(models[0]), StoredModel) == models[0]


def test_a_store_that_is_not_there_is_empty_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    store = ModelStore(tmp_path / "later")
    assert look(store) == ()
    assert look(store) == ()
    (message,) = caplog.messages
    assert str(tmp_path / "later") in message
    write(tmp_path / "later" / "bert", 10)
    assert look(store) == (StoredModel(name="bert", size=10, modified=THEN),)
    write(tmp_path / "file", 1)
    assert look(ModelStore(tmp_path / "file")) == ()


def test_moments_that_no_table_has_are_unknown(tmp_path: Path) -> None:
    write(tmp_path / "before", 1, -5.0)
    write(tmp_path / "late", 1, 9_500_000_000.0)
    assert found(tmp_path) == {"before": (1, None), "late": (1, None)}


def test_more_than_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_store, "MOST_MODELS", 3)
    for name in "fbdace":
        write(tmp_path / name, 1)
    assert list(found(tmp_path)) == ["a", "b", "c"]
    assert MOST_MODELS == 1000


def test_what_takes_too_long_is_of_unknown_size(tmp_path: Path) -> None:
    write(tmp_path / "a" / "x", 1)
    assert found(tmp_path, longest_count=0.0) == {"a": (None, None)}
    assert found(tmp_path, longest_scan=0.0) == {"a": (None, None)}


def test_where_time_is_short_each_has_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        write(tmp_path / name, 1)
    now = 0.0

    def count(path: Path, over: Any) -> StoredModel:
        nonlocal now
        now += 20.0
        return StoredModel(name=path.name, size=int(now))

    monkeypatch.setattr(model_store, "_count", count)
    store = ModelStore(tmp_path, longest_scan=30.0, clock=lambda: now)
    assert [model.size for model in look(store) or ()] == [20, 40, None]
    assert [model.size for model in look(store) or ()] == [80, 40, 60]
    assert store._due >= now + 10 * 40, "what takes long is done seldom"


async def test_the_last_result_is_there_at_once_whatever_the_file_system_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "bert", 10)
    source = SimulatedSource("n1", "1xT4-16GB", models=tmp_path)
    store = source._store
    assert store is not None
    looks, go_on = [], threading.Event()
    names = model_store._names

    def hanging(directory: Path) -> list[str]:
        looks.append(threading.current_thread())
        go_on.wait(60)
        return names(directory)

    monkeypatch.setattr(model_store, "_names", hanging)
    try:
        for _ in range(5):
            assert (await source.fetch(1.0)).models is None, "not known yet"
    finally:
        go_on.set()
    (thread,) = looks
    assert thread.daemon, "a process does not wait for it to end"
    thread.join(60)
    go_on.clear()
    bert = StoredModel(name="bert", size=10, modified=THEN)
    assert (await source.fetch(1.0)).models == (bert,)
    store._due = -math.inf
    write(tmp_path / "llama", 5)
    assert (await source.fetch(1.0)).models == (bert,), "the old result until the new one is there"
    await source.close()
    go_on.set()
    looks[-1].join(60)
    assert len(looks) == 2
    store._due = -math.inf
    assert look(store) is not None
    assert len(looks) == 2, "it is closed"


async def test_a_look_that_fails_is_not_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ModelStore(tmp_path)
    monkeypatch.setattr(model_store, "_names", lambda directory: 1 / 0)
    assert look(store) is None
    monkeypatch.undo()
    assert look(store) == ()


def test_without_a_thread_it_looks_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    store = ModelStore(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        assert look(store) is None
    assert look(store) == ()


async def test_with_the_report_of_this_machine(machine: Machine, tmp_path: Path) -> None:
    machine.has(StandinGpu("GPU-a"))
    write(tmp_path / "store" / "bert", 10)
    source = LocalSource(models=tmp_path / "store")
    try:
        reports = [await source.fetch(60.0)]
        await until(lambda: source._store is not None and source._store._found, "it has looked")
        reports.append(await source.fetch(60.0))
    finally:
        await source.close()
    assert reports[-1].models == (StoredModel(name="bert", size=10, modified=THEN),)
    assert [gpu.uuid for gpu in reports[-1].gpus] == ["GPU-a"]
    without = LocalSource()
    assert (await without.fetch(60.0)).models is None
    await without.close()
