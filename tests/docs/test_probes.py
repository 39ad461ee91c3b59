"""What the guide on probes says they find: the stored results, and a probe of each host with one RNG seed."""

import json
from pathlib import Path

import pytest

from benchmarks.science import probes

STORED = Path(probes.__file__).with_suffix(".json")


def test_every_stored_probe_found_what_is_known_of_its_host_within_a_minute() -> None:
    found = json.loads(STORED.read_text(encoding="utf-8"))["probes"]
    cases = [(one["host"], one["task"]) for one in found]
    assert {case: cases.count(case) for case in probes.CASES} == dict.fromkeys(probes.CASES, probes.SEEDS)
    assert [one for one in found if not one["holds"] or one["seconds"] > probes.BUDGET] == []


@pytest.mark.slow
@pytest.mark.parametrize("case", probes.CASES)
def test_a_known_host_is_probed_right(case: tuple[str, str]) -> None:
    found = probes.probed(*case, seed=0)
    assert found["holds"], probes.line(found)
