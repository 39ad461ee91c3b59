"""Patience: how long a component may take."""

from esper_run.watchdog import Patience


def test_patience_is_many_times_the_longest_request():
    patience = Patience()
    patience.record(30.0, ends_step=False)
    assert patience.seconds == 3600.0  # the first step may compile
    patience.record(0.1, ends_step=True)
    assert patience.seconds == 180.0
    patience.record(50.0, ends_step=False)
    assert patience.seconds == 1000.0
    assert Patience(2.5).seconds == 2.5
