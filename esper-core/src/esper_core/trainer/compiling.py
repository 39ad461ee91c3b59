"""What if torch's compiler is to run the host? It compiles the pass anew for each structure; where it cannot, it rests.

Only the pass in which the host is trained is compiled. Evaluations, trials and incubating seeds run as they are
written: their networks differ from batch to batch, and a compiler would be asked again and again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from esper_core.growth import KeptBuffers, disturbed
from esper_core.trainer.ways import structure_of

if TYPE_CHECKING:
    from esper_core.growth import Garden
    from esper_core.trainer.ways import Act, Notices

Compiler = Callable[[nn.Module], Any]

ABOUT = "the host cannot be compiled (compute.compile)"


def torch_compiler(model: nn.Module) -> Any:
    """``model`` under torch's compiler: for its sizes alone, apart from its likes, with the numbers that it would draw.

    Otherwise a size that changes would be compiled for in general, in an order that depends on who came first; and all
    networks of a class would share what torch allows in recompilations, and none of them be compiled any more.
    """
    apart: dict[str, Any] = {"dynamic": False, "isolate_recompiles": True, "options": {"fallback_random": True}}
    return torch.compile(model, **apart)


class Compiled:
    """The pass of one garden's network, compiled."""

    def __init__(self, garden: Garden, notices: Notices, compiler: Compiler = torch_compiler) -> None:
        self._garden = garden
        self._notices = notices
        self._compiler = compiler
        self._structure: Any = None
        self._compiled: Any = None

    @property
    def holds(self) -> bool:
        """Whether the next pass is the first of its structure: compilers save torch's generators and restore them."""
        return bool(structure_of(self._garden) != self._structure)

    def run(self, act: Act, inputs: Tensor, targets: Tensor) -> Tensor:
        """What ``act`` gives of the compiled network, or of the network itself where that does not go.

        What is the network's own fault is raised as without a compiler.
        """
        model, fresh = self._garden.model, self.holds
        if not fresh and self._compiled is None:
            return act(model, inputs, targets)
        kept = KeptBuffers(model) if fresh else None
        try:
            compiled = self._compiler(model) if fresh else self._compiled
            whole = act(cast("nn.Module", compiled), inputs, targets)
        except Exception as error:
            disturbed()
            if kept is not None:
                kept.put_back()
            whole = act(model, inputs, targets)
            compiled = None
            self._notices.once(ABOUT, error)
        self._structure, self._compiled = structure_of(self._garden), compiled
        return whole
