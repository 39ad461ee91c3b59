"""Incubation: train a seed before it acts on the host, in the shadow or on a branch.

    shadow    a second pass with the seed in it trains the seed alone; the host stays what it would have been
    branch    host and seed train together on a second set of the host's tensors; the host itself goes its own way

In both the host stays bit for bit its twin, and the seed learns from the loss that it would cause. A branch switches
its tensors and optimizer state in for its step on each batch, and out again. When its seed is kept it becomes the host;
when the seed is pruned the host is as if the seed had never been.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor

from esper_core.growth.dry_runs import KeptBuffers, device_of
from esper_core.growth.optimizer_steps import recalled, remembered, scaler_told, scaler_with
from esper_core.growth.seeds import Presence
from esper_core.growth.serialization import decode_state, encode_state, state_mismatch
from esper_core.leyline.protocols import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

    from esper_core.growth.optimizers import OptimizerKeeper, Share
    from esper_core.growth.random_streams import RandomStream
    from esper_core.growth.seeds import Seed
    from esper_core.growth.slots import Slot


class Incubation(Protocol):
    """One seed's way from its birth on.

    lasting: whether it goes on until the seed is kept or pruned, rather than ending when the seed is blended in.
    """

    lasting: bool

    def train(self, *parts: Callable[[nn.Module], Tensor]) -> None:
        """Train on one batch, after the host's own step.

        Each of ``parts`` runs the model on its part of the batch; what they return adds up to the mean loss.
        """
        ...

    def trial(self) -> AbstractContextManager[None]:
        """A block in which the model acts as it would with the seed at its target."""
        ...

    def commit(self) -> None:
        """The seed is kept: what was tried becomes what is."""
        ...

    def reopen(self) -> None:
        """Undo a commit, as long as nothing was trained since."""
        ...

    def take_loss(self) -> Tensor | None:
        """The mean loss of the batches since it was taken last, on the device; None where nothing was measured."""
        ...

    def state_dict(self) -> State:
        """All that it knows beside the seed, between two steps, when no loss is waited for."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Know what another one of this way knew, of a seed alike."""
        ...


def summed(losses: Sequence[Tensor]) -> Tensor:
    """The loss of a batch, of those of its parts."""
    return losses[0] if len(losses) == 1 else torch.stack(list(losses)).sum()


def _added(gradient: Tensor | None, more: Tensor | None) -> Tensor | None:
    if gradient is None or more is None:
        return more if gradient is None else gradient
    return gradient + more


class Shadow:
    """In the shadow of the host, on the loss that the seed would cause.

    After the host's own step the same batch passes once more, with the seed at its target. The loss of that pass trains
    the seed alone: the host's parameters get no gradient, its buffers are put back, and random numbers come from a
    stream of the seed's own.
    """

    lasting = False

    def __init__(self, model: nn.Module, slot: Slot, seed: Seed, keeper: OptimizerKeeper, stream: RandomStream) -> None:
        self._model = model
        self._slot = slot
        self._seed = seed
        self._keeper = keeper
        self._scaler = deepcopy(keeper.scaler)
        self._stream = stream
        self._losses: list[Tensor] = []

    def train(self, *parts: Callable[[nn.Module], Tensor]) -> None:
        """Train the seed on one batch."""
        share = self._keeper.seeds[self._seed.number]
        losses: list[Tensor] = []
        gradients: list[Tensor | None] = []
        with self.trial(), self._stream:
            for part in parts:
                loss = part(self._model)
                scaled = loss if self._scaler is None else self._scaler.scale(loss)
                more = torch.autograd.grad(scaled, share.parameters, allow_unused=True)
                gradients = list(map(_added, gradients, more)) if gradients else list(more)
                losses.append(loss.detach())
        self._keeper.step_seed(self._seed.number, gradients, self._scaler)
        self._losses.append(summed(losses))

    @contextmanager
    def trial(self) -> Iterator[None]:
        """The host as it is, with the seed at its target; the host's buffers are put back."""
        kept = KeptBuffers(self._model, without=[self._seed])
        try:
            with self._slot.trying(self._seed):
                yield
        finally:
            kept.put_back()

    def commit(self) -> None:
        """Nothing: the host is blended with, in place."""

    def reopen(self) -> None:
        """Nothing."""

    def take_loss(self) -> Tensor | None:
        """The mean loss of the batches since it was taken last."""
        losses, self._losses = self._losses, []
        return torch.stack(losses).mean() if losses else None

    def state_dict(self) -> State:
        """Its random numbers, and its scaler of the loss."""
        return State.of({"stream": encode_state(self._stream.state_dict()), "scaler": scaler_told(self._scaler)})

    def load_state_dict(self, state: State) -> None:
        """Draw and scale on as another one would have."""
        self._stream.load_state_dict(decode_state(state.part("stream")))
        self._scaler = scaler_with(state.part("scaler"), self._scaler, device_of(self._model))


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

    def state_dict(self) -> State:
        """The branch: its numbers, what its optimizers and its scaler remember, and its random numbers."""
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        paths = {id(module): path for path, module in self._model.named_modules()}
        numbers = {names[id(own)]: other for own, other in zip(self._of_host, self._numbers, strict=True)}
        fields = [(paths[id(module)], name, other) for module, name, other in self._fields]
        memories = [remembered(share.parameters, memory) for share, memory in self._memories]
        branch = encode_state(
            {"numbers": numbers, "fields": fields, "memories": memories, "stream": self._stream.state_dict()}
        )
        return State.of({"branch": branch, "scaler": scaler_told(self._scaler)})

    def load_state_dict(self, state: State) -> None:
        """Go on from the numbers and memories of another branch, from a host alike."""
        device = device_of(self._model)
        branch = decode_state(state.part("branch"), device)
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        if {names[id(own)] for own in self._of_host} != branch["numbers"].keys():
            why = f"the branch of seed {self._seed.number} is of other parameters"
            raise state_mismatch(why)
        for own, other in zip(self._of_host, self._numbers, strict=True):
            other.copy_(branch["numbers"][names[id(own)]])
        self._fields = [(self._model.get_submodule(path), name, other) for path, name, other in branch["fields"]]
        shares = (self._keeper.host, *self._keeper.fossils.values())
        memories = zip(shares, branch["memories"], strict=True)
        self._memories = [(share, recalled(share.parameters, memory)) for share, memory in memories]
        self._stream.load_state_dict(branch["stream"])
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


def begin(
    way: Literal["shadow", "branch"],
    model: nn.Module,
    slot: Slot,
    seed: Seed,
    keeper: OptimizerKeeper,
    stream: RandomStream,
) -> Incubation:
    """Incubate ``seed``, which lives in ``slot``; a seed of a loaded network that was on a branch gets a new one."""
    on_branch = way == "branch" or seed.presence is Presence.BRANCHED
    return (Branch if on_branch else Shadow)(model, slot, seed, keeper, stream)
