"""Every run leaves a report, however it ended; the report of a killed run is made from its events."""

from tests.end_to_end.conftest import add_plugin


def test_a_run_leaves_its_report(esper, run, tmp_path):
    ran = run()
    assert ran.answer.out.splitlines()[-1] == f"Report: {ran.path / 'report.html'}"
    page = ran.text("report.html")
    assert "against twin: no difference shown" in page
    assert "A verdict needs at least 8 RNG seeds" in page
    assert "early" in page
    again = esper("report", ran.path, "--out", tmp_path / "again.html")
    assert (again.status, again.out) == (0, f"{tmp_path / 'again.html'}\n")
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == page


def test_a_failed_run_leaves_its_report(run, small):
    bad = (
        "from esper_core import RewardSpec, hookimpl\n"
        "class Bad:\n"
        "    def score(self, *a, **k): raise ValueError('no idea')\n"
        "@hookimpl\n"
        "def esper_register_rewards(registry): registry.add('bad', lambda **k: Bad(), RewardSpec(''))\n"
    )
    add_plugin(small, bad, "reward: bad\n")
    page = run(code=3).text("report.html")
    assert "The run failed." in page
    assert "no idea" in page
