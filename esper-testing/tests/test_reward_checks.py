"""Each check of rewards fails for its own fault, and passes for a correct reward."""

import math
from dataclasses import replace

import pytest

from esper_core.leyline import RewardBreakdown, Stage
from esper_testing import check_reward


def size(network):
    """Return what grew as a share of the host."""
    return (network.parameters - network.host_parameters) / network.host_parameters


class Right:
    """Pays for the gain over the twin, less a price for size: the change of a potential."""

    def __init__(self, *, metric):
        self.metric = metric

    def value(self, network, twin):
        gain = self.metric.gain(network.validation_metric, twin.validation_metric)
        return 100 * gain - 20 * size(network) - 2 * network.fossils

    def terms(self, now, before, twin, twin_before):
        earlier = 0.0 if before is None else self.value(before, twin_before)
        return {"change": self.value(now, twin) - earlier}

    def score(self, now, before, twin, twin_before):
        return RewardBreakdown(self.terms(now, before, twin, twin_before))


class SaysAnotherTheSecondTime(Right):
    last = None

    def terms(self, now, before, twin, twin_before):
        usual_terms = super().terms(now, before, twin, twin_before)
        again, self.last = self.last is now, now
        return {"change": 0.0} if again else usual_terms


class ChangesWhatItIsHanded(Right):
    def score(self, now, before, twin, twin_before):
        breakdown = super().score(now, before, twin, twin_before)
        object.__setattr__(now, "train_loss", now.train_loss + 1.0)
        return breakdown


class OddTotal(RewardBreakdown):
    @property
    def total(self):
        return 1.0 + math.fsum(self.terms.values())


class PaysOneEpisodeOnly(Right):
    episodes, step = 0, 0

    def terms(self, now, before, twin, twin_before):
        self.episodes += before is None and self.step > 0
        self.step = now.step
        return super().terms(now, before, twin, twin_before) if not self.episodes else {"change": 0.0}


class CountsOnOrder(Right):
    step = -1

    def terms(self, now, before, twin, twin_before):
        backwards, self.step = now.step < self.step and before is not None, now.step
        return {"change": 0.0} if backwards else super().terms(now, before, twin, twin_before)


class DoesNotKnowDraining(Right):
    def terms(self, now, before, twin, twin_before):
        if any(seed.stage is Stage.DRAINING for seed in now.seeds):
            raise KeyError(Stage.DRAINING)
        return super().terms(now, before, twin, twin_before)


class TakesUpForDown(Right):
    """Pays the change of the potential with the wrong sign, except within a range of losses."""

    def terms(self, now, before, twin, twin_before):
        usual_terms = super().terms(now, before, twin, twin_before)
        return usual_terms if now.train_loss < 2.5 and now.validation_loss > 0.5 else {"change": -usual_terms["change"]}


def with_methods(**methods):
    return type("Changed", (Right,), methods)


def with_term(extra):
    """Return a reward with another term, ``extra(now, before)``."""
    return with_methods(terms=lambda reward, *signals: {**Right.terms(reward, *signals), "extra": extra(*signals[:2])})


def with_value(extra):
    """Return a reward whose potential has another summand, ``extra(network, twin)``."""
    return with_methods(value=lambda reward, network, twin: Right.value(reward, network, twin) + extra(network, twin))


HasNoNames = with_methods(terms=lambda reward, *signals: dict(enumerate(Right.terms(reward, *signals).values())))
DoesNotAddUp = with_methods(score=lambda reward, *signals: OddTotal(reward.terms(*signals)))
HasAPotentialOfItsOwn = with_methods(
    potential=lambda reward, signals, twin: {"change": reward.value(signals, twin), "size": float(signals.parameters)}
)
PutsOutInfinity = with_term(lambda now, before: math.inf if now.train_loss == 0 else 0.0)
CountsAnyGain = with_term(lambda now, before: math.fsum(0.0 * seed.gain.mean for seed in now.seeds if seed.gain))
PaysForTheHost = with_value(lambda network, twin: network.validation_metric)
PaysForALoss = with_value(lambda network, twin: 1e-3 * (network.validation_loss - twin.validation_loss))
PaysForSize = with_value(lambda network, twin: 21 * size(network))

# Other checks that a fault fails: random episodes contain draining seeds, too; and a term that is not finite, or a
# wrong total, also shows where nothing has grown.
BESIDE = {
    DoesNotKnowDraining: {"is_pure", "carries_nothing_over", "better_never_pays_less"}
    | {"lower_loss_never_pays_less", "larger_never_pays_more", "terms_add_up", "stays_finite"},
    PutsOutInfinity: {"stays_finite", "nothing_grown_earns_nothing"},
    DoesNotAddUp: {"nothing_grown_earns_nothing"},
    TakesUpForDown: {"larger_never_pays_more"},
}


def test_a_reward_without_a_fault_passes_every_check():
    results = check_reward(Right)
    assert {result.status for result in results} == {"passed"}
    assert "its_potential_telescopes[up]" not in {result.check for result in results}
    assert [result.check for result in results][:2] == ["is_pure[up]", "is_pure[down]"]


@pytest.mark.parametrize(
    ("factory", "check", "says"),
    [
        (SaysAnotherTheSecondTime, "is_pure", "then {'change': 0.0}"),
        (ChangesWhatItIsHanded, "is_pure", "modifies the signals of step 0"),
        (PutsOutInfinity, "terms_add_up", "the reward returned {'extra': inf} for Signals("),
        (HasNoNames, "terms_add_up", "the reward returned {0: "),
        (DoesNotAddUp, "terms_add_up", "add up to"),
        (PaysOneEpisodeOnly, "carries_nothing_over", "after other steps"),
        (CountsOnOrder, "carries_nothing_over", "after other steps"),
        (DoesNotKnowDraining, "takes_every_stage", "where a seed is draining"),
        (TakesUpForDown, "better_never_pays_less", "which is better"),
        (CountsAnyGain, "stays_finite", "the reward must be finite"),
        (PaysForALoss, "lower_loss_never_pays_less", "for a loss of"),
        (PaysForSize, "larger_never_pays_more", "for 1000 parameters less"),
        (PaysForTheHost, "nothing_grown_earns_nothing", "where nothing has grown"),
        (HasAPotentialOfItsOwn, "its_potential_telescopes", "the potential at its end is"),
    ],
)
def test_a_fault_fails_its_own_check(factory, check, says):
    messages = {result.check.partition("[")[0]: result.message for result in check_reward(factory) if not result.ok}
    assert says in messages.pop(check)
    assert set(messages) <= BESIDE.get(factory, set())


def test_metrics_of_both_directions_are_checked():
    class Upwards(Right):
        def __init__(self, *, metric):
            super().__init__(metric=replace(metric, direction="up"))

    broken = {result.check for result in check_reward(Upwards) if not result.ok}
    assert "better_never_pays_less[down]" in broken
    assert all(check.endswith("[down]") for check in broken)
