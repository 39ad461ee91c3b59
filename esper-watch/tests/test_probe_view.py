"""The views of a probe: they show every candidate, load nothing, and are safe with any names and figures."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from esper_grow.probes import ProbeFailure, ProbeResult, ProbeRow
from esper_watch.probe_view import NOTEBOOK_ROWS, probe_html, probe_page

HOSTILE = "<script>alert(1)</script>\x1b[31m"


def result_of(name: str, *, rows: int = 3, number: float = 0.25, verdict: Any = "pays") -> ProbeResult:
    """A probe in which everything is called ``name``, and some figures are ``number``."""
    row = ProbeRow(name, f"{name}/{name}", number, 0.01, 0.2, 0.1, 1234, None, 0.002, 450, 0.0, 0.0, True)
    return ProbeResult(
        verdict=verdict, reason=f"{name} pays.", rows=(row,) * rows,
        failed=(ProbeFailure(name, name, f"raised {name}"),),
        slots={name: "sequence (8, 40)"}, model=name, parameters=5678, host_steps=900, host_loss=number,
        curve=((0, 2.0), (900, number)), examples=800, budget=60.0, seconds=12.0, remarks=(name,),
    )  # fmt: skip


@pytest.mark.parametrize("view", [probe_html, probe_page])
@pytest.mark.parametrize(("name", "number"), [("stem", 0.25), (HOSTILE, float("nan")), ("", float("inf"))])
def test_a_view_is_whole_and_safe(view, name: str, number: float) -> None:
    html = view(json.loads(json.dumps(result_of(name, number=number).to_dict(), allow_nan=False)))
    assert html.count("1,234") == 3
    assert html.count('stroke="#cf5a00"') == 3  # the prices
    assert html.count("<circle") == (3 if number == 0.25 else 0)
    assert ("0.250 ± 0.010" in html) == (number == 0.25)
    assert not re.search(r"<script|\x1b|nan|(?<!-)inf|https?:|<link|@import", html)


def test_a_page_shows_more_than_a_notebook() -> None:
    result = result_of("stem", rows=NOTEBOOK_ROWS + 2).to_dict()
    picture, page = probe_html(result), probe_page(result)
    assert page.startswith("<!doctype html>")
    assert (picture.count("<tr>"), page.count("<tr>")) == (2 + NOTEBOOK_ROWS, 4 + NOTEBOOK_ROWS)
    assert "… and 2 more candidates." in picture
    assert "<p>stem: sequence (8, 40)</p>" in page
    assert "the stroke is the price" in page
    assert "--paper" in page, "the style of a report"
    assert "undecided" in probe_html({**result, "verdict": "undecided", "rows": []})


def test_the_core_finds_the_notebook_view_and_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """By entry points, from ``_repr_html_`` in a notebook and from the command that writes the page."""
    from esper_grow.probes import search
    from esper_run.cli import main

    assert "stem pays." in (result_of("stem")._repr_html_() or "")
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("model = loss = train = validation = None\n", encoding="utf-8")
    monkeypatch.setattr(search, "new_training", lambda *_: nn.Module())
    monkeypatch.setattr("esper_grow.probes.probe", lambda *_, **__: result_of("stem"))
    for page, status in (("page.html", 0), ("nowhere/page.html", 2)):
        with pytest.raises(SystemExit) as end:
            main(["probe", "mine.py", "--html", page])
        assert end.value.code == status
    assert Path("page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "E356 cannot write nowhere/page.html: there is no folder nowhere" in capsys.readouterr().err
