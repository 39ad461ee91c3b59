"""The standard blueprints pass the conformance checks: one case for each blueprint and check, at all kinds of sites."""

from itertools import groupby

import pytest

from esper_testing.components import plugin_checks

COSTLY = {
    "gradient_within_two_steps",
    "loss_falls_within_fifty_steps",
    "host_is_unchanged_at_alpha_0",
    "host_stands_still_while_incubating",
    "lives_a_whole_life",
    "compiles",
    "imports_cleanly",
}
"""Checks that train or start an interpreter: in the fast suite for ``SAMPLE``, in the slow suite for the others."""

SAMPLE = {("conv_light", None), ("conv_light", "image"), ("low_rank", "vector")}
"""Blueprints and kinds of sites."""


def cases():
    """Yield the cases of one check and blueprint; those of the slow suite separately."""

    def group(check):
        return check.component, check.name, check.name in COSTLY and (check.component, check.case) not in SAMPLE

    for (component, name, slow), checks in groupby(sorted(plugin_checks("blueprints"), key=group), key=group):
        marks = (
            [pytest.mark.slow, pytest.mark.install] if slow else []
        )  # install: this suite must pass for every change
        yield pytest.param(list(checks), marks=marks, id=f"{component}-{name}{'-slow' if slow else ''}")


@pytest.mark.parametrize("checks", list(cases()))
def test_it_conforms(checks):
    for check in checks:
        try:
            check.run()
        except Exception as error:
            error.add_note(check.id)
            raise
