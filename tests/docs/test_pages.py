"""Pages agree with the code: names, columns, examples, figures and navigation."""

import importlib
import importlib.util
import json
import re
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import pytest
import yaml

import esper_core
from benchmarks.science import probes
from esper_core.leyline import Metric
from esper_policies import observations
from esper_run import formats
from tests.docs import test_how_to as how_to
from tests.support.configurations import GROWING

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LISTED_BY_AN_INDEX = "errors"
"""The folder whose pages are reached from its own index page."""


def pages_in(nav: object) -> set[str]:
    """Collect the paths of all pages in the ``nav`` of mkdocs.yml."""
    if isinstance(nav, str):
        return {nav}
    entries = nav.values() if isinstance(nav, dict) else nav
    return set().union(*map(pages_in, entries))


def prose_of(page: Path) -> str:
    """Return the text of a page without code, addresses, and what is written as code is."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`|\]\([^)]*\)|^    .*$", "", text, flags=re.MULTILINE)


def test_prose_has_a_true_minus_and_durations_as_they_are_printed():
    """Tables of the study, too; the events are described by what their fields hold in code."""
    pages = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    stray = r"(?<![\w\]`-])-\d|\b\d+ m(?:in)? ?\d+ ?sec|\b\d+(?:sec|mins)\b"
    strays = {page.name: re.findall(stray, prose_of(page)) for page in pages if page.name != "events.md"}
    assert {name: hits for name, hits in strays.items() if hits} == {}


@pytest.mark.parametrize(
    "shown",
    [
        *map(formats.format_seconds, (0.00021, 0.032, 56.7, 116, 7322.0)),
        *(formats.format_percent(0.8197), formats.format_flops(1.9432e12), formats.format_rate(3.456)),
        formats.format_difference_interval(Metric("accuracy", unit="%"), -0.021, 0.098),
        *("12" + formats.NO_BREAK + unit for unit in ("%", "×", "MiB", "kB", "nats", "ms")),
    ],
)
def test_pages_keep_numbers_and_units_together_as_the_terminal_does(shown):
    hook = run_path(str(DOCS / "no_break.py"))
    typed = f"<p>It is {formats.plain(shown)}.</p>"
    assert hook["on_page_content"](typed, page=None) == f"<p>It is {shown}.</p>"
    for code in (f"<code>{formats.plain(shown)}</code>", f'<img alt="{formats.plain(shown)}">'):
        assert hook["on_page_content"](code) == code
    assert yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["hooks"] == ["docs/no_break.py"]


def test_every_page_is_in_the_navigation():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    pages = {page for page in DOCS.rglob("*.md") if page.parent.name != LISTED_BY_AN_INDEX or page.stem == "index"}
    assert pages_in(nav) == {page.relative_to(DOCS).as_posix() for page in pages}


gallery = SimpleNamespace(**run_path(str(ROOT / "docs" / "gallery.py")))


def test_its_figures_are_drawn_from_its_results_and_small():
    drawn = gallery.pictures({name: gallery.load(name) for name in gallery.EXAMPLES})
    stored = {file: (gallery.PICTURES / file).read_text(encoding="utf-8") for file in drawn}
    assert [file for file in drawn if drawn[file] != stored[file]] == [], "python docs/gallery.py draws them"
    assert max(map(len, stored.values())) < 60_000
    assert "validation accuracy of network 0 by step" in stored["growing.svg"]
    still, _, moving = stored["growing.svg"].partition("@media (prefers-reduced-motion: no-preference)")
    assert ("animation:" in still.partition("</style>")[0], "animation:" in moving) == (False, True)
    assert sum(len(path.read_bytes()) for path in gallery.RESULTS.iterdir()) < 150_000


def test_its_last_example_grows_nothing_and_the_others_something():
    kept = {name: gallery.load(name)["found"][-1] for name in gallery.EXAMPLES}
    assert [name for name, finding in kept.items() if finding == "kept: nothing"] == ["nothing"]


@pytest.mark.slow
@pytest.mark.parametrize("name", gallery.EXAMPLES)
def test_its_commands_run_and_keep_what_it_says(name, tmp_path, monkeypatch):
    """With two networks in place of eight, which take minutes. One of them may keep another block on this machine."""
    monkeypatch.chdir(tmp_path)
    example = gallery.EXAMPLES[name]
    few = "" if example.command.startswith("python") else " --set environments=2"
    result = gallery.result_of(gallery.run(example._replace(command=example.command + few), tmp_path / "runs"))
    kept, shown = (set(re.findall(r"× (\w+)", record["found"][-1])) for record in (result, gallery.load(name)))
    assert kept >= shown
    assert bool(kept) == bool(shown)
    assert gallery.history_of(result).share_done == 1.0


reader = how_to.reader
OBSERVATIONS = ROOT / "docs" / "reference" / "observations.md"
generate = how_to.script(ROOT / "docs" / "generate.py")


@pytest.mark.install  # CI runs it for every change
def test_the_page_works_as_it_is_written(reader):
    how_to.follow(OBSERVATIONS.read_text(encoding="utf-8"), reader, how_to.counted)


def test_every_column_is_on_the_page_once_and_in_order():
    parts = generate.columns().split("### ")[1:]
    columns_of = observations.GLOBAL_COLUMNS, observations.SLOT_COLUMNS, observations.CANDIDATE_COLUMNS
    for part, names in zip(parts, columns_of, strict=True):
        cells = [line.split(" | ") for line in part.splitlines() if line.startswith("| ") and "---" not in line][1:]
        shown = [name.strip("`") for columns, _ in cells for name in columns.removeprefix("| ").split()]
        assert tuple(shown) == names
        assert all(meaning.strip(" |") for _, meaning in cells)


STORED = Path(probes.__file__).with_suffix(".json")


def test_every_stored_probe_found_what_is_known_of_its_host_within_a_minute() -> None:
    stored = json.loads(STORED.read_text(encoding="utf-8"))["probes"]
    cases = [(probe["host"], probe["task"]) for probe in stored]
    assert {case: cases.count(case) for case in probes.CASES} == dict.fromkeys(probes.CASES, probes.SEEDS)
    assert [probe for probe in stored if not probe["holds"] or probe["seconds"] > probes.BUDGET] == []


@pytest.mark.slow
@pytest.mark.parametrize("case", probes.CASES)
def test_a_known_host_is_probed_right(case: tuple[str, str]) -> None:
    probe = probes.probed(*case, seed=0)
    assert probe["holds"], probes.line(probe)


API = DOCS / "reference" / "python-api.md"
LISTED = re.findall(r"^::: ([\w.]+)\.(\w+)$", API.read_text(encoding="utf-8"), flags=re.MULTILINE)


@pytest.mark.parametrize("face", ["esper_core", "esper_grow", "esper_run", "esper_testing", "esper_watch"])
def test_every_public_name_is_listed(face):
    """A name that a package has from the core is listed there."""
    listed = {name for module, name in LISTED if module in (face, "esper_core")}
    assert set(importlib.import_module(face).__all__) - listed == set()


def test_names_are_listed_once_and_those_of_the_core_are_public():
    assert {name for module, name in LISTED if module == "esper_core"} == set(esper_core.__all__)
    assert len(LISTED) == len(set(LISTED))


def test_every_listed_name_exists():
    """Except those that need another library, which the build of the pages resolves."""
    listed = [(module, name) for module, name in LISTED if "integrations" not in module]
    assert [name for module, name in listed if not hasattr(importlib.import_module(module), name)] == []


@pytest.mark.parametrize("guide", sorted((DOCS / "guides").glob("*.md")), ids=lambda guide: guide.stem)
def test_a_guide_begins_with_what_to_install(guide):
    top = guide.read_text(encoding="utf-8").splitlines()[:12]
    assert any("pip install" in line and "esper-" in line for line in top)


def test_the_page_shows_the_examples():
    page = (ROOT / "docs" / "guides" / "grow-in-a-trainer.md").read_text(encoding="utf-8")
    names = ("lightning", "transformers", "accelerate")
    files = [ROOT / "examples" / "integrations" / f"grow_in_{name}.py" for name in names]
    assert re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE) == [file.read_text() for file in files]


PAGES = [*sorted(DOCS.rglob("*.md")), *ROOT.glob("*.md")]
TESTS = "tests/(?:contract|docs|end_to_end|install)"
FILE = re.compile(rf"(?:examples|{TESTS}|benchmarks|esper-[a-z]+)/[\w./-]+\.(?:yaml|py|md|svg)")
MODULE = re.compile(r"python -m (benchmarks(?:\.\w+)*)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_file_or_a_module_that_a_page_names_is_there(page):
    text = page.read_text(encoding="utf-8")
    assert [path for path in FILE.findall(text) if not (ROOT / path).exists()] == []
    assert [module for module in MODULE.findall(text) if importlib.util.find_spec(module) is None] == []


RESUMING = DOCS / "guides" / "resume-a-run.md"
RUN_ID = re.compile(r"\d{8}-\d{6}-\w+-\w+")


def shown() -> list[str]:
    """Return the lines of the page between Ctrl-C and the next command."""
    page = RESUMING.read_text(encoding="utf-8")
    (block,) = re.findall(r"^```console\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    _, _, after = block.partition("^C\n")
    output, _, _ = after.partition("$ ")
    return output.splitlines()


@pytest.mark.install  # CI runs it for every change
def test_an_interrupted_run_prints_what_the_guide_shows(processes, tmp_path):
    (tmp_path / "study.yaml").write_text(GROWING)
    processes.start("run", tmp_path / "study.yaml", "--set", "episode.steps=10000", cwd=tmp_path)
    run = processes.interrupt(tmp_path / "runs")
    assert processes.wait() == 130
    expected = [RUN_ID.sub(run.name, line) for line in shown()]
    printed = [line for line in processes.err.splitlines() if " %, step " not in line]  # of progress, every few seconds
    assert printed[-len(expected) :] == expected


DECISIONS_IN = DOCS / "decisions"
DECISIONS = {path.name: path.read_text(encoding="utf-8") for path in sorted(DECISIONS_IN.glob("[0-9]*.md"))}
STATUS = re.compile(r"# (?P<title>\d{4} .+)\n\nStatus: (?P<status>accepted|superseded by \[\d{4}\]\([\w.-]+\))")


def test_each_decision_has_a_status_and_is_listed_with_it():
    listed = re.findall(r"^\| \[(.+)\]\((.+)\) \| (.+) \|$", (DECISIONS_IN / "README.md").read_text(), re.MULTILINE)
    matches = {name: STATUS.match(page) for name, page in DECISIONS.items()}
    assert [name for name, match in matches.items() if match is None] == []
    assert listed == [(match["title"], name, match["status"]) for name, match in matches.items() if match]


def test_a_decision_is_superseded_by_one_that_says_so():
    for name, page in DECISIONS.items():
        for later in re.findall(r"^Status: superseded by \[\d{4}\]\((.+)\)", page, re.MULTILINE):
            assert f"({name})" in DECISIONS[later].splitlines()[2]
