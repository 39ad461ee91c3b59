"""Incubation: train a seed before it acts on the host, in the shadow or on a branch.

    shadow    a second pass with the seed in it trains the seed alone; the host is not changed
    branch    host and seed train together on a second copy of the host's tensors; the host itself trains without it

In both the host stays bit for bit its twin, and the seed learns from the loss that it would cause. A branch switches
its tensors and optimizer state in for its step on each batch, and out again. When its seed is fossilised the branch
becomes the host; when the seed is pruned the branch is dropped. The seeds of a set share one branch, and so one pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from esper_core.growth.dry_runs import KeptBuffers, device_of, is_plain
from esper_core.growth.examples import map_tensors
from esper_core.growth.optimizer_steps import decode_optimizer_state, decode_scaler, encode_scaler
from esper_core.growth.seeds import Presence
from esper_core.growth.serialization import decode_state, encode_state, state_mismatch
from esper_core.growth.slots import slots_of
from esper_core.leyline.errors import GrowthError, Problem
from esper_core.leyline.lifecycle import INCUBATING, Stage
from esper_core.leyline.protocols import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from torch import nn

    from esper_core.growth.optimizers import OptimizerKeeper, OwnedParameters
    from esper_core.growth.random_streams import RandomStream
    from esper_core.growth.seeds import Seed
    from esper_core.growth.slots import Slot

    PartLoss: TypeAlias = Callable[[nn.Module], Tensor]
    """Runs the model on its part of a batch, and returns its part of the mean loss."""


def _summed(losses: Sequence[Tensor]) -> Tensor:
    """Return the loss of a batch, given those of its parts."""
    return losses[0] if len(losses) == 1 else torch.stack(list(losses)).sum()


def _added(gradient: Tensor | None, more: Tensor | None) -> Tensor | None:
    if gradient is None or more is None:
        return more if gradient is None else gradient
    return gradient + more


def _refuse_frozen(seeds: Sequence[Seed]) -> None:
    """Raise GrowthError (E358) if the loop has frozen all parameters of seeds, which would be blamed for the error."""
    if {parameter.requires_grad for seed in seeds for parameter in seed.parameters()} == {False}:
        hint = "Call gardener.step(batch) before requires_grad_(False)."
        raise GrowthError(Problem("E358", "what grows is frozen, and cannot be trained", hint=hint))


class Incubation(ABC):
    """How one seed, or a set of seeds, is trained from its germination on.

    Attributes:
        lasting: whether it goes on until the seed is fossilised or pruned, rather than until it is blended in.
        after_step: called when a step was taken, while the trained weights are in the model.
        number: that of the seed; a set has one of its own, which no seed has.
        is_set: whether it trains a set, of which the seeds are marked so.
        stream: from which its passes draw random numbers.
    """

    lasting: bool
    stage = Stage.HOLDING
    """Of a set as gates see it: on its branch it is at its target, so that it waits for being kept."""

    def __init__(
        self,
        model: nn.Module,
        number: int,
        members: Sequence[tuple[Slot, Seed]],
        keeper: OptimizerKeeper,
        stream: RandomStream,
    ) -> None:
        self._model = model
        self.number = number
        self._members = tuple(members)
        self.is_set = all(seed.number != number for _, seed in members)
        for _, seed in members:
            seed.in_set = self.is_set
        self._keeper = keeper
        self.stream = stream
        # Its own, because an overflow in the seed's pass must not halve the scale at which the host trains.
        self._scaler = deepcopy(keeper.scaler)
        self._losses: list[Tensor] = []
        self.after_step: Callable[[], None] | None = None
        self._open()

    def _open(self) -> None:  # noqa: B027  a shadow has nothing to do
        """Copy what is trained apart from the host."""

    @property
    def members(self) -> list[tuple[Slot, Seed]]:
        """The seeds that it trains, each with its slot: those of its first ones that were not pruned."""
        return [(slot, seed) for slot, seed in self._members if any(seed is other for other in slot.seeds)]

    @abstractmethod
    def train(self, *parts: PartLoss) -> None:
        """Train on one batch, after the host's own step.

        Each of ``parts`` runs the model on its part of the batch; what they return adds up to the mean loss.
        """

    @abstractmethod
    def trial(self) -> AbstractContextManager[None]:
        """Return a context manager in which the model acts as if its seeds were at their targets."""

    @abstractmethod
    def state_dict(self) -> State:
        """Return its state beside the seed, between two steps, when no loss is waiting to be taken."""

    @abstractmethod
    def load_state_dict(self, state: State) -> None:
        """Continue from the state of another incubation of the same kind, whose seed was built alike."""

    def commit(self) -> None:  # noqa: B027  a shadow has nothing to do
        """Adopt the trained branch as the host, because the seed is fossilised; nothing in the shadow."""

    def reopen(self) -> None:  # noqa: B027  a shadow has nothing to do
        """Undo a commit, as long as nothing was trained since."""

    def take_loss(self) -> Tensor | None:
        """Return the mean loss of the batches since the last call, on the device; None if there were none."""
        losses, self._losses = self._losses, []
        return torch.stack(losses).mean() if losses else None


class Shadow(Incubation):
    """A second pass over the same batch, after the host's own step, with the seed at its target.

    The loss of that pass trains the seed alone: the host's parameters get no gradient, its buffers are put back, and
    random numbers come from a stream of the seed's own.
    """

    lasting = False

    def train(self, *parts: PartLoss) -> None:
        """Train the seed on one batch."""
        owner = self._keeper.seeds[self.number]
        losses: list[Tensor] = []
        gradients: list[Tensor | None] = []
        with self.trial(), self.stream:
            for part in parts:
                loss = part(self._model)
                scaled = loss if self._scaler is None else self._scaler.scale(loss)
                more = torch.autograd.grad(scaled, owner.parameters, allow_unused=True)
                gradients = list(map(_added, gradients, more)) if gradients else list(more)
                losses.append(loss.detach())
        self._keeper.step_seed(self.number, gradients, self._scaler)
        if self.after_step is not None:
            self.after_step()
        self._losses.append(_summed(losses))

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Run the ``with`` block on the host with the seed at its target; the host's buffers are put back."""
        # The seed's own buffers move on, since these passes are the only ones that it sees.
        ((slot, seed),) = self._members
        kept = KeptBuffers(self._model, without=[seed])
        try:
            slot.tried = (seed.number,)
            yield
        finally:
            slot.tried = ()
            kept.put_back()

    def state_dict(self) -> State:
        """Return its random stream and its gradient scaler."""
        return State.of({"stream": encode_state(self.stream.state_dict()), "scaler": encode_scaler(self._scaler)})

    def load_state_dict(self, state: State) -> None:
        """Continue with another shadow's random numbers and scale."""
        self.stream.load_state_dict(decode_state(state.part("stream")))
        self._scaler = decode_scaler(state.part("scaler"), self._scaler, device_of(self._model))


class Branch(Incubation):
    """Host and seeds together, on a copy of what trains in the host, of its buffers, and of its optimizer state.

    ``host_states`` are the copies of the host's optimizers' state, by parameter, to be changed in place.
    """

    lasting = True

    def _open(self) -> None:
        model = self._model
        for _, seed in self._members:
            seed.presence = Presence.BRANCHED
        self._owners = self._keeper.owned_by_host()  # asked for anew when it is switched in, since that takes long
        self._outside: tuple[Any, ...] | None = None
        """What the host had in the model, while the branch or a part of it is there."""
        self._is_inside = False
        """Whether all of the branch is in the model, so that what is there now is what it has learned."""
        seeds = [other for place in slots_of(model) for other in place.seeds]
        apart = [other for other in seeds if other.presence is Presence.BRANCHED]
        seed_modules = {id(part) for other in apart for part in other.modules()}
        of_seeds = {id(parameter) for other in apart for parameter in other.parameters()}
        self._of_host = [parameter for parameter in model.parameters() if id(parameter) not in of_seeds]
        self._ids_of_host = {id(parameter) for parameter in self._of_host}
        self._numbers: dict[nn.Parameter, Tensor] = {}
        self._copy_trained()
        copies: dict[int, Tensor] = {}  # a buffer that two modules share is one on the branch, too
        self._fields = [
            (module, name, copies.setdefault(id(buffer), buffer.detach().clone()))
            for module in model.modules()
            if id(module) not in seed_modules
            for name, buffer in module.named_buffers(recurse=False)
            if is_plain(buffer)
        ]
        self.host_states = [
            {parameter: map_tensors(of_parameter, torch.clone) for parameter, of_parameter in state.items()}
            for state in map(self._state_of_host, self._owners)
        ]

    def train(self, *parts: PartLoss) -> None:
        """Take one step of host and seeds together, on the branch's tensors.

        No step is taken if the host is frozen and the seed, being pruned, no longer acts.
        """
        losses: list[Tensor] = []
        seeds = [seed for _, seed in self.members]
        acts = any(seed.stage in INCUBATING or seed.alpha.value > 0.0 for seed in seeds)
        with self.trial(), self.stream:
            # Host and branch are the same parameter objects, so each step begins and ends without gradients.
            self._keeper.zero_grad()
            for part in parts:
                loss = part(self._model)
                losses.append(loss.detach())
                if acts or loss.requires_grad:
                    acts = True
                    if not loss.requires_grad:
                        _refuse_frozen(seeds)
                    self._keeper.backward(loss)
            if acts:
                self._keeper.step([seed.number for seed in seeds])
            self._keeper.zero_grad()
            if self.after_step is not None:
                self.after_step()
        self._losses.append(_summed(losses))

    def record(self, losses: Iterable[Tensor]) -> None:
        """Keep the losses of batches, on which the branch was trained elsewhere."""
        self._losses += losses

    def tensors(self) -> dict[int, Tensor]:
        """Return the branch's tensors, by the identities of those of the host in whose places they are switched in."""
        self._copy_trained()
        fields = {id(getattr(module, name)): other for module, name, other in self._fields}
        return {**{id(parameter): other for parameter, other in self._numbers.items()}, **fields}

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Run the ``with`` block on the branch's tensors, with its seeds acting."""
        try:
            try:
                self._switch_in()
                for slot, seed in self.members:
                    slot.tried = (*slot.tried, seed.number)
                yield
            finally:
                self._switch_out()
        finally:  # an interrupt may have come in the middle of it
            self._switch_out()

    def commit(self) -> None:
        """Make the branch the host."""
        self._switch_in()
        for _, seed in self.members:
            seed.presence = Presence.ACTING

    def reopen(self) -> None:
        """Undo a commit, or the part of it that was done."""
        for _, seed in self.members:
            seed.presence, seed.in_set = Presence.BRANCHED, self.is_set
        self._switch_out()

    def state_dict(self) -> State:
        """Return the branch: its tensors, the state of its optimizers and scaler, and its random stream."""
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        paths = {id(module): path for path, module in self._model.named_modules()}
        parameters = {names[id(parameter)]: other for parameter, other in self._numbers.items()}
        fields = [(paths[id(module)], name, other) for module, name, other in self._fields]
        owners = zip(self._keeper.owned_by_host(), self.host_states, strict=False)
        states = [[state.get(parameter) for parameter in owner.parameters] for owner, state in owners]
        branch = encode_state(
            {
                "parameters": parameters,
                "fields": fields,
                "optimizer_states": states,
                "stream": self.stream.state_dict(),
                "losses": self._losses,
            }
        )
        return State.of({"branch": branch, "scaler": encode_scaler(self._scaler)})

    def load_state_dict(self, state: State) -> None:
        """Continue with the tensors and optimizer state of another branch, whose host was built alike."""
        device = device_of(self._model)
        branch = decode_state(state.part("branch"), device)
        of_host = {name: other for name, other in self._model.named_parameters() if id(other) in self._ids_of_host}
        if not branch["parameters"].keys() <= of_host.keys():
            why = f"the branch of seed {self.number} has other parameters"
            raise state_mismatch(why)
        # What the saved branch did not copy was frozen, and the same as in the host, which is loaded by now.
        self._numbers = {
            of_host[name]: of_host[name].detach().clone().copy_(saved) for name, saved in branch["parameters"].items()
        }
        self._copy_trained()
        self._fields = [(self._model.get_submodule(path), name, other) for path, name, other in branch["fields"]]
        states = zip(self._keeper.owned_by_host(), branch["optimizer_states"], strict=True)
        self.host_states = [decode_optimizer_state(owner.parameters, encoded) for owner, encoded in states]
        self.stream.load_state_dict(branch["stream"])
        self._losses = branch["losses"]
        self._scaler = decode_scaler(state.part("scaler"), self._scaler, device)

    def _copy_trained(self) -> None:
        """Copy what requires gradients; frozen parameters stay the host's own, until a loop unfreezes them."""
        for parameter in self._of_host:
            if parameter.requires_grad and parameter not in self._numbers:
                self._numbers[parameter] = parameter.detach().clone()

    def _switch_in(self) -> None:
        """Put the tensors and optimizer state of the branch into the model."""
        self._switch_out()
        self._owners = self._keeper.owned_by_host()
        self._copy_trained()
        # All of it before anything changes, so that an interrupt loses nothing.
        self._outside = self._present()
        self._place((self._numbers, self._fields, self.host_states, self._scaler))
        self._is_inside = True

    def _switch_out(self) -> None:
        """Put those of the host back, also where an interrupt left only a part of the branch in the model."""
        for slot, _ in self._members:
            slot.tried = ()
        if self._outside is None:
            return
        if self._is_inside:
            self._numbers, self._fields, self.host_states, self._scaler = self._present()
            self._is_inside = False
        self._place(self._outside)
        self._outside = None

    def _present(self) -> tuple[Any, ...]:
        """Return what the model has now in the places of the branch, and the state of its optimizers and scaler."""
        numbers = {parameter: parameter.data for parameter in self._numbers}
        fields = [(module, name, getattr(module, name)) for module, name, _ in self._fields]
        return numbers, fields, list(map(self._state_of_host, self._owners)), self._keeper.scaler

    def _place(self, contents: tuple[Any, ...]) -> None:
        """Put what ``_present`` returned into the model."""
        numbers, fields, states, self._keeper.scaler = contents
        for parameter, data in numbers.items():
            # By ``data``: the objects stay those that optimizers, hooks and the loop hold.
            parameter.data = data
        for module, name, field in fields:
            setattr(module, name, field)
        # An owner that was added since the branch began comes last, and the branch has no state of it.
        for owner, state in zip(self._owners, states, strict=False):
            if owner.optimizer is not None:
                of_all = owner.optimizer.state
                of_all.update(state)
                if len(of_all) > len(state):  # seldom, since a set of tensors takes long to make
                    for parameter in self._state_of_host(owner).keys() - state.keys():
                        del of_all[parameter]

    def _state_of_host(self, owner: OwnedParameters) -> dict[Any, Any]:
        """Return the optimizer's state of each of the host's parameters; it may have other models' beside them."""
        state: dict[Any, Any] = {} if owner.optimizer is None else owner.optimizer.state
        if all(id(parameter) in self._ids_of_host for parameter in state):
            return dict(state)  # a copy of a dict does not hash, which takes long for tensors
        return {
            parameter: of_parameter for parameter, of_parameter in state.items() if id(parameter) in self._ids_of_host
        }
