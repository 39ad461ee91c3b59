"""Steps of groups: networks of one structure and their branches, trained as one for the batches of a decision step.

Their numbers lie in blocks for as long as the step lasts. Where a pass of several fails, each continues by itself, with
the bits that it has in any group; one that fails by itself is trained on that batch as a network in no group is.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from esper_core.fused import GRAPHS, HostTensors, TrainingState, refuse
from esper_core.growth import begun_state, describe_error, is_fast
from esper_core.plugins.process_state import restore_defaults
from esper_core.trainer.batches import next_batches

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import Any

    from torch import Tensor

    from esper_core.fused import Program
    from esper_core.growth import AdamSettings, Branch, GradientCollector, OwnedParameters
    from esper_core.trainer.environment import Environment
    from esper_core.trainer.forward import Loss

log = logging.getLogger("esper")


@dataclass(frozen=True, slots=True)
class Member:
    """A network in the passes of a group: a host, or a branch of it; ``place`` is that of its environment."""

    environment: Environment
    place: int
    network: HostTensors
    branch: Branch | None = None

    @property
    def lives(self) -> bool:
        """Whether its seed was not taken out since the step began."""
        return self.branch is None or self.branch.number in self.environment.garden.incubating

    def training_states(self) -> tuple[TrainingState, ...]:
        """Return what trains the network, and what trains its guest."""
        environment, keeper, branch = self.environment, self.environment.keeper, self.branch
        averages = environment.network.averages.list_all(None if branch is None else branch.number)
        owners = keeper.owned_by_host()
        states = states_of(owners) if branch is None else branch.host_states
        host = training_state(HostTensors.of(environment.model), owners, states, averages)
        if self.network.guest is None:
            return (host,)
        guest = self.network.guest
        owners = keeper.owned_by_seed(guest.seed.number)
        return host, training_state(guest.tensors, owners, states_of(owners), averages, owners[0].gradients)


def states_of(owners: Sequence[OwnedParameters]) -> list[dict[Any, Any]]:
    """Return the state of each owner's optimizer, by parameter."""
    return [{} if owner.optimizer is None else owner.optimizer.state for owner in owners]


def can_join(tensors: HostTensors, owners: Sequence[OwnedParameters]) -> bool:
    """Return whether a network can lie in a block: in float32, and trained by fused Adams."""
    owned = {id(parameter) for owner in owners if is_fast(owner.optimizer) for parameter in owner.parameters}
    return owned.issuperset(map(id, tensors.trained)) and {tensor.dtype for tensor in tensors.varying} == {
        torch.float32
    }


def training_state(
    registered: HostTensors,
    owners: Sequence[OwnedParameters],
    states: Sequence[dict[Any, Any]],
    averages: Mapping[int, tuple[Tensor, int]],
    gradients: GradientCollector | None = None,
) -> TrainingState:
    """Return what trains these parameters, given the optimizers' states of each owner, and averages by identity."""
    steps: dict[int, tuple[AdamSettings, dict[str, Any]]] = {}
    for owner, state in zip(owners, states, strict=True):
        for parameter in owner.parameters:
            assert is_fast(owner.optimizer)
            steps[id(parameter)] = owner.optimizer.settings, begun_state(state.setdefault(parameter, {}), parameter)
    return TrainingState(
        [steps[id(parameter)] for parameter in registered.trained],
        [averages.get(id(tensor)) for tensor in registered.varying],
        next((owner.settings.clip_norm for owner in owners if owner.settings is not None), None),
        gradients,
    )


def room_for(members: Sequence[Member], device: torch.device) -> list[Member]:
    """Return the members, and on a GPU the first again and again up to a power of two.

    So what is captured serves until a group outgrows it. Among branches the form of a pass changes anyway.
    """
    if device.type not in GRAPHS or any(member.branch is not None for member in members):
        return list(members)
    rows = 1 << (len(members) - 1).bit_length()
    return [*members, *[members[0]] * (rows - len(members))]


class JointTraining:
    """Members that are trained as one until the step ends or a pass fails."""

    def __init__(self, program: Program, members: Sequence[Member]) -> None:
        self.members, first = members, members[0].environment.recipe
        self._program, self._task = program, first.task
        for member in members:
            member.environment.keeper.pass_rates_to_fossils()
        self._states = [member.training_states() for member in members]
        self._losses: list[Tensor] = []
        rows = room_for(members, first.device)
        self._places = torch.tensor([member.place for member in rows], device=first.device)
        networks = [member.network for member in rows]
        self._training = program.lend_training(networks, first.network.growth.average)
        self._training.read([*self._states, *self._states[:1] * (len(rows) - len(members))])

    def train(self, inputs_EN: Tensor, targets_EN: Tensor) -> Exception | None:
        """Train on a batch of each environment; return why the pass failed, after which nothing has changed."""
        try:
            batch = [tensor.index_select(0, self._places) for tensor in (inputs_EN, targets_EN)]
            losses = self._training.compute(batch[0], batch[1], self._task.losses)
            if changes := restore_defaults():
                refuse(changes)
        except Exception as error:
            restore_defaults()
            return error
        self._training.step()
        self._losses.append(losses[: len(self.members)])
        return None

    def write(self, losses: Sequence[list[Tensor]]) -> None:
        """Give members what they have learned, and add the losses of each host to those of its environment."""
        if not self._losses:
            self._program.give_back(self._training)
            return
        self._training.write([member.network for member in self.members], self._states)
        by_member = torch.stack(self._losses, 1).unbind()
        hosts = self._training.hosts
        gradients = hosts.gradients.clone()  # those of the next step take their place
        for row, (member, of_member) in enumerate(zip(self.members, by_member, strict=True)):
            if member.branch is None:
                losses[member.place] += of_member.unbind()
                # A host is looked at for gradients that are not finite.
                for parameter, gradient in zip(
                    member.network.trained, hosts.layout.views(gradients[row]), strict=False
                ):
                    parameter.grad = gradient
            else:
                member.branch.record(of_member.unbind())
            if member.lives:
                number = None if member.branch is None else member.branch.number
                member.environment.network.averages.count(len(self._losses), number)
        self._program.give_back(self._training)

    def show(self, environments: Collection[Environment]) -> None:
        """Give the hosts of these environments their present weights, for what else is trained on them."""
        for row, member in enumerate(self.members):
            if member.branch is None and member.environment in environments:
                self._training.hosts.write(row, member.network)


class GroupStep:
    """A decision step of the environments of a group; ``singly``: each network has a pass of its own."""

    def __init__(
        self, program: Program, unit: Sequence[Environment], members: Sequence[Member], *, singly: bool
    ) -> None:
        self._program, self._unit, self._singly = program, unit, singly
        self._losses: list[list[Tensor]] = [[] for _ in unit]
        self._trainings = self._together(members)

    def train(self, batches: int) -> list[list[Tensor]]:
        """Train hosts and incubating seeds, and return the losses of each host."""
        for _ in range(batches):
            self._train_batch()
        for training in self._trainings:
            training.write(self._losses)
        return self._losses

    def _together(self, members: Sequence[Member]) -> list[JointTraining]:
        living = [member for member in members if member.lives]
        parts = [[member] for member in living] if self._singly else [living]
        return [JointTraining(self._program, part) for part in parts if part]

    def _train_batch(self) -> None:
        batch = next_batches([(environment.feed, environment.order) for environment in self._unit])
        for environment in self._unit:
            environment.garden.tick()
        self._trainings = [next_one for training in self._trainings for next_one in self._trained(training, batch)]
        branches = {id(member.branch) for training in self._trainings for member in training.members}
        left = {}
        for environment in self._unit:
            incubating = environment.garden.incubating.items()
            if numbers := [number for number, incubation in incubating if id(incubation) not in branches]:
                left[environment] = numbers
        for training in self._trainings if left else ():
            training.show(left)
        for environment, numbers in left.items():
            environment.network.incubate(losses_of(environment, batch, self._unit.index(environment)), numbers)
        if left and not all(member.lives for training in self._trainings for member in training.members):
            for training in self._trainings:  # to go on without seeds that were taken out
                training.write(self._losses)
            self._trainings = [renewed for training in self._trainings for renewed in self._together(training.members)]

    def _trained(self, training: JointTraining, batch: tuple[Tensor, Tensor]) -> list[JointTraining]:
        """Train members on a batch, and return those that go on together."""
        error = training.train(*batch)
        if error is None:
            return [training]
        training.write(self._losses)
        if len(training.members) > 1:
            # One of them is at fault; the others keep the bits that they have in any group.
            parts = [JointTraining(self._program, [member]) for member in training.members]
            return [next_one for part in parts for next_one in self._trained(part, batch)]
        (member,) = training.members
        tell_of_fallback(member.environment, error)
        self._train_alone(member, batch)
        return self._together([member])

    def _train_alone(self, member: Member, batch: tuple[Tensor, Tensor]) -> None:
        """Train a member on a batch as a network in no group: by itself it says what is wrong."""
        network, losses = member.environment.network, losses_of(member.environment, batch, member.place)
        if member.branch is not None:
            network.incubate(losses, [member.branch.number])
            return
        self._losses[member.place].append(network.train_host(losses))
        network.averages.take_batch()


def losses_of(environment: Environment, batch: tuple[Tensor, Tensor], place: int) -> list[Loss]:
    """Return the loss of an environment on its batch, as its network computes it."""
    inputs_EN, targets_EN = batch
    return environment.forward.losses(inputs_EN[place], targets_EN[place])


def tell_of_fallback(environment: Environment, error: Exception) -> None:
    """Log that a network was run by itself for one pass, which takes longer and gives other last digits."""
    what = f"arm {environment.arm}, RNG seed {environment.seed}"
    log.warning("a pass as one program failed (%s), and the network was run by itself: %s", what, describe_error(error))
