"""The pool: the environments of every arm, and each phase of a step for all of them.

``Phases`` holds the phases of a step, for whatever trains a ``GrowingNetwork``; ``Pool`` are the environments of a run.
Environments of all arms are interleaved, and the order of their turns rotates from step to step. What runs on a lane
stays within one environment. What concerns several happens between, in the order of their indices: so the numbers are
the same for any number of lanes.
"""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch

from esper_core.governor import Act
from esper_core.growth import Draws, FaultBook, Host, Transition
from esper_core.leyline.errors import PluginError, Problem
from esper_core.leyline.lifecycle import Action, ActionMask, Op
from esper_core.leyline.signals import CALM, Cause, Reason, Signals
from esper_core.plugins.isolation import attributed_to, output_to_stderr
from esper_core.plugins.process_state import Guard, Scope
from esper_core.trainer.environment import Environment, Recipe
from esper_core.trainer.event_records import AnyEnvironment, Changes, Ending, LostSeeds
from esper_core.trainer.lanes import Lanes, lanes_for
from esper_core.trainer.roster import Roster, StudyPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor

    from esper_core.governor import GovernorDecision, RolledBack
    from esper_core.growth import Growth
    from esper_core.leyline import SplitName, State, Verdict
    from esper_core.trainer.growing_network import GrowingNetwork

T = TypeVar("T")


class LocalEnvironment(AnyEnvironment, Protocol):
    """An environment whose network lives in this process: it gives the network its batches and evaluations."""

    network: GrowingNetwork

    def train(self) -> list[Transition]:
        """Train for one decision step, and return the seeds' changes of stage."""

    def evaluate(self, split: SplitName) -> Tensor:
        """Return mean loss and metric on a split; on that for validation, set the network's ``evaluation``, too."""

    def measure_seeds(self, undisturbed: Tensor | None) -> None:
        """Measure the living seeds, after every environment was evaluated for validation."""

    def measure_again(self, step: int) -> Signals:
        """Return the signals of a network that was changed after its step was read, and keep them."""

    def mask(self) -> ActionMask:
        """Return what can be done now."""

    def state_dict(self) -> State:
        """Return the state between two steps."""

    def load_state_dict(self, state: State) -> None:
        """Restore what ``state_dict`` returned."""


N = TypeVar("N", bound=LocalEnvironment)


class Phases(Roster[N]):
    """The phases of a step, in their order, for environments in this process.

    Args:
        environments: In the order of their indices.
        pool_size: How many environments there are, with those in other processes.
        lanes: Where the work of each environment runs; None: in the caller's thread.
        twin: The arm of the twins.
    """

    def __init__(
        self,
        environments: Sequence[N],
        pool_size: int,
        faults: FaultBook,
        *,
        lanes: Lanes | None = None,
        twin: str | None = None,
    ) -> None:
        super().__init__(environments, pool_size, faults)
        self._lanes = lanes or Lanes()
        self._twin = twin
        self._numbers: dict[N, Tensor] = {}

    def begin(self) -> None:
        """Evaluate every environment before it is trained: that is the loss of guessing, from which governors start."""
        before = "in evaluation, before it was trained"
        guesses = self.evaluate_each(self.environments, "validation", before)
        for environment, (loss, _) in self._read(guesses):
            with self._lanes.on(environment.pool_index):
                environment.network.governor.begin(environment.network.garden, loss)

    def train(self, step: int) -> Changes:
        """Train every environment for one step, and return the seeds' changes of stage."""
        passed = self.train_each(self.turns(step), f"in training, step {step}")
        return [
            change
            for environment, transitions in passed.items()
            for change in self._record(environment, transitions, step)
        ]

    def evaluate(self, step: int) -> None:
        """Measure every environment on the validation split. The results stay on the device."""
        running = self.running()
        # All of them before any seed is measured: acting seeds are compared with their twin at this same step.
        self.evaluate_each(running, "validation", f"in evaluation, step {step}")
        twins = {environment.index: environment for environment in self.environments if environment.arm == self._twin}
        for environment in running if twins else ():
            self._lanes.hand(
                twins[environment.index].network.evaluation.evidence,
                twins[environment.index].pool_index,
                environment.pool_index,
            )

        def measure(environment: N) -> Tensor:
            twin = twins.get(environment.index)
            environment.measure_seeds(None if twin in (None, environment) else twin.network.evaluation.evidence)
            return environment.network.numbers()

        self._numbers = self.run_each(running, measure, f"when its seeds were measured, step {step}")

    def synchronise(self, step: int) -> None:
        """Read what was measured, and let the gates look at it; ``latest`` has the signals.

        This is the one place in a step where the host waits for the device. The signals of an episode that is over are
        its last ones.
        """
        for environment, numbers in self._read(self._numbers):
            environment.signals = environment.network.conclude_step(step, numbers)

    def heal(self, step: int) -> LostSeeds:
        """Take out seeds that broke a loss, measure their environments again, and return all seeds that were lost."""
        lost: LostSeeds = []
        for environment in self.running():
            with self._lanes.on(environment.pool_index):
                if environment.signals is not None and environment.network.heal(environment.signals):
                    self.measure_again(environment, step)
            # Those that failed in training, too. Not on lanes, which have no fixed order: taking seeds counts their
            # faults, and a count may withdraw a blueprint from the whole run.
            seeds = environment.network.lost.take()
            self._record(environment, [seed.ending for seed in seeds if seed.ending is not None], step)
            lost += [(environment.pool_index, seed) for seed in seeds]
        return lost

    def judge(self, opinions: Mapping[int, Verdict]) -> dict[int, GovernorDecision]:
        """Return the governor's decision for each environment whose episode goes on, given what plugins say of some."""
        decisions: dict[int, GovernorDecision] = {}
        for environment in self.running():
            assert environment.signals is not None
            with self._lanes.on(environment.pool_index):
                decision = environment.network.judge(environment.signals, opinions.get(environment.pool_index, CALM))
            if decision.truncated and environment.arm == self._twin:  # the others are compared with it to the end
                decision = replace(decision, act=Act.CONTINUE)
            decisions[environment.pool_index] = decision
        return decisions

    def carry_out(self, decisions: Mapping[int, GovernorDecision], step: int) -> tuple[dict[int, RolledBack], Changes]:
        """Roll environments back, and end episodes, as the governor decided.

        Where an episode ends, seeds that are not fossilised are pruned first.

        Returns:
            What was rolled back, by its pool index, and the seeds that were pruned.
        """
        changes: Changes = []
        rolled: dict[int, RolledBack] = {}
        for environment in self.running():
            decision = decisions.get(environment.pool_index)
            if decision is None or not (decision.truncated or decision.act is Act.ROLL_BACK):
                continue
            with self._lanes.on(environment.pool_index):
                if decision.truncated:
                    changes += self._prune(environment)
                    environment.over = True
                else:
                    rolled[environment.pool_index] = environment.network.roll_back(decision)
                self.measure_again(environment, step)
            if environment.arm == self._twin:  # what seeds gained over it is unknown now
                for other in self.environments:
                    if other.index == environment.index:
                        other.network.gains.forget_lead()
        return rolled, changes

    def masks(self) -> list[ActionMask]:
        """Return what can be done now, for each environment."""
        return [environment.mask() for environment in self.environments]

    def apply(self, actions: Sequence[Action] | Mapping[int, Action], step: int) -> tuple[Changes, LostSeeds]:
        """Carry out one action in each environment, and return what changed and which seeds could not be built.

        Actions are by pool index. Faults are counted after all of them: each was chosen by a mask that holds for the
        whole step.
        """
        changes: Changes = []
        active = [environment for environment in self.environments if actions[environment.pool_index].op is not Op.WAIT]
        for environment in active:
            with self._lanes.on(environment.pool_index):
                changes += self._record(
                    environment, environment.network.apply(actions[environment.pool_index], step), step
                )
        return changes, [
            (environment.pool_index, seed) for environment in active for seed in environment.network.lost.take()
        ]

    def conclude(self, step: int) -> tuple[Changes, list[Ending]]:
        """End the episodes: prune seeds that are not fossilised, and evaluate what is left on the test split.

        Where networks end with averages of their weights, those of the last batch are evaluated, too.
        """
        changes: Changes = []
        for environment in self.environments:
            with self._lanes.on(environment.pool_index):
                changes += self._prune(environment)
                # An episode that ended early was pruned and measured when it did.
                if not environment.over:
                    self.measure_again(environment, step)
        doing = "in the test at the end"
        averaged = [environment for environment in self.environments if environment.network.averages.is_final]
        tests = self._read(self.evaluate_each(averaged, "test", doing))
        last = {environment: metric for environment, (_, metric) in tests}
        for environment in averaged:
            with self._lanes.on(environment.pool_index):
                environment.network.averages.settle()
        endings: list[Ending] = []
        for environment, (loss, metric) in self._read(self.evaluate_each(self.environments, "test", doing)):
            assert environment.signals is not None
            grown = Host(environment.network.model).network.grown
            alone = self.why_alone(environment)
            endings.append(Ending(environment.signals, loss, metric, grown, last.get(environment), alone))
        return changes, endings

    def states(self) -> dict[int, State]:
        """Return the state of each environment, by its pool index."""
        states = self.run_each(
            self.environments, lambda environment: environment.state_dict(), "when its state was saved"
        )
        return {environment.pool_index: state for environment, state in states.items()}

    def load_states(self, states: Mapping[int, State], latest: Sequence[Signals]) -> None:
        """Restore the state and the latest signals of each environment, by its pool index."""
        for environment in self.environments:
            with self._lanes.on(environment.pool_index):
                environment.load_state_dict(states[environment.pool_index])
            environment.signals = latest[environment.pool_index]

    def run_each(self, environments: Sequence[N], act: Callable[[N], T], doing: str) -> dict[N, T]:
        """Return what ``act`` gives for each of these environments; ``doing`` says for messages what they are doing."""
        return {environment: act(environment) for environment in environments}

    def train_each(self, environments: Sequence[N], doing: str) -> dict[N, list[Transition]]:
        """Train each of these environments for a step, and return their seeds' changes of stage."""
        return self.run_each(environments, lambda environment: environment.train(), doing)

    def measure_again(self, environment: N, step: int) -> None:
        """Measure an environment again, which was changed after its step was read."""
        environment.measure_again(step)

    def evaluate_each(self, environments: Sequence[N], split: SplitName, doing: str) -> dict[N, Tensor]:
        """Evaluate each of these environments on a split, and return mean losses and metrics."""
        return self.run_each(environments, lambda environment: environment.evaluate(split), doing)

    def why_alone(self, environment: N) -> str:
        """Return why an environment is trained by itself; empty if it is not."""
        return ""

    def _read(self, numbers: Mapping[N, Tensor]) -> Iterable[tuple[N, list[float]]]:
        """Copy the numbers of some environments to the host; of none, where each episode is over."""
        if not numbers:
            return []
        # Lanes have streams of their own on a GPU, and a copy to the host waits only for the current one.
        self._lanes.drain([environment.pool_index for environment in numbers])
        # Each is copied by itself, because tensors on several GPUs cannot be joined there.
        on_host = torch.cat([tensor.reshape(-1).cpu() for tensor in numbers.values()])
        parts = on_host.split([tensor.numel() for tensor in numbers.values()])
        return [(environment, part.tolist()) for environment, part in zip(numbers, parts, strict=True)]

    @staticmethod
    def _prune(environment: N) -> Changes:
        changes = environment.network.garden.remove(Reason(Cause.EPISODE_END))
        return [(environment.pool_index, change) for change in changes]

    @staticmethod
    def _record(environment: N, transitions: Sequence[Transition], step: int) -> Changes:
        """Report transitions to the environment's governor, and return them with the environment's pool index."""
        environment.network.governor.record(transitions, step)
        return [(environment.pool_index, transition) for transition in transitions]


class Pool(Phases[Environment], StudyPool[Environment]):
    """The environments of every arm, in this process.

    Args:
        environments: How many environments each arm has.
        devices: Those of one index share a device, and the next index takes the next one; none: the recipe's.
        lanes: How many threads, or streams on each device; None: as many as fit.
        indices: Of the environments that live here, where others live in other processes.
        on_turn: Called with the pool index of each environment whose work begins.
    """

    def __init__(
        self,
        recipe: Recipe,
        arms: Sequence[str],
        environments: int,
        *,
        twin: str | None = None,
        devices: Sequence[torch.device] = (),
        lanes: int | None = 1,
        implants: Callable[[str, int], Sequence[Growth]] | None = None,
        indices: range | None = None,
        on_turn: Callable[[int], None] = lambda pool_index: None,
    ) -> None:
        faults = FaultBook()
        recipes = [recipe.on(device) for device in devices] or [recipe]
        built = [
            Environment(
                # By index: arms of one RNG seed are compared, so they compute on the same device.
                recipes[index % len(recipes)],
                arm=arm,
                index=index,
                pool_index=pool_index,
                faults=faults,
                implants=None if implants is None else partial(implants, arm),
            )
            for pool_index, (index, arm) in enumerate(product(range(environments), arms))
            if indices is None or index in indices
        ]
        if recipes[0].device.type == "cuda" and recipe.compute.fused == "gpu":
            lanes = 1  # a group is computed on one stream, which has to be that of each of its networks
        super().__init__(
            built,
            environments * len(arms),
            faults,
            lanes=lanes_for([environment.recipe.device for environment in built], lanes, on_turn),
            twin=twin,
        )
        from esper_core.trainer.groups import Groups  # here, since a loop of the user's own has no groups

        self.groups = Groups(recipe)
        self._deterministic = recipe.network.draws is Draws.NEVER
        scope = Scope.PROCESS
        if recipe.compute.compile:
            # As the compiler does in its first pass: the host would be blamed for it.
            sys.setrecursionlimit(max(sys.getrecursionlimit(), 2000))
            scope = Scope.SETTINGS  # a compiler draws from Python's generator
        self._guard = partial(Guard, scope=scope, memory=recipe.reports.memory)

    @staticmethod
    def obstacle_to_groups(recipe: Recipe, seed: int) -> str:
        """Return why networks of a recipe are trained one after another; "": they are not. ``seed`` builds one."""
        with closing(Pool(recipe, [""], 1)) as pool:
            with pool.environments[0].guard():
                pool.environments[0].reset(0, seed)
            return pool.why_alone(pool.environments[0])

    def reset(self, round_: int, first_seed: int) -> None:
        """Begin a round: environments of one index share a seed, whatever their arm."""
        for environment in self.environments:
            with self._lanes.on(environment.pool_index), environment.guard():
                environment.reset(round_, first_seed + environment.index)
        self.groups.forget()
        self.begin()

    def close(self) -> None:
        """Release threads, networks and measurements."""
        self._lanes.close()
        self.groups.forget()
        for environment in self.environments:
            environment.close()
        self.environments, self._numbers = [], {}

    def run_each(
        self, environments: Sequence[Environment], act: Callable[[Environment], T], doing: str
    ) -> dict[Environment, T]:
        """Return what ``act`` gives for each of these environments, each on its lane.

        Errors are attributed to the environment's host and seeds. ``doing`` completes the message.
        """
        units = [[environment] for environment in environments]
        return self._run_units(environments, units, lambda unit: [act(unit[0])], doing)

    def train_each(self, environments: Sequence[Environment], doing: str) -> dict[Environment, list[Transition]]:
        """Train each of these environments for a step, those of a group at once."""
        units = self.groups.units(environments, self._lanes.width)
        return self._run_units(environments, units, self.groups.train, doing)

    def evaluate_each(
        self, environments: Sequence[Environment], split: SplitName, doing: str
    ) -> dict[Environment, Tensor]:
        """Evaluate each of these environments on a split, those of a group at once."""
        units = self.groups.units(environments, self._lanes.width)
        return self._run_units(environments, units, lambda unit: self.groups.evaluate(unit, split), doing)

    def why_alone(self, environment: Environment) -> str:
        """Return why an environment is trained by itself; empty if it is not."""
        return self.groups.why_alone(environment)

    def measure_again(self, environment: Environment, step: int) -> None:
        """Measure an environment again by the way in which its twin is measured."""
        environment.measure_again(step, partial(self.groups.evaluate, [environment], "validation"))

    def _run_units(
        self,
        environments: Sequence[Environment],
        units: Sequence[Sequence[Environment]],
        act: Callable[[Sequence[Environment]], Sequence[T]],
        doing: str,
    ) -> dict[Environment, T]:
        """Return what ``act`` gives for each environment; those of a unit are computed together, on one lane."""
        by_index = {unit[0].pool_index: unit for unit in units}

        def at(pool_index: int) -> Sequence[T]:
            unit = by_index[pool_index]
            environment = unit[0]
            grown = {seed.blueprint for _, seed in environment.garden.all_seeds()}
            component = environment.recipe.reports.host + (f" with {', '.join(sorted(grown))}" if grown else "")
            with attributed_to(component, doing, environment.guard(Scope.SETTINGS)):
                return act(unit)

        components = dict.fromkeys(name for unit in units for environment in unit for name in environment.components())
        # Streams are idle where nothing draws, so a draw would change the numbers of whichever environment runs next.
        before = torch.get_rng_state() if self._deterministic else None
        # Lanes share the generators of Python and NumPy, so these are compared around all environments at once.
        with output_to_stderr(), self._guard(" or ".join(components)):
            done = self._lanes.run(by_index, at)
        if before is not None and not torch.equal(before, torch.get_rng_state()):
            torch.set_rng_state(before)
            hint = 'They drew none in the dry run before training. Set "randomness: always".'
            raise PluginError(Problem("E236", f"the host, a seed, or a sink drew random numbers {doing}", hint=hint))
        results = {
            environment: result
            for unit, of_unit in zip(units, done, strict=True)
            for environment, result in zip(unit, of_unit, strict=True)
        }
        # In the order of ``environments``, in which the caller reports what happened.
        return {environment: results[environment] for environment in environments}
