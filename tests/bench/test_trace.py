"""The experiment of `bench/trace.py`, on a cluster of a few nodes with a trace made up here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.append(str(BENCH))  # last: some names there are those of standard modules

from trace_data import Machines, Workload, arrivals  # noqa: E402
from trace_field import Field, Lazy, tightest  # noqa: E402
from trace_ours import OURS  # noqa: E402
from trace_references import REFERENCES, Fgd  # noqa: E402


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 nodes of two models with 1 to 8 GPUs; tasks of all kinds for two thirds of the GPUs."""
    folder = tmp_path_factory.mktemp("trace")
    chance = np.random.default_rng(1)
    nodes = ["sn,cpu_milli,memory_mib,gpu,model"]
    nodes += [f"node-{at:02},96000,262144,{(1, 2, 4, 8)[at % 4]},{('G2', 'T4')[at % 2]}" for at in range(20)]
    (folder / "openb_node_list_gpu_node.csv").write_text("\n".join(nodes) + "\n")
    tasks, demand = ["name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec"], 0
    while demand < 50_000:
        gpus = int(chance.choice([0, 1, 1, 1, 1, 1, 2, 4]))
        share = 1000 if gpus > 1 else int(chance.choice([250, 470, 810, 1000]))
        spec = str(chance.choice(["", "", "T4", "G2|T4"]))
        tasks.append(f"pod-{len(tasks):04},{chance.choice([4000, 8000])},16384,{gpus},{gpus and share},{spec}")
        demand += gpus * share
    (folder / "openb_pod_list_default.csv").write_text("\n".join(tasks) + "\n")
    return folder


def run(data: Path, *words: str) -> list[dict[str, object]]:
    command = [sys.executable, str(BENCH / "trace.py"), "--data", str(data), "--workloads", "default", *words]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [json.loads(line) | {"cpu_s": 0} for line in lines if line.startswith("{")]


def test_all_policies_fill_the_cluster_and_a_seed_says_it_all(data: Path) -> None:
    figures = run(data, "--seeds", "2")
    assert {figure["policy"] for figure in figures} == {*REFERENCES, *OURS}
    for figure in figures:
        assert 60 < figure["at100"] <= figure["at130"] <= 100  # type: ignore[operator]
    again = run(data, "--seeds", "1", "--first", "43")
    assert again == [figure for figure in figures if figure["seed"] == 43]


def test_with_departures_what_is_allocated_and_what_is_lost_are_told(data: Path) -> None:
    figures = run(data, "--seeds", "1", "--load", "1.0", "--lifetimes", "1", "--policies", "fgd", "balance")
    assert [figure["policy"] for figure in figures] == ["fgd", "balance"]
    for figure in figures:
        assert 50 < figure["allocated"] <= 100  # type: ignore[operator]
        assert 0 <= figure["lost"] < 50  # type: ignore[operator]


def test_what_is_kept_is_not_done_again_and_the_means_are_of_all(data: Path, tmp_path: Path) -> None:
    kept = tmp_path / "runs.jsonl"
    words = ["--policies", "bestfit", "balance", "--append", str(kept)]
    first = run(data, *words, "--seeds", "1")
    assert [figure["seed"] for figure in run(data, *words, "--seeds", "2")] == [43, 43]
    assert run(data, *words, "--seeds", "2") == []
    assert [json.loads(line) | {"cpu_s": 0} for line in kept.read_text().splitlines()][:2] == first
    run(data, "--policies", "fgd", "balance", "--append", str(kept), "--seeds", "2", "--load", "1", "--lifetimes", "1")
    told = {str(figure["figure"]): figure for figure in run(data, *words, "--seeds", "2", "--figures")}
    runs = [json.loads(line) for line in kept.read_text().splitlines()]
    assert told.keys() == {
        *("placement.bestfit.default", "placement.balance.default"),
        *("departures.fgd.default.load1.0", "departures.balance.default.load1.0"),
    }
    at100 = [one["at100"] for one in runs if one["figure"] == "inflation" and one["policy"] == "balance"]
    assert told["placement.balance.default"]["at100"] == pytest.approx(sum(at100) / 2, abs=0.006)
    assert told["placement.bestfit.default"]["published"] == "92.9/93.1"
    by_policy = {
        policy: [one["allocated"] for one in runs if one["figure"] == "departures" and one["policy"] == policy]
        for policy in ("fgd", "balance")
    }
    behind = (sum(by_policy["fgd"]) - sum(by_policy["balance"])) / 2
    assert told["departures.balance.default.load1.0"]["behind"] == pytest.approx(behind, abs=0.006)


@pytest.mark.parametrize("ratio", [0.3, 1.3])
def test_as_much_arrives_as_is_said(data: Path, ratio: float) -> None:
    machines, workload = Machines.read(data), Workload.read(data, "default")
    tasks = arrivals(workload, machines, ratio, np.random.default_rng(1))
    asked, target = workload.demand[tasks].sum(), ratio * machines.gpus * 1000
    assert target - 4000 <= asked <= target


def test_costs_kept_are_those_worked_out_anew(data: Path) -> None:
    machines, workload = Machines.read(data), Workload.read(data, "default")
    field = Field(machines, workload)
    fgd = Fgd(field, workload, np.random.default_rng(1))
    for task in workload.tasks[:60].tolist():
        kept = fgd._lazy.of(task).copy()
        fresh = Fgd(field, workload, np.random.default_rng(1))
        assert (kept == Lazy(len(field), len(workload.shapes), fresh._lazy._costs).of(task)).all()
        if (found := fgd.place(task)) is not None:
            field.take(found[0], task, found[1])
            fgd.changed(found[0])


@pytest.mark.parametrize("policy", [*REFERENCES, *OURS])
def test_a_task_goes_where_it_fits_and_is_lost_only_where_none_does(data: Path, policy: str) -> None:
    chance = np.random.default_rng(1)
    machines, workload = Machines.read(data), Workload.read(data, "default")
    field = Field(machines, workload)
    chooser = {**REFERENCES, **OURS}[policy](field, workload, chance)
    for task in arrivals(workload, machines, 1.3, chance).tolist():
        fits = field.fits(task, slice(None))
        found = chooser.place(task)
        assert (found is not None) == bool(fits.any())
        if found is None:
            continue
        row, slots = found
        assert fits[row]
        if policy != "random" and policy != "fgd" and workload.shapes[task].share < 1000:
            free = field.gpu[row]
            assert [free[slot] for slot in slots] == [free[slot] for slot in tightest(field, row, task)]
        field.take(row, task, slots)
        chooser.changed(row)
    assert (field.gpu.sum(axis=1) <= 1000 * machines.count).all()
