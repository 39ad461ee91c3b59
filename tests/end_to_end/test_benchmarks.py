"""Performance benchmarks and studies run by their commands."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUESTIONS = [f"P{number}" for number in range(1, 15)]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch):
    """``module("perf.sides")``: one of the modules of ``benchmarks``, which nobody installs."""
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: importlib.import_module(f"benchmarks.{name}")


@pytest.mark.parametrize(
    ("value", "bound", "at_least", "verdict"),
    [
        (1.03, 1.03, False, "OK"),
        (1.04, 1.03, False, "OVER"),
        (2.0, 2.0, True, "OK"),
        (1.9, 2.0, True, "UNDER"),
        (9.0, None, False, ""),
    ],
)
def test_a_figure_is_held_against_its_bound_from_the_right_side(module, value, bound, at_least, verdict) -> None:
    table = module("table")
    row = table.Row("a step", value, bound, "×", at_least=at_least)
    assert row.cells()[3] == verdict
    assert row.kept is (verdict in ("OK", ""))
    whole = table.Table("P1", "steps", (row,), "note")
    assert whole.kept is row.kept
    assert table.table_of(json.loads(json.dumps(whole.as_json()))) == whole


def test_sides_take_turns_and_each_of_them_is_first_at_times(module) -> None:
    order = []
    sides = {name: lambda name=name: order.append(name) or len(order) for name in "ab"}
    taken = module("perf.turns").times(sides, turns=2, warm=1)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert taken == {"a": [4, 5], "b": [3, 6]}


def test_every_promise_has_a_module_that_measures_it_and_a_line_on_the_page(module) -> None:
    main = module("perf.__main__")
    assert list(main.MODULES) == QUESTIONS
    assert {name for name in main.MODULES.values() if not hasattr(module(f"perf.{name}"), "measure")} == set()
    page = (ROOT / "docs" / "project" / "performance.md").read_text(encoding="utf-8")
    assert [number for number in QUESTIONS if f"\n| {number} | " not in page] == []


@pytest.mark.parametrize(
    "arguments", [["--only", "P2,P99"], ["nothing"], ["--quick", "--write"], ["--only", "P6", "--write"]]
)
def test_what_cannot_be_asked_is_refused_before_anything_is_measured(module, monkeypatch, arguments) -> None:
    main = module("perf.__main__")
    monkeypatch.setattr(main, "report", lambda *_, **__: pytest.fail("something was measured"))
    with pytest.raises(SystemExit) as ended:
        main.main(arguments)
    assert ended.value.code == 2


def test_what_was_asked_for_is_printed_and_written_with_date_and_machine_and_what_is_over_is_told(
    module, monkeypatch, capsys, tmp_path
) -> None:
    main, table = module("perf.__main__"), module("table")
    found = {
        "default_run": [
            table.Table("P9", "kept", (table.Row("a share", 9.0, 3.0, "%"),)),
            table.Table("P10", "no", ()),
        ],
        "learner": [table.Table("P6", "update", (), "not yet")],
    }
    monkeypatch.setattr(main, "tables_of", lambda name, quick: found[name])
    assert main.main(["--only", "P9,P6", "--quick", "--write", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert "a share    9.00 %  ≤ 3.00 %  OVER" in printed.out
    assert "P10" not in printed.out
    assert printed.err == "beyond their bounds: P9\n"
    kept = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert [one["number"] for one in kept["tables"]] == ["P6", "P9"]
    assert kept["date"]
    assert kept["machine"]["torch"]
    page = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert "| a share | 9.00 % | ≤ 3.00 % | OVER |  |" in page
    assert "no figure means anything" in page
    assert "\nNot yet.\n" in page


def test_what_was_measured_several_times_is_told_with_the_least_and_the_most_that_it_was(module, tmp_path) -> None:
    table, results = module("table"), module("perf.results")
    for value in (1.9, 1.5, 1.7):
        results.write(
            tmp_path, [table.Table("P2", "lanes", (table.Row("times as fast", value, 2.0, "×"),))], quick=False
        )
    results.write(tmp_path, [table.Table("P2", "lanes", (table.Row("times as fast", 0.1, 2.0, "×"),))], quick=True)
    (row,) = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["tables"][0]["rows"]
    assert row["ever"] == "1.50 to 1.90 (3)"
    assert "| times as fast | 0.10 × | ≤ 2.00 × | OK | 1.50 to 1.90 (3) |" in (tmp_path / "results.md").read_text(
        encoding="utf-8"
    )


def test_where_one_breaks_down_the_others_go_on_and_nothing_is_written(module, monkeypatch, capsys, tmp_path) -> None:
    main, table = module("perf.__main__"), module("table")
    found = {"learner": None, "memory": [table.Table("P8", "memory", ())]}
    monkeypatch.setattr(main, "tables_of", lambda name, quick: found[name])
    assert main.report(["P6", "P8"], quick=True, into=tmp_path) == 1
    printed = capsys.readouterr()
    assert "P8  memory" in printed.out
    assert printed.err == "broken: learner\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("side", ["plain", "single", "pool", "seeds"])
def test_both_sides_of_a_comparison_train_and_evaluate_as_often_as_they_should(module, monkeypatch, side) -> None:
    """The plain loop and Esper's environments on one batch of two examples: equal work, or the ratio is a lie."""
    sides, work = module("perf.sides"), module("perf.work").conv(2, 1, 2)
    counted = []
    build = work.build_host

    def watched():
        host = build()
        host.register_forward_hook(lambda host, args, output: counted.append((host.training, len(output))))
        return host

    object.__setattr__(work, "build_host", watched)
    with sides.SIDES[side](work) as step:
        step()  # counterfactuals look at a network before they trust their way of going through it
        counted.clear()
        step()
    trained, passes = counted.count((True, 2)), counted.count((False, 2))
    assert (trained, passes) == (2 * sides.ENVIRONMENTS, (4 if side == "seeds" else 1) * sides.ENVIRONMENTS)


def test_the_page_shows_measurements_that_share_a_bound_in_one_row(module, monkeypatch, tmp_path) -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    table, results = module("table"), module("perf.results")
    rows = [table.Row("unbounded", 5.0, None, "ms"), table.Row("a", 1.2, 1.1, "×"), table.Row("b", 0.9, 1.1, "×")]
    results.write(
        tmp_path, [table.Table("P11", "flat", tuple(rows)), table.Table("P14", "free", rows[:1])], quick=False
    )
    monkeypatch.setattr(generate, "MEASURED", tmp_path / "results.json")
    page = generate.benchmarks()
    assert f"| P11 | {generate.MEASURES['P11'][0]} | 0.90 × to 1.20 × | ≤ 1.10 × | missed in 1 of 2 |" in page
    assert f"| P14 | {generate.MEASURES['P14'][0]} | see `results.md` | none |  |" in page
    monkeypatch.setattr(generate, "MEASURED", tmp_path / "nothing.json")
    assert generate.benchmarks().startswith("Not measured yet")


@pytest.mark.slow
def test_every_measurement_runs_by_one_command_and_is_written_down(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.perf", "--quick", "--write", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert "broken" not in done.stderr
    tables = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["tables"]
    assert [one["number"] for one in tables] == QUESTIONS
    assert [one["number"] for one in tables if not one["rows"]] == []
    assert (tmp_path / "results.md").read_text(encoding="utf-8").startswith("# How fast it is")


@pytest.mark.slow
def test_the_experiment_on_incubation_runs_by_one_command_and_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.science.incubation", "--quick", "--into", str(tmp_path)]
    first = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert "forced plain shadow" in first.stderr
    told = json.loads((tmp_path / "results.json").read_text())
    assert told
    assert (tmp_path / "results.md").read_text().startswith("# Which incubation")
    assert (tmp_path / "figure.svg").read_text().startswith("<svg")
    again = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert again.stderr.splitlines() == [f"written: {tmp_path / 'results.md'}"]
    assert json.loads((tmp_path / "results.json").read_text()) == told
