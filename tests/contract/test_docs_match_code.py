"""The pages agree with the code: options, events, stages, links; and the examples in docstrings are correct."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

from esper_core.hooks import spec
from esper_core.leyline import lifecycle
from tests.contract.conftest import ROOT, SOURCES
from tests.docs.test_answers import script

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
ERRORS = sorted((DOCS / "reference" / "errors").glob("E*.md"))
TEXTS = [*PAGES, *ROOT.glob("*.md"), *ROOT.glob("esper-*/README.md")]

CODE = re.compile(r"[\"'](E[1-5]\d\d)[\"']")
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")


def test_every_table_that_comes_from_the_code_has_a_page_and_is_as_the_code_has_it() -> None:
    generate = script(DOCS / "generate.py")
    pages = [*PAGES, ROOT / "CONTRIBUTING.md"]
    texts = {page.name: page.read_text(encoding="utf-8") for page in pages}
    stale = [name for name, text in texts.items() if generate.written(text) != text]
    assert stale == [], "`make docs` writes them"
    assert {match["name"] for text in texts.values() for match in generate.MARKED.finditer(text)} == set(
        generate.WRITERS
    )


def test_every_error_code_that_a_member_can_tell_has_a_page_and_every_page_a_code() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in SOURCES)
    assert {page.stem for page in ERRORS} == set(CODE.findall(sources))


@pytest.mark.parametrize("page", ERRORS, ids=lambda page: page.stem)
def test_an_error_page_has_a_title_a_cause_an_example_and_a_fix(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.match(rf"# {page.stem} \S.*\n\n(?!```)\S", text), "a title with the code, then the cause"
    examples = "".join(re.findall(r"^```(?:console|text)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL))
    shown = re.search(rf"^(?:warning: )?{page.stem} ", examples, flags=re.MULTILINE)
    assert shown, "no example shows this error"
    assert "\n**Fix.** " in text.rpartition("```\n")[2], "the fix follows the example"


def test_the_index_lists_the_code_and_title_of_every_error_page() -> None:
    index = (DOCS / "reference" / "errors" / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^- \[(E\d{3})\]\((E\d{3})\.md\): (\S.*)$", index, flags=re.MULTILINE)
    titles = [page.read_text(encoding="utf-8").partition("\n")[0].removeprefix(f"# {page.stem} ") for page in ERRORS]
    assert listed == [(page.stem, page.stem, title) for page, title in zip(ERRORS, titles, strict=True)]


def test_every_hook_has_a_heading_with_its_exact_arguments_and_every_stage_a_row() -> None:
    page = (DOCS / "reference" / "hooks.md").read_text(encoding="utf-8")
    headings = re.findall(r"^### (esper_.*)$", page, flags=re.MULTILINE)
    specs = [function for name, function in vars(spec).items() if name.startswith("esper_")]
    exact = [f"{hook.__name__}({', '.join(hook.__code__.co_varnames[: hook.__code__.co_argcount])})" for hook in specs]
    assert headings == exact
    page = (DOCS / "concepts" / "lifecycle.md").read_text(encoding="utf-8")
    assert [stage for stage in lifecycle.Stage if f"\n| {stage} | " not in page] == []


def test_no_link_leads_nowhere() -> None:
    targets_by_page = {
        page: [match["target"] for match in LINK.finditer(page.read_text(encoding="utf-8"))] for page in TEXTS
    }
    links = [(page, target.partition("#")[0]) for page, targets in targets_by_page.items() for target in targets]
    files = [(page, target) for page, target in links if target and "://" not in target]
    assert [(page, target) for page, target in files if not (page.parent / target).exists()] == []


MODULES = [
    path.with_suffix("").as_posix().rpartition("/src/")[2].replace("/", ".")
    for path in SOURCES
    if ">>>" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", MODULES)
def test_examples_of_docstrings_are_correct(module: str) -> None:
    assert doctest.testmod(importlib.import_module(module)).failed == 0
