"""P1, P2, P11, P12: training steps of Esper's environments against the best hand-written loop.

The best loop stores images channels-last and uses the tuned allocator, as Esper does; both sides have the same threads.
"""

from contextlib import ExitStack
from dataclasses import replace

import pytest

from benchmarks import costs, fused, gpu
from benchmarks.perf.figures import Figure
from benchmarks.perf.processes import CORES, Setup
from benchmarks.perf.workloads import activate_seeds, conv, workload

TRAININGS = 4
ENGINES = ("processes", "threads")


@pytest.mark.parametrize(("name", "turns"), [("conv", 20), ("1-d", 60)])
def test_one_environment_against_the_loop(compare, record, workers, quick, name, turns):
    alone = Setup("loop", name, trainings=1, train_only=True, quick=quick)
    sides = {"loop": workers(alone), "esper": workers(replace(alone, program="threads", lanes=1))}
    took = compare({side: worker.seconds for side, worker in sides.items()}, turns)
    if name == "conv":
        ratio = took["esper"] / took["loop"]
        record(Figure("P1", "conv: one environment, time against the best loop", ratio, "×", 1.03, 3))
    else:
        beyond = (took["esper"] - took["loop"]) / workload(name, quick=quick).batches
        record(Figure("P1", "1-d: one environment, time beyond the best loop per batch", 1e6 * beyond, "µs", 60, 0))


@pytest.mark.parametrize(
    ("number", "label", "setup", "turns"),
    [
        ("P2", "conv: four environments", Setup("loop", "conv", TRAININGS), 4),
        ("P2", "1-d: four environments", Setup("loop", "1-d", TRAININGS), 10),
        ("P12", "three acting seeds", Setup("loop", "conv", TRAININGS, seeds=True), 6),
    ],
)
def test_four_trainings_against_two_loops_in_processes(compare, record, workers, quick, number, label, setup, turns):
    """Of acting seeds each is left out once in the evaluation, on both sides; the loop runs four whole passes."""
    loop = replace(setup, quick=quick)
    sides = {engine: workers(replace(loop, program=engine)) for engine in ENGINES}
    each_core = replace(loop, trainings=loop.trainings // CORES)
    sides["loops"] = workers(*[each_core] * CORES)
    took = compare({side: worker.seconds for side, worker in sides.items()}, turns, warmup=2)
    processes, threads = (took[side] / took["loops"] for side in ENGINES)
    record(
        Figure(number, f"{label}, time against two loops in processes", processes, "×", 1.1),
        Figure(number, f"{label} in threads, time against two loops in processes", threads, "×", 1.3),
    )


@pytest.mark.parametrize("seeds", [0, 1, 2, 3])
@pytest.mark.usefixtures("in_process")
def test_steps_cost_the_same_with_more_environments(compare, record, quick, seeds):
    from esper_core.trainer.pool import Pool

    work, sizes = (conv(1, 1, 8), (1, 2)) if quick else (conv(1, 1, 64), (2, 16))
    with ExitStack() as stack:
        sides = {}
        for size in sizes:
            pool = Pool(work.recipe(channels_last=True), ["grown"], size, lanes=None)
            stack.callback(pool.close)
            pool.reset(0, 0)
            activate_seeds(pool, list(work.slots)[:seeds])
            sides[size] = lambda pool=pool: (pool.train(0), pool.evaluate(0), pool.synchronise(0))
        took = compare(sides, 5, warmup=1)
    few, many = (took[size] / size for size in sizes)
    label = f"{seeds} acting seeds: step of one environment, with 16 of them against 2"
    record(Figure("P11", label, many / few, "×", 1.1))


@pytest.mark.usefixtures("in_process")
def test_the_benchmark_of_a_gpu_runs_on_a_cpu(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gpu", "--device", "cpu", "--quick"])
    assert gpu.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("cpu, torch")
    assert all(line.endswith(": equal") for line in lines[1:3])
    assert len(lines) == 3 + 2 * 12 + 4 + 6
    assert all(line.endswith(" ×") for line in lines[3:27])
    assert all(line.endswith(" ms for each") for line in lines[27:31])


@pytest.mark.usefixtures("in_process")
def test_the_benchmark_of_fused_groups_runs(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["fused", "--quick", "--networks", "1", "2"])
    fused.main()
    lines = capsys.readouterr().out.splitlines()
    ways = [line.rpartition("  ")[2] for line in lines[3:]]
    assert set(ways[:-2]) == {"as one program"}
    assert ways[-2:] == ['no rule for torch\'s "conv2d"'] * 2


def test_the_table_of_costs_counts_what_more_networks_and_seeds_take(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["costs", "--environments", "1", "2", "--seeds", "0", "1", "--batches", "1"])
    costs.main()
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[:2] for row in rows] == [["1", "0"], ["2", "0"], ["1", "1"], ["2", "1"]]
    events, checkpoints = ([float(row[column].replace(",", "")) for row in rows] for column in (5, 6))
    assert max(events[:2]) < min(events[2:])
    assert checkpoints[1] <= checkpoints[0]
