"""Groups: which environments train and are evaluated as one program, and how.

Networks of one signature whose hosts no seed acts on form a group. A branch of such a network is one more network of
the group, with its seed as a guest; a seed in the shadow, a set, and a branch whose alpha moves are trained by
themselves. Which way a network takes follows from its settings and its structure alone, never from the size of a group
or from a clock. In a group each network has the same bits whatever else is in it, so the numbers of a run depend
neither on how many environments there are nor on where they are computed.
"""

from __future__ import annotations

import logging
import math
import threading
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import torch

from esper_core.fused import Guest, HostTensors, NotFusedError, Program, Stacks, refuse, signature_of, why_different
from esper_core.growth import Branch, Draws
from esper_core.leyline.constants import FULL
from esper_core.leyline.lifecycle import INCUBATING
from esper_core.plugins.process_state import restore_defaults
from esper_core.trainer.batches import chunks, sent
from esper_core.trainer.forward import structure_of
from esper_core.trainer.group_steps import GroupStep, Member, can_join, tell_of_fallback
from esper_core.trainer.measurements import evaluation_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from torch import Tensor

    from esper_core.growth import Seed, Slot, Transition
    from esper_core.growth.incubation import Incubation
    from esper_core.leyline import SplitName
    from esper_core.trainer.environment import Environment, Recipe
    from esper_core.trainer.growing_network import GrowingNetwork
    from esper_core.trainer.measurements import Evaluation

log = logging.getLogger("esper")

MOST_PARAMETERS: Final = 50_000
"""Of a network in a group. A larger one keeps a core busy by itself, and is copied for longer than fusion saves."""

MOST_NETWORKS: Final = 32
"""About so many are in a pass on a CPU: with more, it needs more memory and is no faster."""


class LanePrograms(threading.local):
    """The programs of one lane, by signature: a program holds the tensors of its pass, so lanes cannot share one."""

    def __init__(self) -> None:  # called on each thread
        self.by_signature: dict[Hashable, Program] = {}


class Groups:
    """The groups of the environments of one recipe."""

    def __init__(self, recipe: Recipe) -> None:
        self._obstacle = obstacle_in(recipe)
        self.singly = False
        """Whether each network has a pass of its own, with the same results, so that it is known whose code runs."""
        self.forget()

    def forget(self) -> None:
        """Forget all signatures, because other networks follow."""
        self._programs = LanePrograms()
        self._faults: dict[Hashable, str | None] = {}
        # Weakly, so that nothing here keeps a seed that is gone: guests know their seeds, and not their branches.
        self._seen: WeakKeyDictionary[GrowingNetwork, tuple[Hashable, Hashable | None, str]] = WeakKeyDictionary()
        self._guests: WeakKeyDictionary[Branch, tuple[Hashable, Guest | None]] = WeakKeyDictionary()
        # A number for each kind of guests: to compare long tuples in every pass takes as long as a layer.
        self._kinds: dict[Hashable, int] = {}
        self._numbers = count()

    def units(self, environments: Sequence[Environment], lanes: int) -> list[list[Environment]]:
        """Return what is computed as one: each group, in parts for so many lanes, and each other environment alone.

        Every lane gets about as many branches as the others, and the longest parts come first. On a CPU a lane takes
        several parts in turn where one would have more than about MOST_NETWORKS.
        """
        groups: dict[Hashable, list[Environment]] = {}
        for environment in sorted(environments, key=networks_of, reverse=True):
            signature, _ = self._signature(environment)
            groups.setdefault(environment if self.singly or signature is None else signature, []).append(environment)
        counted = [(group, parts_of(group, lanes)) for group in groups.values()]
        parts = [group[part::count] for group, count in counted for part in range(count)]
        return sorted(parts, key=lambda part: sum(map(networks_of, part)), reverse=True)

    def why_alone(self, environment: Environment) -> str:
        """Return why a network is in no group; "" if it is in one."""
        return self._signature(environment)[1]

    def train(self, unit: Sequence[Environment]) -> list[list[Transition]]:
        """Train the environments of a unit for a step, and return the changes of stage of each."""
        if self._signature(unit[0])[0] is None:
            return [environment.train() for environment in unit]
        transitions = [environment.open_step() for environment in unit]
        program, members = self._program(unit[0]), self._members(unit)
        losses = GroupStep(program, unit, members, singly=self.singly).train(unit[0].recipe.network.batches)
        for environment, changes, of_batches in zip(unit, transitions, losses, strict=True):
            changes += environment.close_step(of_batches)
        return transitions

    def _members(self, unit: Sequence[Environment], *, judged: bool = False) -> list[Member]:
        """Return the networks of a group: hosts, then branches with seeds of each kind; ``judged``: averaged ones."""
        hosts = [
            Member(environment, place, HostTensors.of(environment.model)) for place, environment in enumerate(unit)
        ]
        branches: dict[Hashable, list[Member]] = {}
        for host in hosts:
            averages = host.environment.network.averages
            for number, incubation in host.environment.garden.incubating.items():
                guest = self._guest(host.environment, incubation)
                if guest is not None and isinstance(incubation, Branch):
                    tensors = incubation.tensors() | (averages.of_branch(number) if judged else {})
                    network = replace(host.network.replaced(tensors), guest=guest.replaced(tensors))
                    branches.setdefault(guest.kind, []).append(replace(host, network=network, branch=incubation))
        return [*hosts, *(member for members in branches.values() for member in members)]

    def evaluate(self, unit: Sequence[Environment], split: SplitName) -> list[Tensor]:
        """Evaluate the networks of a unit as they act now, and return mean loss and metric of each."""
        if self._signature(unit[0])[0] is None:
            return [environment.evaluate(split) for environment in unit]
        evaluations = self._evaluations(unit, split)
        for member, evaluation in evaluations:
            if member.branch is not None and evaluation is not None:
                member.environment.network.gains.trials[member.branch.number] = evaluation.evidence
        return [
            environment.evaluate(split) if evaluation is None else environment.take_evaluation(split, evaluation)
            for environment, (_, evaluation) in zip(unit, evaluations, strict=False)
        ]

    def _evaluations(self, unit: Sequence[Environment], split: SplitName) -> list[tuple[Member, Evaluation | None]]:
        """Return the evaluations of hosts, then, on the validation split, of branches; None for those that fail."""
        program = self._program(unit[0])
        with ExitStack() as averages:
            for environment in unit if split == "validation" else ():
                averages.enter_context(environment.network.averages.judged())
            members = self._members(unit, judged=True)
            if split != "validation":
                members = members[: len(unit)]
            passes = [[member] for member in members] if self.singly else [members]
            evaluate = partial(evaluate_pass, program, split)
            return [pair for alike in passes for pair in zip(alike, run_isolated(evaluate, alike), strict=True)]

    def _program(self, environment: Environment) -> Program:
        """Return the program of this lane for a network of a group."""
        signature, _ = self._signature(environment)
        programs = self._programs.by_signature
        if signature not in programs:
            programs[signature] = Program(environment.model)
        return programs[signature]

    def _signature(self, environment: Environment) -> tuple[Hashable | None, str]:
        """Return the signature of a network that can be in a group, or None and why it cannot."""
        if self._obstacle is not None:
            return None, self._obstacle
        structure, seen = structure_of(environment.garden), self._seen.get(environment.network)
        if seen is None or seen[0] != structure:
            self._seen[environment.network] = seen = structure, *self._look_at(environment)
        return seen[1:]

    def _look_at(self, environment: Environment) -> tuple[Hashable | None, str]:
        model = environment.model
        try:
            if environment.garden.blended:
                refuse("a seed is being blended in")
            tensors = HostTensors.of(model)
            if tensors.parameter_count > MOST_PARAMETERS:
                refuse(f"more than {MOST_PARAMETERS:,} parameters")
            if not can_join(tensors, environment.keeper.owned_by_host()):
                refuse("it is not trained by fused Adams in float32")
            signature = environment.recipe.device, signature_of(model)
            with environment.guard():  # lanes are guarded as one, and this comes before them
                self._refuse_different(environment, signature)
        except NotFusedError as error:
            return None, str(error)
        return signature, ""

    def _guest(self, environment: Environment, incubation: Incubation) -> Guest | None:
        """Return the seed of a branch that is trained in the group of its host; None if it is trained by itself."""
        if not isinstance(incubation, Branch) or incubation.is_set:
            return None
        ((slot, seed),) = incubation.members
        strength = FULL if seed.stage in INCUBATING else seed.alpha.value
        if seed.alpha.moving or strength == 0.0:
            return None
        form, seen = (seed.stage, strength), self._guests.get(incubation)
        if seen is None or seen[0] != form:
            self._guests[incubation] = seen = form, self._look_at_guest(environment, slot, seed, strength)
        return seen[1] and replace(seen[1], tensors=HostTensors.of(seed))

    def _look_at_guest(self, environment: Environment, slot: Slot, seed: Seed, strength: float) -> Guest | None:
        try:
            guest = Guest.of(slot, seed, strength)
            of_host = {id(tensor) for tensor in HostTensors.of(environment.model).every()}
            owners = environment.keeper.owned_by_seed(seed.number)
            if not of_host.isdisjoint(map(id, guest.tensors.every())) or not can_join(guest.tensors, owners):
                refuse("it has tensors of the host, or is not trained by fused Adams in float32")
            guest = replace(guest, kind=self._kinds.setdefault(guest.kind, next(self._numbers)))
            signature, _ = self._signature(environment)
            self._refuse_different(environment, (signature, guest.kind), guest)
        except NotFusedError as error:
            log.info("%s trains by itself: %s", seed.title, error)
            return None
        return guest

    def _refuse_different(self, environment: Environment, signature: Hashable, guest: Guest | None = None) -> None:
        """Raise NotFusedError if networks of a signature compute otherwise together, or with this guest."""
        if signature not in self._faults:
            recipe, model = environment.recipe, environment.model
            train = recipe.data["train"]
            # Two batches, from all over the data: in data that are sorted each has other classes.
            places = torch.linspace(0, len(train) - 1, 2 * recipe.batch_size).long()
            inputs, targets = (sent(tensor[places], recipe.device) for tensor in (train.inputs, train.targets))
            self._faults[signature] = why_different(model, Program(model), inputs, targets, recipe.task.losses, guest)
        if fault := self._faults[signature]:
            refuse(fault)


def networks_of(environment: Environment) -> int:
    """Return how many networks are trained in an environment: the host, and each incubation of it."""
    return 1 + len(environment.garden.incubating)


def parts_of(group: Sequence[Environment], lanes: int) -> int:
    """Return into how many parts a group goes for so many lanes."""
    networks = MOST_NETWORKS * lanes if group[0].recipe.device.type == "cpu" else math.inf
    turns = max(1, math.ceil(sum(map(networks_of, group)) / networks))
    return min(lanes * turns, len(group))


def run_isolated(
    compute: Callable[[Sequence[Member]], Sequence[Evaluation]], members: Sequence[Member]
) -> list[Evaluation | None]:
    """Return what one pass computes for each network; if it fails, a pass for each; None for those that fail alone."""
    try:
        results = compute(members)
        if changes := restore_defaults():
            refuse(changes)
    except Exception as error:
        restore_defaults()
        if len(members) == 1:
            tell_of_fallback(members[0].environment, error)
            return [None]
        # One of them is at fault; the others keep the bits that they have in any group.
        return [result for member in members for result in run_isolated(compute, [member])]
    return list(results)


@torch.inference_mode()
def evaluate_pass(program: Program, split: SplitName, members: Sequence[Member]) -> list[Evaluation]:
    """Return the evaluations of networks on a split."""
    recipe = members[0].environment.recipe
    stacks = Stacks.of([member.network for member in members])
    losses: list[Tensor] = []
    scores: list[Tensor] = []
    for inputs, targets in chunks(recipe.data[split], recipe.device):
        (outputs_EN,) = program.outputs(stacks, inputs.expand(len(members), *inputs.shape))
        # Each network by itself, since the score of an example may depend on its batch, as R² does.
        losses.append(torch.stack([recipe.task.losses(outputs, targets) for outputs in outputs_EN]))
        scores.append(torch.stack([recipe.task.scores(outputs, targets) for outputs in outputs_EN]))
    rows = zip(torch.cat(losses, 1), torch.cat(scores, 1), strict=True)
    return [evaluation_of(recipe.task, *row, recipe.network.growth.evidence) for row in rows]


def obstacle_in(recipe: Recipe) -> str | None:
    """Return what in the settings of a run prevents groups; None: nothing does."""
    compute = recipe.compute
    obstacles = {
        "compute.fused is false": not compute.fused,
        "compute.fused is not gpu": recipe.device.type != "cpu" and compute.fused != "gpu",
        f"compute.precision is {compute.precision}": compute.precision not in ("float32", "auto"),
        "compute.micro_batches is above 1": compute.micro_batches > 1,
        "compute.compile is set": compute.compile,
        "host or blueprints draw random numbers": recipe.network.draws is not Draws.NEVER,
    }
    return next((obstacle for obstacle, holds in obstacles.items() if holds), None)
