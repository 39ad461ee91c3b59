"""Groups: which environments train and are evaluated as one program, and how.

Networks of one signature whose hosts no seed acts on form a group. Seeds that incubate do not matter: they are trained
by themselves, after the host. Which way a network takes follows from its settings and its structure alone, never from
the size of a group or from a clock. In a group each network has the same bits whatever its size, so the numbers of a
run depend neither on how many environments there are nor on where they are computed.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from contextlib import ExitStack
from time import perf_counter
from typing import TYPE_CHECKING, Final, TypeAlias

import torch

from esper_core.fused import HostTensors, NotFusedError, Program, refuse, signature_of, why_different
from esper_core.growth import Draws, OptimizerKeeper, describe_error
from esper_core.leyline.errors import plural
from esper_core.plugins.process_state import restore_defaults
from esper_core.trainer.batches import chunks, sent
from esper_core.trainer.forward import structure_of
from esper_core.trainer.measurements import count_parameters, evaluation_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from torch import Tensor

    from esper_core.growth import Transition
    from esper_core.leyline import SplitName
    from esper_core.trainer.environment import Environment, Recipe
    from esper_core.trainer.growing_network import GrowingNetwork
    from esper_core.trainer.measurements import Evaluation

    Batch: TypeAlias = tuple[Tensor, Tensor]

log = logging.getLogger("esper")

TRIAL_EXAMPLES: Final = 64
"""Training examples on which both ways are compared, once for each signature."""

MOST_PARAMETERS: Final = 50_000
"""Of a network in a group. A larger one keeps a core busy by itself, and is copied for longer than fusion saves."""


class LanePrograms(threading.local):
    """The programs of one lane, by signature: a program holds the tensors of its pass, so lanes cannot share one."""

    def __init__(self) -> None:  # called on each thread
        self.by_signature: dict[Hashable, Program] = {}


class Groups:
    """The groups of the environments of one recipe."""

    def __init__(self, recipe: Recipe) -> None:
        self._obstacle = obstacle_in(recipe)
        self.forget()

    def forget(self) -> None:
        """Forget all signatures, because other networks follow."""
        self._programs = LanePrograms()
        self._faults: dict[Hashable, str | None] = {}
        self._seen: dict[int, tuple[GrowingNetwork, Hashable, Hashable | None, str]] = {}

    def units(self, environments: Sequence[Environment], lanes: int) -> list[list[Environment]]:
        """Return what is computed as one: each group, in parts for so many lanes, and each other environment alone."""
        groups: dict[Hashable, list[Environment]] = {}
        for environment in environments:
            signature, _ = self._signature(environment)
            groups.setdefault(environment if signature is None else signature, []).append(environment)
        return [group[part::lanes] for group in groups.values() for part in range(min(lanes, len(group)))]

    def describe(self, environments: Sequence[Environment]) -> str:
        """Say how many networks are computed together, and why others are not."""
        looked_up = [self._signature(environment) for environment in environments]
        together = [signature for signature, _ in looked_up if signature is not None]
        alone = Counter(why for signature, why in looked_up if signature is None)
        parts = [f"{plural(len(together), 'network')} in {plural(len(set(together)), 'group')}"] if together else []
        parts += [f"{count} one after another: {why}" for why, count in alone.items()]
        return "; ".join(parts)

    def train(self, unit: Sequence[Environment]) -> list[list[Transition]]:
        """Train the environments of a unit for a step, and return the changes of stage of each."""
        if self._signature(unit[0])[0] is None:
            return [environment.train() for environment in unit]
        began, batches = perf_counter(), unit[0].recipe.network.batches
        transitions = [environment.open_step() for environment in unit]
        program, networks = self._program(unit[0]), [HostTensors.of(environment.model) for environment in unit]
        losses: list[list[Tensor]] = [[] for _ in unit]
        for _ in range(batches):
            parts = [environment.next_batch() for environment in unit]
            for environment in unit:
                environment.garden.tick()
            of_hosts = train_hosts(program, unit, networks, parts)
            for environment, part, loss, kept in zip(unit, parts, of_hosts, losses, strict=True):
                environment.network.incubate(environment.forward.losses(*part))
                kept.append(loss)
        for environment, changes, of_batches in zip(unit, transitions, losses, strict=True):
            changes += environment.close_step(of_batches)
        incubation = sum(environment.network.incubation_seconds for environment in unit)
        shared = (perf_counter() - began - incubation) / len(unit)
        for environment in unit:
            seconds = environment.network.incubation_seconds
            environment.seconds = shared + seconds, seconds
        return transitions

    def evaluate(self, unit: Sequence[Environment], split: SplitName) -> list[Tensor]:
        """Evaluate the networks of a unit as they act now, and return mean loss and metric of each."""
        if self._signature(unit[0])[0] is None:
            return [environment.evaluate(split) for environment in unit]
        try:
            evaluations = self._evaluations(unit, split)
            if changes := restore_defaults():
                refuse(changes)
        except Exception as error:
            restore_defaults()
            if len(unit) == 1:
                tell_of_fallback(unit[0], error)
                return [unit[0].evaluate(split)]
            return [self.evaluate([environment], split)[0] for environment in unit]
        return [
            environment.take_evaluation(split, evaluation)
            for environment, evaluation in zip(unit, evaluations, strict=True)
        ]

    def _evaluations(self, unit: Sequence[Environment], split: SplitName) -> list[Evaluation]:
        recipe, program = unit[0].recipe, self._program(unit[0])
        losses: list[Tensor] = []
        scores: list[Tensor] = []
        with ExitStack() as averages, torch.inference_mode():
            for environment in unit if split == "validation" else ():
                averages.enter_context(environment.network.averages.judged())
            stacks = program.stack([HostTensors.of(environment.model) for environment in unit])
            for inputs, targets in chunks(recipe.data[split], recipe.device):
                outputs = program.outputs(stacks, inputs.expand(len(unit), *inputs.shape)).flatten(0, 1)
                repeated = targets.expand(len(unit), *targets.shape).flatten(0, 1)
                losses.append(recipe.task.losses(outputs, repeated).unflatten(0, (len(unit), -1)))
                scores.append(recipe.task.scores(outputs, repeated).unflatten(0, (len(unit), -1)))
            rows = zip(torch.cat(losses, 1), torch.cat(scores, 1), strict=True)
            evidence = recipe.network.growth.evidence
            return [evaluation_of(recipe.task, *row, evidence) for row in rows]

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
        network, structure = environment.network, structure_of(environment.garden)
        seen = self._seen.get(environment.pool_index)
        if seen is None or seen[0] is not network or seen[1] != structure:
            signature, why = self._look_at(environment)
            self._seen[environment.pool_index] = seen = network, structure, signature, why
        return seen[2:]

    def _look_at(self, environment: Environment) -> tuple[Hashable | None, str]:
        recipe, model = environment.recipe, environment.model
        if environment.garden.blended:
            return None, "a seed is being blended in"
        if count_parameters(model) > MOST_PARAMETERS:
            return None, f"more than {MOST_PARAMETERS:,} parameters"
        try:
            signature = signature_of(model)
        except NotFusedError as error:
            return None, str(error)
        if signature not in self._faults:
            train = recipe.data["train"]
            inputs, targets = (sent(tensor[:TRIAL_EXAMPLES], recipe.device) for tensor in (train.inputs, train.targets))
            self._faults[signature] = why_different(model, Program(model), inputs, targets, recipe.task.losses)
        fault = self._faults[signature]
        return (signature, "") if fault is None else (None, fault)


def train_hosts(
    program: Program, unit: Sequence[Environment], networks: Sequence[HostTensors], parts: Sequence[Batch]
) -> Sequence[Tensor]:
    """Train each host on its batch, and return their losses."""
    inputs_EN, targets_EN = (torch.stack(tensors) for tensors in zip(*parts, strict=True))
    try:
        passed = program.train(networks, inputs_EN, targets_EN, unit[0].recipe.task.losses)
        if changes := restore_defaults():
            refuse(changes)
    except Exception as error:
        restore_defaults()
        if len(unit) == 1:
            # By itself the network says what is wrong, and no tensor of it was changed yet.
            tell_of_fallback(unit[0], error)
            return [unit[0].network.train_host(unit[0].forward.losses(*parts[0]))]
        # One of them is at fault; the others keep the bits that they have in any group.
        members = zip(unit, networks, parts, strict=True)
        return [train_hosts(program, [environment], [network], [part])[0] for environment, network, part in members]
    for environment in unit:
        environment.keeper.zero_grad()
    passed.hand_out(networks)
    OptimizerKeeper.step_hosts([environment.keeper for environment in unit])
    return passed.losses.unbind()


def tell_of_fallback(environment: Environment, error: Exception) -> None:
    """Log that a network was run by itself for one pass, which takes longer and gives other last digits."""
    what = f"arm {environment.arm}, RNG seed {environment.seed}"
    log.warning("a pass as one program failed (%s), and the network was run by itself: %s", what, describe_error(error))


def obstacle_in(recipe: Recipe) -> str | None:
    """Return what in the settings of a run prevents groups; None: nothing does."""
    compute = recipe.compute
    obstacles = {
        "compute.fused is false": not compute.fused,
        f"there is no table for {recipe.device.type}": recipe.device.type != "cpu",
        f"compute.precision is {compute.precision}": compute.precision not in ("float32", "auto"),
        "compute.micro_batches is above 1": compute.micro_batches > 1,
        "compute.compile is set": compute.compile,
        "host or blueprints draw random numbers": recipe.network.draws is not Draws.NEVER,
    }
    return next((obstacle for obstacle, holds in obstacles.items() if holds), None)
