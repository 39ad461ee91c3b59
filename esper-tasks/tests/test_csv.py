"""Tables become tasks, and mistakes are reported with line and column."""

import numpy as np
import pytest

from esper_tasks.own_data import csv_table
from esper_testing import check_task

DRAW = np.random.default_rng(0)
KINDS = ["cat", "emu", "owl"]
ROWS = [[f"{DRAW.normal():.4f}", f"{DRAW.normal():.4f}", KINDS[row % 3], str(row % 4)] for row in range(40)]
HEADER = ["wing", "tail", "kind", "legs"]


def written(folder, rows, *, delimiter=",", encoding="utf-8"):
    (folder / "birds.csv").write_text("\n".join(delimiter.join(row) for row in rows) + "\n", encoding=encoding)
    return str(folder / "birds.csv")


def changed(line, column, text):
    rows = [list(row) for row in (HEADER, *ROWS)]
    rows[line - 1][column] = text
    return rows


@pytest.mark.parametrize(
    ("target", "settings", "outputs", "features"),
    [
        ("kind", {}, 3, 3),
        ("kind", {"ignore": ["legs"]}, 3, 2),
        ("legs", {"ignore": ["kind"]}, 4, 2),
        ("wing", {"ignore": ["kind"], "predict": "number"}, 1, 2),
    ],
)
def test_a_table_makes_a_task_that_conforms(target, settings, outputs, features, tmp_path):
    given = {"path": written(tmp_path, [HEADER, *ROWS]), "target": target, **settings}
    assert [one.message for one in check_task(csv_table, settings=given) if not one.ok] == []
    task = csv_table(**given)
    assert (task.shape.kind, task.shape.example, task.shape.outputs) == ("vector", (features,), outputs)
    assert [len(task.split(name)) for name in ("train", "validation", "test")] == [28, 6, 6]


def test_header_and_delimiter_can_be_set(tmp_path):
    rows = [[str(row % 3), str(row), str(2 * row)] for row in range(40)]
    path = written(tmp_path, rows, delimiter=";", encoding="utf-8-sig")
    task = csv_table(path=path, target=1, header=False, delimiter=";", normalise=False)
    for name in ("train", "validation", "test"):
        split = task.split(name)
        assert (split.inputs[:, 0] % 3).tolist() == split.targets.tolist()
        assert (2 * split.inputs[:, 0]).tolist() == split.inputs[:, 1].tolist()


def test_integer_classes_are_sorted_as_numbers(tmp_path):
    rows = [[str(row), str([9, 10][row % 2])] for row in range(40)]
    split = csv_table(path=written(tmp_path, [["x", "y"], *rows]), target="y", normalise=False).split("train")
    assert (split.inputs[:, 0] % 2).tolist() == split.targets.tolist()


def test_large_numbers_keep_their_differences(tmp_path):
    rows = [[str(1_700_000_000 + row), str(row % 2)] for row in range(40)]
    split = csv_table(path=written(tmp_path, [["time", "y"], *rows]), target="y").split("train")
    assert len(set(split.inputs[:, 0].tolist())) == 28


@pytest.mark.parametrize(
    ("rows", "settings", "told"),
    [
        (changed(1, 0, "wing"), {"target": "knd"}, 'target: there is no column "knd"'),
        (changed(1, 0, "wing"), {"target": "knd"}, 'Did you mean "kind"?'),
        (changed(1, 0, "wing"), {"target": "kind", "ignore": ["leg"]}, 'ignore: there is no column "leg"'),
        (changed(7, 1, "long"), {}, 'birds.csv:7: column "tail" is not a finite number\nReceived: "long"'),
        (changed(7, 1, "nan"), {}, 'birds.csv:7: column "tail" is not a finite number'),
        (changed(9, 0, ""), {}, 'birds.csv:9: column "wing" is empty'),
        (changed(9, 2, " "), {}, 'birds.csv:9: column "kind" is empty'),
        (changed(1, 1, "wing"), {}, 'header: several columns of'),
        ([*changed(1, 0, "wing"), ["1", "2"]], {}, "birds.csv:42 has 2 cells, the first line has 4"),
        ([HEADER], {}, "has no examples"),
        ([], {}, "has no examples"),
        ([HEADER, *ROWS[:2]], {}, "too few different examples for 3 splits"),
        (changed(1, 0, "wing"), {"delimiter": ";"}, 'Set delimiter, for example to ";" or "\\t"'),
        (changed(1, 0, "wing"), {"target": 3, "header": False}, "header: true"),
        (changed(1, 0, "wing"), {"ignore": ["wing", "tail", "legs"]}, "target: no column is left"),
        (changed(1, 0, "wing"), {"target": "wing", "ignore": ["kind"]}, "predict: there are 40 classes"),
        (changed(1, 0, "wing"), {"predict": "number"}, 'column "kind" is not a finite number'),
    ],
)  # fmt: skip
def test_invalid_tables_are_reported_with_their_place(rows, settings, told, tmp_path, refusal):
    assert told in refusal(csv_table, path=written(tmp_path, rows), **{"target": "kind", **settings})


def test_a_file_that_is_not_text_is_reported(tmp_path, refusal):
    (tmp_path / "birds.csv").write_bytes(b"wing,kind\n1,\xff\xfe\n")
    assert "cannot be read: 'utf-8' codec" in refusal(csv_table, path=str(tmp_path / "birds.csv"), target="kind")
    assert "cannot be read" in refusal(csv_table, path=str(tmp_path), target="kind")
