"""Output is plain in a pipe, coloured on a terminal, and free of control characters."""

import io
import math
import re
import sys
from pathlib import Path

import click
import pytest

from esper_core.leyline import Problem
from esper_core.leyline.errors import printable
from esper_core.leyline.signals import Metric
from esper_run.cli.output import print_facts, print_line, print_outcome, print_problems, print_table, print_warnings
from esper_run.runs.findings import last_weights_text, next_command, ways_text

PROBLEM = Problem("E201", 'unknown blueprint "x"', file="a.yaml", line=1, column=2, hint="one\ntwo")


def test_a_command_that_several_problems_recommend_is_printed_once(capsys) -> None:
    print_problems([Problem("E1", name, hint="Known: x\nList them:  esper components list") for name in ("one", "two")])
    assert capsys.readouterr().err == "E1 one\n  Known: x\n  List them:  esper components list\n\nE1 two\n  Known: x\n"


def test_problems_are_plain_without_a_terminal_and_coloured_on_one(capsys, terminal) -> None:
    print_problems([PROBLEM, Problem("E1", "two")])
    assert capsys.readouterr() == ("", 'E201 unknown blueprint "x"\n  a.yaml:1:2\n  one\n  two\n\nE1 two\n')
    print_problems([PROBLEM], stream=terminal)
    assert terminal.getvalue().startswith("\x1b[31m\x1b[1mE201\x1b[0m \x1b[1munknown")


def test_terminal_control_sequences_are_escaped(terminal, monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdout", terminal)
    hostile = "\x1b[2J\r\x9b31m\u202egnol\x07"
    print_problems([Problem(hostile, hostile, path=hostile, hint=hostile)], stream=terminal)
    print_table([hostile], [[f"[red]{hostile}"]])
    text = terminal.getvalue()
    for order in ("\x1b[2J", "\r", "\x9b", "\u202e", "\x07"):
        assert order not in text
    assert "[red]" in text


def test_characters_that_are_unprintable_or_that_a_stream_cannot_encode_are_escaped() -> None:
    assert printable("é × 漢 a\tb\n \x1b \ud800 \u2066") == "é × 漢 a\\tb\\n \\x1b \\ud800 \\u2066"
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    print_line("Ω…", stream=stream)
    assert raw.getvalue() == b"\\u03a9\\u2026\n"


def test_facts_are_aligned_and_wrapped_below_their_first_word_on_a_terminal(capsys, terminal, monkeypatch) -> None:
    facts = [("id", "tasks"), ("empty", ""), ("package", "esper-tasks " * 4)]
    print_facts(facts)
    assert capsys.readouterr().out == f"  id       tasks\n  package  {'esper-tasks ' * 4}\n"
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys, "stdout", terminal)
    print_facts(facts)
    lines = terminal.getvalue().splitlines()[1:]
    assert lines == ["  package  esper-tasks esper-tasks", "           esper-tasks esper-tasks"]


def test_warnings_are_wrapped_between_words_on_a_terminal(capsys, terminal, monkeypatch) -> None:
    print_warnings(["too few " * 8 + "\nmore"])
    assert capsys.readouterr().err == f"warning: {'too few ' * 8}\nmore\n"
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr(sys, "stderr", terminal)
    print_warnings(["too few " * 8])
    lines = click.unstyle(terminal.getvalue()).splitlines()
    assert lines[:2] == ["warning: too few too few too", "  few too few too few too few"]


@pytest.mark.parametrize("columns", [40, 80])
def test_names_are_whole_and_words_unbroken_on_a_narrow_terminal(columns, terminal, monkeypatch) -> None:
    """A table that does not fit is printed row by row: the name in a line of its own, and its cells below."""
    name, finding = "20261121-101512-a-name-that-is-longer-than-most", "accuracy: heuristic 81.7\N{NO-BREAK SPACE}%"
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "stdout", terminal)
    print_table(["run", "status", "began", "test"], [[name, "done", "2026-11-21 10:15", f"{finding}, twin 58.8"]])
    lines = terminal.getvalue().splitlines()
    assert lines[0] == name
    assert {word for line in lines for word in line.split()} >= {*f"{finding}, twin 58.8".split(), "done", "2026-11-21"}
    assert max(map(len, lines[1:])) < columns
    assert not any(line.lstrip().startswith("%") for line in lines)


def print_results(folder: Path, mean: float | None) -> None:
    """Print the outcome of a run with this test accuracy in a folder."""
    from esper_run.app.run import Outcome  # which imports torch

    test = {"mean": mean, "ci_low": None, "ci_high": None, "n": 1}
    arms = {"grown": {"test": test, "params": 1200.0, "flops": 3.4e12, "reward": None}}
    results = {"metric": {"name": "accuracy", "unit": "%"}, "arms": arms, "comparisons": []}
    print_outcome(Outcome(folder, folder, results, {"total": 2.0, "train": 1.0}))


@pytest.mark.parametrize(
    ("mean", "shown", "is_written"), [(0.912, "91.2 %", True), (None, "unknown", False), (math.nan, "unknown", False)]
)
def test_outcome_shows_an_unknown_mean_as_such_and_names_a_report(capsys, tmp_path, mean, shown, is_written) -> None:
    from esper_run.app.endings import REPORT

    if is_written:
        (tmp_path / REPORT).touch()
    print_results(tmp_path, mean)
    head, row, _, *last = capsys.readouterr().out.splitlines()
    assert head.split("  ")[0] == "arm"
    assert re.split("  +", row) == ["grown", shown, "unknown", "1", "1,200", "3.40 T", "unknown"]
    advice = "Compare it with the same networks without growth:", f"  esper run {tmp_path} --set twin=true"
    if mean is None:  # as of a loop of the user's own, which no file describes
        advice = "See why seeds were kept or pruned:", f"  esper runs show {tmp_path} --seeds"
    assert last == [
        f"{tmp_path}   2 s, of which train 50 %",
        *[f"Report: {tmp_path / REPORT}"] * is_written,
        "",
        "The run had one arm, so there is nothing to compare.",
        *advice,
    ]


def test_outcome_says_how_to_get_a_report_where_no_installed_package_writes_one(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("esper_run.cli.output.Extension.find", lambda *group_and_kind: {})
    print_results(tmp_path, 0.912)
    line = f"For a report:  pip install 'esper-run[watch]'  and then  esper report {tmp_path}"
    assert line in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("fossils", "title", "command"),
    [
        (0.0, "See why nothing was kept", "esper runs show RUN --seeds"),
        (1.0, "Train enough networks for a verdict", "esper run RUN --set environments=8"),
    ],
)
def test_more_networks_are_recommended_where_something_was_kept_in_few(fossils, title, command) -> None:
    comparison = {"a": "grown", "b": "twin", "verdict": "no difference shown", "why": "too few seeds"}
    arms = {"grown": {"fossils": fossils}, "twin": {"fossils": 0.0}}
    assert next_command({"arms": arms, "comparisons": [comparison]}, "RUN", lost="") == (title, command)


def test_figures_of_both_weights_are_shown_where_averages_were_tested() -> None:
    accuracy = Metric("accuracy", unit="%")
    assert last_weights_text(accuracy, {"grown": None, "twin": None}) is None
    text = last_weights_text(accuracy, {"grown": 0.84, "twin": 0.588})
    assert text is not None
    assert text.endswith("With those of the last batch: grown 84.0\u00a0%, twin 58.8\u00a0%.")


@pytest.mark.parametrize(
    ("reasons", "text"),
    [
        (["", ""], "Trained 2 networks as one program with those of the same structure."),
        (["", "a hook", "a hook"], "Trained 1 network as one program with those of the same structure; "
         "2 networks one after another: a hook."),
        (["", None], None),
        ([], None),
    ],
)  # fmt: skip
def test_the_summary_says_which_way_networks_took_and_why(reasons, text) -> None:
    assert ways_text(reasons) == text
