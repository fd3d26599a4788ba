"""The real service in a real server, on simulated GPUs and plain processes: what REST and events promise."""

from __future__ import annotations

import asyncio
from pathlib import Path

from helpers.frontend import FrontEnd, eventually
from helpers.jupyterserver import server_here, server_process

VISIBLE = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"


async def idle_gpus(front: FrontEnd) -> int:
    nodes = (await front.gpufit("GET", "nodes", expect=200)).json["nodes"]
    return sum(gpu["idle"] for one in nodes for gpu in one["gpus"])


async def ready(front: FrontEnd, gpus: int = 6) -> None:
    """Wait until the nodes have reported that many idle GPUs."""

    async def enough() -> bool:
        return await idle_gpus(front) == gpus

    await eventually(enough)


async def test_request_attach_release(tmp_path: Path, simulated: Path) -> None:
    config = {"GpufitExtension": {"inventory": str(simulated)}}
    async with server_here(tmp_path, config, extension=True) as here, here.front() as front, front.events() as events:
        await ready(front)
        notebook = await front.open()
        await notebook.run("x = 41")
        local = notebook.kernel_id
        made = await front.request(gpus=2, memory="20GiB", name="train")
        assert (made["state"], made["node"]) == ("running", "large"), made
        assert made["kernel_id"] in await front.kernels()
        answer = await front.gpufit("POST", "allocations/train/attach", {"path": "a.ipynb"}, expect=202)
        assert answer.json["allocation"] == made["id"]
        await notebook.on(made["kernel_id"])
        assert (await notebook.run(VISIBLE)).text.strip().split(",") == made["gpus"]
        assert await idle_gpus(front) == 4
        # Several at once, each with a local kernel of its own.
        second = await front.open("b.ipynb")
        await second.run("y = 2")
        await front.gpufit("POST", "allocations/train/attach", {"session": second.session}, expect=202)
        await second.on(made["kernel_id"])
        ended = await front.release("train")
        assert (ended["reason"], ended["state"]) == ("released", "ended")
        await notebook.on(local)
        assert await notebook.value("x + 1") == "42"
        await second.off(made["kernel_id"])
        assert await second.value("y") == "2"
        await ready(front)
        assert made["kernel_id"] not in await front.kernels()
        assert not notebook.gone
        story = [(event["session"] == notebook.session, event["state"]) for event in events.of("attachment/v1")]
        assert sorted(story) == sorted(
            (own, state) for own in (True, False) for state in ("waiting", "attached", "detached")
        )
        states = [event["state"] for event in events.of("allocation/v1")]
        assert list(dict.fromkeys(states))[-3:] == ["running", "stopping", "ended"]


async def test_attached_as_soon_as_it_is_asked_for(tmp_path: Path, simulated: Path) -> None:
    config = {"GpufitExtension": {"inventory": str(simulated)}}
    async with server_here(tmp_path, config, extension=True) as here, here.front() as front, front.events() as events:
        await ready(front)
        notebook = await front.open()
        made = (await front.gpufit("POST", "allocations", {"gpus": 2}, expect=202)).json
        answer = await front.gpufit("POST", f"allocations/{made['id']}/attach", {"path": "a.ipynb"}, expect=202)
        assert (answer.json["state"], made["state"], made["kernel_id"]) == ("waiting", "starting", None)
        assert (await front.gpufit("GET", "attachments", expect=200)).json == {"attachments": [answer.json]}
        up = await front.allocation(made["id"], lambda one: one["state"] == "running")
        await notebook.on(up["kernel_id"])
        [attachment] = (await front.gpufit("GET", "attachments", expect=200)).json["attachments"]
        assert attachment == answer.json | {"state": "attached", "kernel_id": up["kernel_id"]}
        # One that is refused in the end is waited for no longer.
        wish = {"gpus": 2, "node": "small", "wait": "3s"}
        queued = (await front.gpufit("POST", "allocations", wish, expect=202)).json
        assert queued["state"] == "pending"
        await front.gpufit("POST", f"allocations/{queued['id']}/attach", {"path": "a.ipynb"}, expect=202)
        await events.until(lambda event: event.get("allocation") == queued["id"] and event["state"] == "detached")
        assert (await notebook.model())["kernel"]["id"] == up["kernel_id"]


async def test_shutting_an_attached_notebook_down_gives_everything_back(tmp_path: Path, simulated: Path) -> None:
    config = {"GpufitExtension": {"inventory": str(simulated)}}
    async with server_here(tmp_path, config, extension=True) as here, here.front() as front:
        await ready(front)
        notebook = await front.open()
        made = await front.request(gpus=1)
        await front.gpufit("POST", f"allocations/{made['id']}/attach", {"session": notebook.session}, expect=202)
        await notebook.on(made["kernel_id"])
        await notebook.shutdown()
        await ready(front)
        await eventually(lambda: here.app.kernel_manager.list_kernel_ids() == [])
        ended = await front.allocation(made["id"], lambda one: one["state"] == "ended")
        assert ended["reason"] == "released"


async def test_the_kernel_of_an_allocation_shut_down_by_itself(tmp_path: Path, simulated: Path) -> None:
    """In the list of running kernels: the notebook gets its own back, with its variables."""
    config = {"GpufitExtension": {"inventory": str(simulated)}}
    async with server_here(tmp_path, config, extension=True) as here, here.front() as front:
        await ready(front)
        notebook = await front.open()
        await notebook.run("x = 1")
        local = notebook.kernel_id
        made = await front.request(gpus=1)
        await front.gpufit("POST", f"allocations/{made['id']}/attach", {"session": notebook.session}, expect=202)
        await notebook.on(made["kernel_id"])
        await front.api("DELETE", f"api/kernels/{made['kernel_id']}", expect=204)
        await notebook.on(local)
        assert await notebook.value("x") == "1"
        await ready(front)


async def test_a_restart_by_the_person_keeps_gpus_and_attachment(tmp_path: Path, simulated: Path) -> None:
    config = {"GpufitExtension": {"inventory": str(simulated)}}
    async with server_here(tmp_path, config, extension=True) as here, here.front() as front:
        await ready(front)
        notebook = await front.open()
        local = notebook.kernel_id
        made = await front.request(gpus=1)
        await front.gpufit("POST", f"allocations/{made['id']}/attach", {"session": notebook.session}, expect=202)
        await notebook.on(made["kernel_id"])
        await notebook.run("y = 1")
        await notebook.restart()
        assert "NameError" in str((await notebook.run("y")).error)
        assert (await notebook.run(VISIBLE)).text.strip() == made["gpus"][0]
        assert (await front.allocation(made["id"]))["state"] == "running"
        # The way back, as the attached kernel itself asks for it.
        cells = notebook.run_all(["%gpufit release", "print('still here')"])
        assert (await cells[1]).text == "still here\n"
        await notebook.on(local)
        await front.allocation(made["id"], lambda one: one["state"] == "ended")
        await ready(front)


async def test_two_servers_of_one_person(tmp_path: Path, simulated: Path) -> None:
    async with (
        server_process(tmp_path, inventory=simulated) as one,
        server_process(tmp_path, inventory=simulated, log_name="second.log") as two,
        one.front() as front_one,
        two.front() as front_two,
    ):
        await asyncio.gather(ready(front_one), ready(front_two))
        asked = [front.gpufit("POST", "allocations", {"gpus": 1}) for front in (front_one, front_two) for _ in range(3)]
        answers = await asyncio.gather(*asked)
        granted = [answer.json["id"] for answer in answers if answer.status == 202]
        assert len(granted) >= 4
        ended = ("running", "ended")
        made = []
        for answer, front in zip(answers, [front_one] * 3 + [front_two] * 3, strict=True):
            if answer.status == 202:
                made.append(await front.allocation(answer.json["id"], lambda one: one["state"] in ended))
        held = [uuid for one_of in made if one_of["state"] == "running" for uuid in one_of["gpus"]]
        assert len(held) == len(set(held)) >= 4
        # Each sees what the other holds, and neither lists the other's allocations as its own.
        await asyncio.gather(ready(front_one, 6 - len(held)), ready(front_two, 6 - len(held)))
        ids = [{one_of["id"] for one_of in (await front.gpufit("GET", "allocations")).json["allocations"]}
               for front in (front_one, front_two)]  # fmt: skip
        assert ids[0].isdisjoint(ids[1])
        await one.stop()
        await ready(front_two, 6 - len(ids[1]))
    assert "Traceback" not in one.log + two.log


async def test_a_server_stopped_in_the_middle_of_a_start(tmp_path: Path, simulated: Path) -> None:
    async with server_process(tmp_path, inventory=simulated) as server, server.front() as front:
        await ready(front)
        made = (await front.gpufit("POST", "allocations", {"gpus": 1}, expect=202)).json
        await server.stop()
    assert "Traceback" not in server.log, server.log
    async with server_process(tmp_path, inventory=simulated) as server, server.front() as front:
        await ready(front)
        assert (await front.allocation(made["id"]))["state"] == "ended"


async def test_kernels_that_start_with_the_server(tmp_path: Path, simulated: Path) -> None:
    """The first thing that a person does may be to open a notebook that is kept with kernel `gpufit`."""
    config = {"GpufitExtension": {"inventory": str(simulated)}}
    async with server_here(tmp_path, config, extension=True, start=False) as here, here.front() as front:
        opening = asyncio.create_task(front.open("direct.ipynb", "gpufit"))
        await asyncio.sleep(0.3)
        await here.app.extension_manager.start_all_extensions()
        notebook = await opening
        [made] = (await front.gpufit("GET", "allocations", expect=200)).json["allocations"]
        assert made["kernel_id"] == notebook.kernel_id
        assert (await notebook.run(VISIBLE)).text.strip() == made["gpus"][0]
        answer = await front.gpufit(
            "POST", f"allocations/{made['id']}/attach", {"session": notebook.session}, expect=409
        )
        assert "no local kernel" in answer.json["message"]
        await notebook.shutdown()
        await front.allocation(made["id"], lambda one: one["state"] == "ended")


async def test_the_doctor_looks_from_the_server(tmp_path: Path, simulated: Path) -> None:
    config = {"GpufitExtension": {"inventory": str(simulated)}}
    async with server_here(tmp_path, config, extension=True) as here, here.front() as front:
        await ready(front)
        await front.gpufit("POST", "nodes/small/doctor", {"deep": True}, expect=202)

        async def done() -> bool:
            answer = await front.gpufit("GET", "nodes/small/doctor?after=20&wait=4", expect=200)
            assert answer.seconds < 5
            return bool(answer.json["done"])

        await eventually(done)
        found = (await front.gpufit("GET", "nodes/small/doctor", expect=200)).json
        right = [check["check"] for check in found["checks"] if check["verdict"] == "right"]
        assert right == ["reporter", "report", "container", "ipykernel", "ports", "gpu", "kernel"], found
        await ready(front)


async def test_a_policy_that_learns_serves_and_says_what_it_goes_by(tmp_path: Path, simulated: Path) -> None:
    inventory = tmp_path / simulated.name
    nodes = inventory.read_text()
    inventory.write_text(f'policy = "balance"\n{nodes}')
    config = {"GpufitExtension": {"inventory": str(inventory)}}
    fullest = "the fullest node first: fewest idle GPUs, then least free memory (until more is known of what people ask"
    async with server_here(tmp_path, config, extension=True) as here, here.front() as front:

        async def explained() -> tuple[str, str]:
            decision = (await front.gpufit("POST", "explain", {"gpus": 1}, expect=200)).json
            return decision["policy"], decision["stages"][2]["title"]

        async def goes_by_what_it_learned() -> bool:
            return (await explained())[1] == "the node first where it costs least of what others could use"

        await ready(front)
        assert (await front.gpufit("GET", "about", expect=200)).json["policy"] == "balance"
        assert await explained() == ("balance", f"{fullest} for)")
        made = await front.request(gpus=2, memory="10GiB")
        assert (made["state"], made["node"]) == ("running", "small")
        for _ in range(24):  # refused ones tell as much of what people ask for
            await front.gpufit("POST", "allocations", {"gpus": 3, "memory": "40GiB", "node": "small"}, expect=422)
        await eventually(goes_by_what_it_learned)
        other = await front.request(gpus=2, memory="10GiB")
        assert (other["state"], other["node"]) == ("running", "large")
        for one in (made, other):
            await front.release(one["id"])

        async def chosen() -> bool:
            return (await front.gpufit("GET", "about", expect=200)).json["policy"] == "fragmentation"

        inventory.write_text(f'policy = "fragmentation"\n{nodes}')
        await eventually(chosen)
        assert (await explained())[0] == "fragmentation"
        await eventually(goes_by_what_it_learned)
    async with server_here(tmp_path, config, extension=True) as here, here.front() as front:
        await ready(front)
        await eventually(goes_by_what_it_learned)  # by what it had been asked before
