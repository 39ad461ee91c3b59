"""``esper compare`` and ``esper runs`` on real runs."""


def test_results_of_a_run_are_read_and_compared_as_printed(esper, small, tmp_path):
    runs = ("--runs-dir", tmp_path / "runs")
    told = esper("run", small, *runs, "--name", "first", "--json").json
    (listed,) = esper("runs", "list", *runs, "--json").json
    assert (listed["status"], listed["path"]) == ("done", told["run"])
    shown = esper("runs", "show", "first", *runs, "--json").json
    assert shown["summary"] == told
    assert shown["grown"]["schedule"] == {"blueprints/conv_light in early": 1.0}
    assert shown["grown"]["twin"] == {}
    compared = esper("compare", "first", *runs, "--json").json
    shown = [
        {key: one[key] for key in own}
        for one, own in zip(compared["comparisons"], told["results"]["comparisons"], strict=True)
    ]
    assert shown == told["results"]["comparisons"]
    assert compared["warnings"] == []
    assert "no difference shown, because a verdict needs 8 RNG seeds" in esper("compare", told["run"], *runs).out
