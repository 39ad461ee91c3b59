"""Plugins add sections to the report: they are shown and kept, and one that fails costs only its own."""

from __future__ import annotations

import pytest

CRITIC = """
from esper_core import hookimpl
from esper_core.leyline import ReportSection

@hookimpl
def esper_report_sections(run):
    lines = (run.path / "events.jsonl").read_text().count("\\n")
    return [ReportSection("Events", f"{lines} lines\\nof {run.id}"), ReportSection("More", "Nothing.")]
"""


@pytest.mark.members
def test_sections_are_kept_in_the_summary(install, run_small) -> None:
    install("critic", CRITIC)
    told = run_small()
    lines = (told["path"] / "events.jsonl").read_text().count("\n")
    assert told["summary"]["sections"] == [
        {"plugin": "critic", "title": "Events", "text": f"{lines} lines\nof {told['path'].name}"},
        {"plugin": "critic", "title": "More", "text": "Nothing."},
    ]


@pytest.mark.members
@pytest.mark.parametrize(
    "wrong",
    [
        *("1 / 0", "'words'", "[1]", "7"),
        *("[ReportSection(1, 'x')]", "[ReportSection('x', None)]", "[ReportSection('', 'x')]"),
        "[ReportSection('two\\nlines', 'x')]",
    ],
)
def test_one_that_fails_is_told_once_and_the_others_stay(wrong: str, install, run_small) -> None:
    install(
        "bad",
        "from esper_core import hookimpl\nfrom esper_core.leyline import ReportSection\n\n"
        f"@hookimpl\ndef esper_report_sections(run):\n    return {wrong}\n",
    )
    install("critic", CRITIC)
    summary = run_small()["summary"]
    assert [section["plugin"] for section in summary["sections"]] == ["critic", "critic"]
    (warning,) = summary["warnings"]
    assert "E228" in warning
    assert "esper-bad 1.0" in warning
    assert "does without its sections" in warning


@pytest.mark.members
def test_who_has_nothing_to_say_says_none(install, run_small) -> None:
    install(
        "silent", "from esper_core import hookimpl\n\n@hookimpl\ndef esper_report_sections(run):\n    return None\n"
    )
    summary = run_small()["summary"]
    assert (summary["sections"], summary["warnings"]) == ([], [])
