"""Names in other scripts stand in their columns: a terminal gives two to some letters, and to an accent none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper_core.leyline import Stage
from esper_core.leyline.columns import columns, cut, padded, wrapped
from esper_core.leyline.events import RunFinished, RunStarted, StageChanged
from esper_core.telemetry import encode
from esper_watch import read_history
from esper_watch.terminal import draw

SEED = StageChanged(
    round=0, arm="grown", seed=3, step=0, slot="early", seed_id=0, blueprint="a/conv",
    was=None, now=Stage.GERMINATED, parameters=10, reason="asked for",
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("twin", 4),
        ("", 0),
        ("双子", 4),
        ("ﾌﾀｺﾞ", 4),
        ("\N{FULLWIDTH LATIN CAPITAL LETTER A}b", 3),
        ("쌍둥이", 6),
        ("🌱", 2),
        ("🌱\N{VARIATION SELECTOR-16}", 2),
        ("e\N{COMBINING ACUTE ACCENT}", 1),
        ("กำ\N{THAI CHARACTER SARA I}", 2),
        ("a\N{COMBINING ENCLOSING CIRCLE}", 1),
        ("▁▂▃·░…", 6),
    ],
)
def test_a_text_takes_the_columns_that_a_terminal_gives_it(text: str, width: int) -> None:
    assert columns(text) == width


LETTERS = st.sampled_from("ab 双🌱é\N{COMBINING ACUTE ACCENT}\N{NO-BREAK SPACE}")


@given(text=st.text(LETTERS, max_size=30), width=st.integers(1, 30))
def test_what_is_cut_fits_and_loses_nothing_that_had_room(text: str, width: int) -> None:
    kept = cut(text, width)
    assert columns(kept) <= width
    if columns(text) <= width:
        assert kept == text
    else:
        assert text.startswith(kept.removesuffix("…"))
        assert columns(kept) >= width - 1, "one column stays free at most: where half of a letter would be"


@given(text=st.text(LETTERS, max_size=60), width=st.integers(8, 30))
def test_what_is_wrapped_fits_and_loses_no_word(text: str, width: int) -> None:
    lines = wrapped(text, width, first="> ", then="    ")
    assert max(map(columns, lines)) <= width
    assert "".join(lines).replace(" ", "") == ">" + text.replace(" ", "")


@given(text=st.text(LETTERS, max_size=20))
def test_what_is_padded_is_as_wide_as_was_asked_for(text: str) -> None:
    assert columns(padded(text, 50)) == 50


def drawn(run: Path, arms: tuple[str, ...], *events: object, width: int = 80) -> list[str]:
    start = RunStarted(run="r", arms=arms, rounds=1, environments=1, steps=8)
    told = [start, *events, RunFinished(status="failed", reason="双" * 200)]
    (run / "events.jsonl").write_text("".join(encode(event) + "\n" for event in told))
    return draw(read_history(run), width=width).splitlines()


def before(line: str, sign: str) -> int:
    """The columns that stand in front of something."""
    head, found, _ = line.partition(sign)
    assert found, line
    return columns(head)


NAMES = ["grown", "双子", "🌱 seeds", "re\N{COMBINING ACUTE ACCENT}seau", "ตัวที่หนึ่ง"]


@pytest.mark.parametrize("names", [NAMES, ["双子座の庭師", "twin"], NAMES[3:]], ids=["mixed", "wide", "accents"])
def test_arms_with_names_in_any_script_stand_in_their_columns(names: list[str], tmp_path: Path) -> None:
    lines = [line for line in drawn(tmp_path, tuple(names)) if "nothing yet" in line]
    assert len(lines) == len(names)
    widest = max(map(columns, names))
    assert {before(line, "nothing yet") for line in lines} == {2 + widest + 2 + 2}, "an empty curve, and two blanks"


@pytest.mark.parametrize("names", [NAMES, ["双子座の庭師", "twin"], NAMES[3:]], ids=["mixed", "wide", "accents"])
def test_lives_with_names_in_any_script_stand_in_their_columns(names: list[str], tmp_path: Path) -> None:
    seeds = [replace(SEED, seed_id=number, slot=name, blueprint="a/conv") for number, name in enumerate(names)]
    steps = [replace(one, step=1, was=Stage.GERMINATED, now=Stage.TRAINING) for one in seeds]
    lines = [line for line in drawn(tmp_path, ("grown",), *seeds, *steps) if line.startswith("  grown 3 ")]
    assert len(lines) == len(names)
    widest = max(columns(f"grown 3 {name} conv") for name in names)
    assert {before(line, "··") for line in lines} == {2 + widest + 2}


@pytest.mark.parametrize("width", [20, 33, 80])
def test_no_line_with_wide_letters_is_wider_than_the_terminal(tmp_path: Path, width: int) -> None:
    long = "双子座と植物園の庭師たち" * 5
    seeds = [replace(SEED, arm=long, slot=long)]
    lines = drawn(tmp_path, (long, "twin"), *seeds, width=width)
    assert max(map(columns, lines)) <= width
    assert len([line for line in lines if "…" in line]) >= 3, "the arm, the life and the reason"
