"""What a Gardener does in a loop: it reports, keeps what pays, and ends."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from esper_core import EsperError
from esper_core.growth import slots_of
from esper_core.leyline import Action, Op

MakeLoop = Callable[..., Any]


def stages(tended: Any) -> list[str]:
    return [change.now.value for change in tended.changes]


def test_a_seed_lives_through_its_stages_and_is_kept(make_loop):
    loop = make_loop().tended()
    seen = loop.epochs(5)
    assert [stages(one) for one in seen] == [
        ["germinated"],
        ["training", "blending"],
        ["holding"],
        ["fossilized"],
        [],
    ]
    assert [one.blueprint for one in seen[3].kept] == [loop.variety.id]
    assert "stem: test/local-conv is kept" in str(seen[3])
    before = [parameter.detach().clone() for parameter in loop.seed.parameters()]
    loop.epoch()
    assert all(not torch.equal(one, own) for one, own in zip(before, loop.seed.parameters(), strict=True))


def test_a_pruned_seed_leaves_host_and_optimizer_as_they_were(make_loop):
    plan = {0: Action(Op.GERMINATE, "stem", "test/local-conv"), 2: Action(Op.PRUNE, "stem")}
    plain, grown = make_loop(), make_loop().tended(plan)
    assert [grown.stays_as(plain) for _ in range(5)] == [True] * 5
    assert len(grown.optimizer.state) == len(plain.optimizer.state)
    assert len(slots_of(grown.model).named("stem").seeds) == 0


def test_nothing_germinates_after_the_planned_steps_and_living_seeds_finish(make_loop):
    plan = {0: Action(Op.GERMINATE, "stem", "test/local-conv"), 1: Action(Op.ADVANCE, "stem")}
    loop = make_loop().tended(plan, steps=2)
    loop.epoch()
    loop.epoch()
    loop.policy.plan = {1: Action(Op.WAIT)}
    assert stages(loop.epoch()) == ["holding"]
    loop.policy.plan = {1: Action(Op.FOSSILISE, "stem")}
    assert stages(loop.epoch()) == ["fossilized"]
    assert loop.policy.seen == [0, 1, 1, 1]
    assert Op.GERMINATE in loop.policy.masks[0].ops["stem"]
    assert all(Op.GERMINATE not in mask.ops["stem"] for mask in loop.policy.masks[2:])


def test_closing_prunes_what_was_not_kept_and_takes_the_hooks_off(make_loop):
    loop = make_loop().tended({0: Action(Op.GERMINATE, "stem", "test/local-conv")})
    loop.epoch()
    loop.epoch()
    loop.gardener.close()
    loop.gardener.close()
    assert len(list(loop.model.parameters())) == len(loop.optimizer.param_groups[0]["params"])
    assert not loop.optimizer._optimizer_step_post_hooks
    with pytest.raises(EsperError, match="E346"):
        loop.gardener.step(loop.batches[0])
    loop.gardener = None
    loop.epoch()
