"""``make`` in a fresh copy of the project: the default run and the pages."""

import importlib.util
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MADE = {".venv", ".git", "runs", "site"}
CACHES = shutil.ignore_patterns("__pycache__", ".*_cache", ".hypothesis", ".benchmarks", "build", "dist")
"""What a fresh copy lacks: generated files, and the history."""

FIVE_MINUTES = 5 * 60.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("make") is None, reason="needs make, and there is none in the PATH"),
]


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """A fresh checkout of the project, without any set-up."""

    def left_out(folder: str, names: list[str]) -> set[str]:
        return {*CACHES(folder, names), *(MADE if Path(folder) == ROOT else ())}

    return shutil.copytree(ROOT, tmp_path / "esper", ignore=left_out)


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``make …`` in the copy, without a package index: all requirements are available locally."""
    make_variables = ("PYTHON", "PYTEST", "ESPER", "MAKE", "MFLAGS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(make_variables)}
    kept["PIP_NO_INDEX"] = "1"
    return subprocess.run(["make", *arguments], cwd=folder, env=kept, capture_output=True, text=True, check=False)


def spent() -> float:
    """Return the processor seconds of all finished child processes, so that other programs do not count."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.mark.install
def test_make_run_in_a_fresh_copy_gives_a_table_and_a_report_in_less_than_five_minutes(fresh, new_environment):
    """The time excludes downloads: torch and other packages are linked into the environment."""
    (fresh / ".venv").symlink_to(new_environment().folder)
    before = spent()
    done = make(fresh, f"PYTHON={sys.executable}", "run")
    took = spent() - before
    assert done.returncode == 0, done.stdout + done.stderr
    head, *rows = done.stdout[done.stdout.index("arm ") :].splitlines()
    assert re.split(r"\s{2,}", head)[:3] == ["arm", "test accuracy", "95 % interval"]
    table = {row.split()[0]: row for row in rows[:3]}
    assert table.keys() == {"heuristic", "twin", "capacity"}
    assert all(re.search(r" \d\d\.\d % .* to .* 8  ", row) for row in table.values())
    (report,) = fresh.glob("runs/*/report.html")
    assert f"Report: {report.relative_to(fresh)}" in done.stdout
    assert "heuristic" in report.read_text(encoding="utf-8")
    where = [fresh / ".venv" / "bin" / "python", "-c", "import esper_core; print(esper_core.__file__)"]
    imported = subprocess.run(where, cwd=fresh, capture_output=True, text=True, check=True)
    assert imported.stdout.startswith(f"{fresh}/"), "what ran is the copy"
    assert took < FIVE_MINUTES, "of a single core"


@pytest.mark.skipif(
    importlib.util.find_spec("material") is None,
    reason="needs the tools of the pages, which `make docs` installs: mkdocs-material is not there",
)
def test_make_docs_finds_every_table_and_every_answer_in_order_and_builds_the_pages(fresh):
    """With the environment that runs the tests, as it is: nothing is installed into it."""
    set_up = [word for mark in (".ready", ".ready-docs") for word in ("-o", f"{sys.prefix}/{mark}")]
    done = make(fresh, *set_up, f"VENV={sys.prefix}", "docs", "CHECK=--check")
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {page.relative_to(fresh / "docs").with_suffix(".html") for page in (fresh / "docs").rglob("*.md")}
    built = {page.relative_to(fresh / "site") for page in (fresh / "site").rglob("*.html")}
    named = {page.with_name("index.html") if page.name == "README.html" else page for page in pages}
    assert sorted(named - built) == []
