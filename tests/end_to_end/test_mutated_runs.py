"""No command takes a damaged run for a whole one: a part of the campaign of ``benchmarks.mutated_runs``."""

import pytest

from benchmarks.mutated_runs import aimed, attack


@pytest.mark.slow
def test_mutated_runs_are_refused_or_told_or_give_equal_results(tmp_path):
    campaign = attack(count=20, seed=7, folder=tmp_path)
    assert campaign.findings == []
    resumed = {what: number for what, number in campaign.counts.items() if what.startswith("resume")}
    assert sum(resumed.values()) == 20 + len(aimed())
    assert min(resumed.values()) > 5, "resumed to equal results, and refused"
