"""Does a block live well in a host? It disturbs nothing before its time, lives to the end, and leaves no trace.

Each of these is tried in a tiny host with the core's own garden.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from esper_core.leyline import Blend, Op, Stage
from esper_testing.sites import USUAL, expect
from esper_testing.tiny import SLOT, Plot

if TYPE_CHECKING:
    from torch import Tensor

    from esper_core import BlueprintSpec, Site
    from esper_core.leyline import SiteKind
    from esper_testing.sites import Factory

STEPS: Final = 3


def host_is_unchanged_at_alpha_0(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """With a newborn seed in its slot the host puts out, bit for bit, what it puts out without, under every blend."""
    plain = Plot.of(factory, spec, kind)
    before = {training: plain.outputs(training=training) for training in (True, False)}
    for blend in Blend:
        grown = Plot.of(factory, spec, kind)
        grown.apply(Op.GERMINATE, blend)
        for training, wanted in before.items():
            mode = "training" if training else "evaluation"
            same = torch.equal(grown.outputs(training=training), wanted)
            expect(same, USUAL[kind], f"changes what its host puts out at alpha 0, in {mode}, under the blend {blend}")


def host_stands_still_while_incubating(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """While the seed learns in isolation, the host's parameters and buffers are those of a host without it."""
    plain, grown = Plot.of(factory, spec, kind), Plot.of(factory, spec, kind)
    grown.apply(Op.GERMINATE)
    for _ in range(STEPS):
        plain.train()
        grown.train()
    moved = _differing(grown.host_state(), plain.host_state())
    expect(not moved, USUAL[kind], f"moves its host while it incubates: {', '.join(moved)}")


def lives_a_whole_life(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """Germinated, trained, blended in in any way, held and kept for good: no loss on the way that is not finite."""
    for blend in Blend:
        _live(Plot.of(factory, spec, kind), USUAL[kind], blend)


def _live(plot: Plot, site: Site, blend: Blend) -> None:
    plot.apply(Op.GERMINATE, blend)
    for _ in range(STEPS):
        plot.train()
    plot.apply(Op.ADVANCE)
    for _ in range(STEPS):
        plot.train()
    expect(plot.stage is Stage.HOLDING, site, f"is {plot.stage}, not holding, when its ramp is over")
    plot.apply(Op.FOSSILISE)
    for _ in range(STEPS):
        plot.train()
    sick = int((~torch.stack(plot.losses).isfinite()).sum())
    expect(sick == 0, site, f"makes {sick} of {len(plot.losses)} losses of its host not finite")


def pruning_leaves_no_trace(factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> None:
    """Grown, blended in and pruned without training, it leaves the host's outputs, state and modules as they were."""
    plot, site = Plot.of(factory, spec, kind), USUAL[kind]
    before, keys = plot.outputs(), [name for name, _ in plot.host.named_modules()]
    state = plot.host_state()
    plot.apply(Op.GERMINATE)
    plot.garden.open_step()
    plot.apply(Op.ADVANCE)
    _let_pass(plot)
    expect(plot.stage is Stage.HOLDING, site, f"is {plot.stage}, not holding, when its ramp is over")
    plot.apply(Op.PRUNE)
    _let_pass(plot)
    after = [name for name, _ in plot.host.named_modules()]
    expect(after == keys, site, f"leaves modules behind: {', '.join(sorted(set(after) - set(keys)))}")
    moved = _differing(plot.host_state(), state)
    expect(not moved, site, f"leaves its host changed after it was pruned: {', '.join(moved)}")
    expect(torch.equal(plot.outputs(), before), site, f"leaves a trace in the outputs of slot {SLOT}")


def _let_pass(plot: Plot) -> None:
    """Two decision steps in which alpha moves and the seed acts, but nothing is trained."""
    for _ in range(2):
        for _ in range(2):
            plot.garden.tick()
            plot.outputs()
        plot.garden.close_step()


def _differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    return [name for name in one if name not in other or not torch.equal(one[name], other[name])]
