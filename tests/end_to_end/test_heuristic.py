"""The heuristic policy keeps useful seeds and no others.

What a single network keeps can depend on how a processor rounds, so that one network of several may differ.
"""

import pytest

GARDEN = """\
task: mnist1d
host: pointwise-mlp
slots:
  early: {blueprints: [pointwise, conv_light]}
  late: {blueprints: [mlp]}
policy: heuristic
growth: {nursery: 3}
environments: 4
capacity: false
"""
USEFUL = ("early", "blueprints/conv_light")
"""The host sees each position separately; it lacks neighbours, which no block in the late slot can provide. A pointwise
block in the early slot gains less, and learns faster."""

SHORT = ("environments=1", "episode={steps: 30, batches: 26}", "policy.settings={preview: 4, speed: 2, first: 0.25}")
"""Too short to distinguish useful blocks, but long enough to distinguish a convolution from useless ones."""


@pytest.fixture
def grown(run, tmp_path):
    """Run the configuration with changes; return what each environment kept, by slot and blueprint, and the results."""
    file = tmp_path / "garden.yaml"
    file.write_text(GARDEN)

    def call(*changes):
        ran = run(*changes, file=file)
        growths = [episode["grown"] for episode in ran.json("growth.json")["episodes"] if episode["arm"] == "heuristic"]
        kept = [[(fossil["slot"], fossil["blueprint"]) for fossil in fossils] for fossils in growths]
        return kept, ran.json("summary.json")["results"]

    return call


@pytest.mark.install  # CI runs it for every change
def test_run_05_it_keeps_a_useful_seed_and_prunes_useless_ones(grown):
    """Measured and unknown gains reach the policy, which keeps a useful seed and prunes others."""
    kept, _ = grown(*SHORT, "slots.early.blueprints=[conv_light]")
    assert kept == [[USEFUL]]


def useful(kept):
    """Return how many networks have the useful seed."""
    return sum(USEFUL in fossils for fossils in kept)


def is_late_empty(kept):
    """Return whether no network has anything in the late slot, where nothing pays."""
    return all(slot == "early" for fossils in kept for slot, _ in fossils)


@pytest.mark.slow
@pytest.mark.parametrize("gates", ["off", "strict"])
def test_from_a_nursery_it_keeps_the_best_in_nearly_every_environment(gates, grown):
    kept, results = grown(f'growth.gates="{gates}"', "environments=12")
    assert useful(kept) >= 9
    assert gates == "off" or is_late_empty(kept)
    assert results["comparisons"][0]["difference"] >= 0.2


@pytest.mark.slow
def test_without_a_nursery_it_keeps_the_first_that_pays_and_nothing_useless(grown):
    """The cheaper of the two pays, too, and germinates first."""
    kept, _ = grown("growth.nursery=1", "slots.early.blueprints=[conv_light, pointwise]")
    assert kept == [[("early", "blueprints/pointwise")]] * 4


@pytest.mark.slow
def test_where_neighbours_mean_nothing_it_keeps_only_what_gains_and_does_no_harm(grown):
    kept, results = grown("task=mnist1d-shuffled")
    assert useful(kept) <= 1
    assert is_late_empty(kept)
    assert results["comparisons"][0]["difference"] > -0.02


@pytest.mark.slow
@pytest.mark.parametrize("changes", [["twin=false"], ["growth.incubation=shadow"], ["slots.early.stack=2"]])
def test_it_keeps_the_useful_seed_without_a_twin_from_a_shadow_and_in_a_stack(changes, grown):
    kept, _ = grown("environments=3", *changes)
    assert useful(kept) >= 2
    assert is_late_empty(kept)
