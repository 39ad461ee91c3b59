"""What would host and seed become together, if the host could be asked twice? A branch tells, and the host never knows.

A branch holds a second set of the host's numbers: parameters, buffers, and what the optimizers and the scaler of the
loss remember. They are switched in for the branch's step on each batch, and out again; no second module is needed, and
parameters keep their identity. When the seed is kept the branch becomes the host; when it is pruned, the host is as if
the seed had never been.
"""

from __future__ import annotations

from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from esper_core.growth.incubation import summed
from esper_core.growth.memory import heard, told, unfit
from esper_core.growth.optimizer_memory import recalled, remembered, scaler_told, scaler_with
from esper_core.growth.probe import device_of
from esper_core.growth.seed import Presence
from esper_core.leyline.protocols import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from esper_core.growth.optimizers import OptimizerKeeper, Share
    from esper_core.growth.randomness import RandomStream
    from esper_core.growth.seed import Seed
    from esper_core.growth.slot import Slot


class Branch:
    """Host and seed together, on numbers of their own."""

    lasting = True

    def __init__(self, model: nn.Module, slot: Slot, seed: Seed, keeper: OptimizerKeeper, stream: RandomStream) -> None:
        self._model = model
        self._slot = slot
        self._seed = seed
        self._seed.presence = Presence.BRANCHED
        self._keeper = keeper
        self._stream = stream
        self._losses: list[Tensor] = []
        self._committed = False
        own = {id(part) for other in slot.nursery for part in other.modules()}
        apart = {id(parameter) for other in slot.nursery for parameter in other.parameters()}
        self._of_host = [parameter for parameter in model.parameters() if id(parameter) not in apart]
        self._numbers = [parameter.detach().clone() for parameter in self._of_host]
        copies: dict[int, Tensor] = {}  # a buffer that two modules share is one on the branch, too
        self._fields = [
            (module, name, copies.setdefault(id(buffer), buffer.detach().clone()))
            for module in model.modules()
            if id(module) not in own
            for name, buffer in module.named_buffers(recurse=False)
        ]
        self._scaler = deepcopy(keeper.scaler)
        self._memories = [(share, _copied(share)) for share in (keeper.host, *keeper.fossils.values())]

    def train(self, *parts: Callable[[nn.Module], Tensor]) -> None:
        """One step of host and seed together, on the branch's numbers."""
        losses: list[Tensor] = []
        with self.trial(), self._stream:
            self._keeper.zero_grad()
            for part in parts:
                loss = part(self._model)
                self._keeper.backward(loss)
                losses.append(loss.detach())
            self._keeper.step([self._seed.number])
            self._keeper.zero_grad()
        self._losses.append(summed(losses))

    @contextmanager
    def trial(self) -> Iterator[None]:
        """The branch's numbers, with the seed acting."""
        self._switch()
        try:
            with self._slot.trying(self._seed):
                yield
        finally:
            self._switch()

    def commit(self) -> None:
        """The branch becomes the host."""
        self._switch()
        self._seed.presence = Presence.ACTING
        self._committed = True

    def reopen(self) -> None:
        """Undo a commit."""
        if self._committed:
            self._committed = False
            self._seed.presence = Presence.BRANCHED
            self._switch()

    def take_loss(self) -> Tensor | None:
        """The mean loss of the batches since it was taken last."""
        losses, self._losses = self._losses, []
        return torch.stack(losses).mean() if losses else None

    def state(self) -> State:
        """The branch: its numbers, what its optimizers and its scaler remember, and its random numbers."""
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        paths = {id(module): path for path, module in self._model.named_modules()}
        numbers = {names[id(own)]: other for own, other in zip(self._of_host, self._numbers, strict=True)}
        fields = [(paths[id(module)], name, other) for module, name, other in self._fields]
        memories = [remembered(share.parameters, memory) for share, memory in self._memories]
        branch = told({"numbers": numbers, "fields": fields, "memories": memories, "stream": self._stream.state()})
        return State.of({"branch": branch, "scaler": scaler_told(self._scaler)})

    def load(self, state: State) -> None:
        """Go on from the numbers and memories of another branch, from a host alike."""
        device = device_of(self._model)
        branch = heard(state.part("branch"), device)
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        if {names[id(own)] for own in self._of_host} != branch["numbers"].keys():
            why = f"the branch of seed {self._seed.number} is of other parameters"
            raise unfit(why)
        for own, other in zip(self._of_host, self._numbers, strict=True):
            other.copy_(branch["numbers"][names[id(own)]])
        self._fields = [(self._model.get_submodule(path), name, other) for path, name, other in branch["fields"]]
        shares = (self._keeper.host, *self._keeper.fossils.values())
        memories = zip(shares, branch["memories"], strict=True)
        self._memories = [(share, recalled(share.parameters, memory)) for share, memory in memories]
        self._stream.go_to(branch["stream"])
        self._scaler = scaler_with(state.part("scaler"), self._scaler, device)

    def _switch(self) -> None:
        """Change host and branch: what was in is out, and what was out is in."""
        for place, parameter in enumerate(self._of_host):
            parameter.data, self._numbers[place] = self._numbers[place], parameter.data
        for place, (module, name, other) in enumerate(self._fields):
            self._fields[place] = (module, name, getattr(module, name))
            setattr(module, name, other)
        self._keeper.scaler, self._scaler = self._scaler, self._keeper.scaler
        for place, (share, other_memory) in enumerate(self._memories):
            self._memories[place] = (share, _exchanged(share, other_memory))


def _copied(share: Share) -> dict[Any, Any]:
    """What an optimizer remembers of each parameter, as a copy."""
    if share.optimizer is None:
        return {}
    return {
        parameter: {key: value.clone() if isinstance(value, Tensor) else value for key, value in memory.items()}
        for parameter, memory in share.optimizer.state.items()
    }


def _exchanged(share: Share, memory: dict[Any, Any]) -> dict[Any, Any]:
    """Let the optimizer remember ``memory``; what it remembered before."""
    if share.optimizer is None:
        return {}
    before = dict(share.optimizer.state)
    share.optimizer.state.clear()
    share.optimizer.state.update(memory)
    return before
