"""A broken plugin that a run does not use is one line on stderr."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SMALL = """\
task: stripes
host: pointwise-mlp
slots: {early: {blueprints: [conv_light]}}
policy: static
environments: 1
capacity: false
episode: {steps: 1, batches: 1, batch_size: 20}
"""

LINE = (
    'warning: E210 plugin "bad" (esper-bad 1.0) cannot be imported: ZeroDivisionError: division by zero  {place}  '
    "Tell the author of esper-bad, or leave it out:  plugins.disable: [bad]\n"
)


@pytest.mark.members
@pytest.mark.parametrize("command", [["check"], ["run", "--dry-run"], ["run", "--dry-run", "--json"]])
def test_it_is_one_line_on_stderr(esper, site_packages, tmp_path, command: list[str]) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    before = esper(*command, str(file))
    path = site_packages.plugin("esper-bad", "print('noise')\n1 / 0\n", id="bad")
    after = esper(*command, str(file))
    assert (before.status, before.err) == (0, "")
    assert (after.status, after.out, after.err) == (0, before.out, "noise\n" + LINE.format(place=f"{path}:2"))


@pytest.mark.members
def test_check_in_json_has_the_same_as_a_list_of_problems(esper, site_packages, tmp_path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    assert json.loads(esper("check", str(file), "--json").out) == {"ok": True, "problems": [], "warnings": []}
    path = site_packages.plugin("esper-bad", "1 / 0\n", id="bad")
    site_packages.plugin("esper-torn", "", id="torn")
    site_packages.folder.joinpath("esper_torn-1.0.dist-info", "entry_points.txt").write_text(
        "[esper.plugins]\nnonsense\n"
    )
    answer = esper("check", str(file), "--json")
    told = json.loads(answer.out)
    assert (answer.status, told["ok"], told["problems"]) == (0, True, [])
    assert [one["code"] for one in told["warnings"]] == ["E210", "E223"]
    assert told["warnings"][0] == {
        "code": "E210",
        "message": 'plugin "bad" (esper-bad 1.0) cannot be imported: ZeroDivisionError: division by zero',
        "file": str(path),
        "line": 1,
        "column": None,
        "path": None,
        "hint": "Tell the author of esper-bad, or leave it out:  plugins.disable: [bad]",
    }
    assert answer.err.count("warning: ") == 2


@pytest.mark.members
def test_a_file_with_problems_has_its_warnings_in_json_too(esper, site_packages, tmp_path) -> None:
    site_packages.plugin("esper-bad", "1 / 0\n", id="bad")
    file = tmp_path / "small.yaml"
    file.write_text(SMALL.replace("stripes", "stripse"))
    answer = esper("check", str(file), "--json")
    told = json.loads(answer.out)
    assert (answer.status, told["ok"], [one["code"] for one in told["warnings"]]) == (2, False, ["E210"])
    assert [one["code"] for one in told["problems"]] == ["E205"]


def test_what_the_file_requires_is_no_warning(esper, site_packages, tmp_path) -> None:
    site_packages.plugin("esper-bad", "1 / 0\n", id="bad")
    file = tmp_path / "small.yaml"
    file.write_text(SMALL + 'plugins: {require: {bad: ">=1"}}\n')
    answer = esper("check", str(file))
    assert (answer.status, answer.out) == (3, "")
    assert answer.err.startswith('E226 plugin "bad" (esper-bad 1.0) is required, and it is broken\n')
    assert "warning" not in answer.err


@pytest.mark.members
@pytest.mark.parametrize("command", ["check", "run"])
def test_where_nothing_can_be_read_for_a_damaged_package_it_is_named(site_packages, tmp_path, command: str) -> None:
    """Pydantic and torch ask all packages for plugins of theirs: in a fresh process that is where it is raised."""
    (tmp_path / "small.yaml").write_text(SMALL)
    site_packages.plugin("other-torn", "", id="torn")
    site_packages.folder.joinpath("other_torn-1.0.dist-info", "entry_points.txt").write_text("[other]\nnonsense\n")
    done = subprocess.run(
        [sys.executable, "-m", "esper_core", command, "small.yaml"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, "")
    first, second = done.stderr.splitlines()
    assert first.startswith('E223 the metadata of package "other-torn" cannot be read: ')
    assert second == "  Install it again:  pip install --force-reinstall other-torn"


def test_an_error_of_another_kind_is_a_crash_though_a_package_is_damaged(esper, site_packages, monkeypatch) -> None:
    site_packages.plugin("other-torn", "", id="torn")
    site_packages.folder.joinpath("other_torn-1.0.dist-info", "entry_points.txt").write_text("[other]\nnonsense\n")
    monkeypatch.setattr("esper_core.plugins.load_plugins", lambda **_: 1 / 0)
    answer = esper("plugins", "list")
    assert (answer.status, "ZeroDivisionError" in answer.err, "E223" in answer.err) == (1, True, False)
