"""Files, modules and commands that the pages name exist, and the longer run of "Why grow" reaches its figure."""

import importlib.util
import json
import re
import shlex
from pathlib import Path

import pytest

from esper_core import cli

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SHOWN = DOCS / "why-grow.md"
PAGES = [*sorted(DOCS.rglob("*.md")), *ROOT.glob("*.md")]
TESTS = "tests/(?:contract|docs|end_to_end|install)"
FILE = re.compile(rf"(?:examples|{TESTS}|benchmarks|esper-[a-z]+)/[\w./-]+\.(?:yaml|py|md|svg)")
MODULE = re.compile(r"python -m (benchmarks(?:\.\w+)*)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_file_or_a_module_that_a_page_names_is_there(page):
    text = page.read_text(encoding="utf-8")
    assert [one for one in FILE.findall(text) if not (ROOT / one).exists()] == []
    assert [one for one in MODULE.findall(text) if importlib.util.find_spec(one) is None] == []


@pytest.mark.slow
def test_a_twin_that_trains_longer_stays_below_the_grown_network(tmp_path, monkeypatch, capsys):
    (command,) = re.findall(r"^```sh\nesper (.*)\n```", SHOWN.read_text(encoding="utf-8"), re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    arguments = shlex.split(command.replace("plugins.yaml", shlex.quote(str(ROOT / "plugins.yaml"))))
    with pytest.raises(SystemExit):
        cli.main([*arguments, "--set", "environments=2", "--quiet", "--json"])
    (arm,) = json.loads(capsys.readouterr().out)["results"]["arms"].values()
    assert 0.55 < arm["test"]["mean"] < 0.68
