"""The pool: the environments of every arm, and each phase of a step for all of them.

``Phases`` holds the phases of a step, for whatever trains a ``GrowingNetwork``; ``Pool`` are the environments of a run.
Environments of all arms are interleaved, and the order of their turns rotates from step to step. What runs on a lane
stays within one environment. What concerns several happens between, in the order of their places: so the numbers are
the same for any number of lanes.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import torch

from esper_core.governor import Act
from esper_core.growth import Draws, FaultBook, Transition, decode_state, encode_state, read_network, slots_of
from esper_core.leyline.actions import Action, ActionMask, Op
from esper_core.leyline.errors import PluginError, Problem
from esper_core.leyline.protocols import State
from esper_core.leyline.signals import CALM, Signals
from esper_core.plugins.isolation import attributed_to, output_to_stderr
from esper_core.plugins.process_state import Guard, Memory, Scope
from esper_core.trainer.environment import Environment, Recipe
from esper_core.trainer.event_records import Changes, Ending, LostSeeds, Member, plain_of, record_of
from esper_core.trainer.lanes import Lanes, lanes_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor

    from esper_core.governor import Decision, RolledBack
    from esper_core.growth import Growth
    from esper_core.leyline import SplitName, Verdict
    from esper_core.trainer.network import GrowingNetwork

T = TypeVar("T")
M = TypeVar("M", bound=Member)


class NetworkMember(Member, Protocol):
    """A member whose network lives in this process: it gives the network its batches and evaluations."""

    network: GrowingNetwork

    def train(self) -> list[Transition]:
        """Train for one decision step, and return the seeds' changes of stage."""

    def evaluate(self, split: SplitName) -> Tensor:
        """Return mean loss and metric on a split; on that for validation, set the network's ``evaluation``, too."""

    def measure_seeds(self, undisturbed: Tensor | None) -> None:
        """Measure the living seeds, after every member was evaluated for validation."""

    def measure_again(self, step: int) -> Signals:
        """Return the signals of a network that was changed after its step was read, and keep them."""

    def mask(self) -> ActionMask:
        """Return what can be done now."""

    def state_dict(self) -> State:
        """Return the state between two steps."""

    def load_state_dict(self, state: State) -> None:
        """Restore what ``state_dict`` returned."""


N = TypeVar("N", bound=NetworkMember)


class Roster(ABC, Generic[M]):
    """Environments by their places; the run has ``whole`` of them, where some live in other processes."""

    def __init__(self, environments: Sequence[M], whole: int, faults: FaultBook) -> None:
        self.environments = list(environments)
        self._whole = whole
        self.faults = faults

    @property
    def latest(self) -> list[Signals]:
        """The latest signals of each environment; [] before the first step."""
        return [one.signals for one in self.environments if one.signals is not None]

    def of_arm(self, *names: str) -> list[int]:
        """Return the places of the environments of these arms, in the order of their seeds."""
        return [one.place for one in self.environments if one.arm in names]

    def running(self) -> list[M]:
        """Return the environments whose episode has not ended. The episode of a twin never ends early."""
        return [one for one in self.environments if not one.over]

    def turns(self, step: int) -> list[M]:
        """Return ``running()`` in the order of turns in ``step``: it rotates, so that no arm is always first."""
        first = step % self._whole
        return sorted(self.running(), key=lambda one: (one.place < first, one.place))

    @property
    def time_shares(self) -> dict[str, float]:
        """Shares of the time of the latest ``train`` that belong to other regions of a step, by their names."""
        return {"incubate": self._incubation_share}

    @property
    def _incubation_share(self) -> float:
        """Share of the latest step's training that incubating seeds took, over all environments."""
        whole, incubation = (sum(times) for times in zip(*(one.seconds for one in self.environments), strict=True))
        return incubation / whole if whole else 0.0

    def state_dict(self) -> State:
        """Return the state between two steps, which any roster of the same environments can load."""
        return State.of(
            {
                "environments": State.of({str(place): state for place, state in self.states().items()}),
                "faults": self.faults.state_dict(),
                "latest": encode_state([plain_of(signals) for signals in self.latest]),
            }
        )

    def load_state_dict(self, state: State, *, in_round: bool) -> None:
        """Restore what ``state_dict`` returned; between two rounds only the faults of blueprints."""
        self.faults.load_state_dict(state.part("faults"))
        if in_round:
            latest = [record_of(Signals, plain) for plain in decode_state(state.part("latest"))]
            environments = state.part("environments")
            self.load_states({place: environments.part(str(place)) for place in range(self._whole)}, latest)

    @abstractmethod
    def states(self) -> dict[int, State]:
        """Return the state of each environment, by its place."""

    @abstractmethod
    def load_states(self, states: Mapping[int, State], latest: Sequence[Signals]) -> None:
        """Restore the state and the latest signals of each environment, by its place."""

    # The phases of a step, in their order.

    @abstractmethod
    def train(self, step: int) -> Changes:
        """Train every environment for one step, and return the seeds' changes of stage."""

    @abstractmethod
    def evaluate(self, step: int) -> None:
        """Measure every environment on the validation split."""

    @abstractmethod
    def synchronise(self, step: int) -> list[Signals]:
        """Read what was measured, let the gates look at it, and return ``latest``."""

    @abstractmethod
    def heal(self, step: int) -> LostSeeds:
        """Take out seeds that broke a loss, measure their environments again, and return all seeds that were lost."""

    @abstractmethod
    def judge(self, opinions: Mapping[int, Verdict]) -> dict[int, Decision]:
        """Return the governor's decision for each environment whose episode goes on, given what plugins say of some."""

    @abstractmethod
    def carry_out(self, decisions: Mapping[int, Decision], step: int) -> tuple[dict[int, RolledBack], Changes]:
        """Roll environments back, and end episodes, as the governor decided."""

    @abstractmethod
    def masks(self) -> list[ActionMask]:
        """Return what can be done now, for each environment."""

    @abstractmethod
    def apply(self, actions: Sequence[Action] | Mapping[int, Action], step: int) -> tuple[Changes, LostSeeds]:
        """Carry out one action in each environment, and return what changed and which seeds could not be built."""

    @abstractmethod
    def conclude(self, step: int) -> tuple[Changes, list[Ending]]:
        """End the episodes: prune seeds that are not fossilised, and evaluate what is left on the test split."""


class StudyPool(Roster[M]):
    """The environments of a study, which begin anew in each round."""

    is_ahead: bool = False
    """Whether some environments are ahead of the study, so that their states cannot be read now."""

    @abstractmethod
    def reset(self, round_: int, first_seed: int) -> None:
        """Begin a round: environments of one index share a seed, whatever their arm."""

    @abstractmethod
    def close(self) -> None:
        """Release everything. May be called twice."""


class Phases(Roster[N]):
    """The phases of a step for members in this process.

    Args:
        members: In the order of their places.
        whole: How many members there are, with those in other processes.
        lanes: Where the work of each member runs.
        twin: The arm of the twins.
        undisturbed: For a step, the evidence of a twin that is trained elsewhere.
    """

    def __init__(
        self,
        members: Sequence[N],
        whole: int,
        faults: FaultBook,
        *,
        lanes: Lanes,
        twin: str | None = None,
        undisturbed: Callable[[int], Tensor | None] = lambda step: None,
    ) -> None:
        super().__init__(members, whole, faults)
        self._lanes = lanes
        self._twin = twin
        self._undisturbed = undisturbed
        self._numbers: dict[N, Tensor] = {}

    # The phases of a step, in their order.

    def begin(self) -> None:
        """Evaluate every member before it is trained: that is the loss of guessing, from which governors start."""
        before = "in evaluation, before it was trained"
        guesses = self.run_each(self.environments, lambda one: one.evaluate("validation"), before)
        for one, (loss, _) in self._read(guesses):
            with self._lanes.on(one.place):
                one.network.governor.begin(one.network.garden, loss)

    def train(self, step: int) -> Changes:
        """Train every environment for one step, and return the seeds' changes of stage."""
        passed = self.run_each(self.turns(step), lambda one: one.train(), f"in training, step {step}")
        return [change for one, transitions in passed.items() for change in self._record(one, transitions, step)]

    def evaluate(self, step: int) -> None:
        """Measure every environment on the validation split. The results stay on the device."""
        running = self.running()
        self.run_each(running, lambda one: one.evaluate("validation"), f"in evaluation, step {step}")
        twins = {one.index: one for one in self.environments if one.arm == self._twin}
        for one in running if twins else ():
            self._lanes.hand(twins[one.index].network.evaluation.evidence, twins[one.index].place, one.place)

        def measure(one: N) -> Tensor:
            twin = twins.get(one.index)
            undisturbed = self._undisturbed(step) if twin is None else twin.network.evaluation.evidence
            one.measure_seeds(None if one is twin else undisturbed)
            return one.network.numbers()

        self._numbers = self.run_each(running, measure, f"when its seeds were measured, step {step}")

    def synchronise(self, step: int) -> list[Signals]:
        """Read what was measured, let the gates look at it, and return ``latest``.

        This is the one place in a step where the host waits for the device. The signals of an episode that is over are
        its last ones.
        """
        for one, numbers in self._read(self._numbers):
            one.signals = one.network.conclude_step(step, numbers)
        return self.latest

    def heal(self, step: int) -> LostSeeds:
        """Take out seeds that broke a loss, measure their environments again, and return all seeds that were lost."""
        lost: LostSeeds = []
        for one in self.running():
            with self._lanes.on(one.place):
                if one.signals is not None and one.network.heal(one.signals):
                    one.measure_again(step)
            own = one.network.lost.take()
            self._record(one, [seed.ending for seed in own if seed.ending is not None], step)
            lost += [(one.place, seed) for seed in own]
        return lost

    def judge(self, opinions: Mapping[int, Verdict]) -> dict[int, Decision]:
        """Return the governor's decision for each environment whose episode goes on, given what plugins say of some."""
        decisions: dict[int, Decision] = {}
        for one in self.running():
            assert one.signals is not None
            with self._lanes.on(one.place):
                decision = one.network.judge(one.signals, opinions.get(one.place, CALM))
            if decision.truncated and one.arm == self._twin:  # the others are compared with it to the end
                decision = replace(decision, act=Act.CONTINUE)
            decisions[one.place] = decision
        return decisions

    def carry_out(self, decisions: Mapping[int, Decision], step: int) -> tuple[dict[int, RolledBack], Changes]:
        """Roll environments back, and end episodes, as the governor decided.

        Where an episode ends, seeds that are not fossilised are pruned first.

        Returns:
            What was rolled back, by its place, and the seeds that were pruned.
        """
        changes: Changes = []
        rolled: dict[int, RolledBack] = {}
        for one in self.running():
            decision = decisions.get(one.place)
            if decision is None or not (decision.truncated or decision.act is Act.ROLL_BACK):
                continue
            with self._lanes.on(one.place):
                if decision.truncated:
                    changes += self._prune(one)
                    one.over = True
                else:
                    rolled[one.place] = one.network.roll_back(decision)
                one.measure_again(step)
            if one.arm == self._twin:  # what seeds gained over it is unknown now
                for other in self.environments:
                    if other.index == one.index:
                        other.network.gains.forget_lead()
        return rolled, changes

    def masks(self) -> list[ActionMask]:
        """Return what can be done now, for each environment."""
        return [one.mask() for one in self.environments]

    def apply(self, actions: Sequence[Action] | Mapping[int, Action], step: int) -> tuple[Changes, LostSeeds]:
        """Carry out one action in each environment, and return what changed and which seeds could not be built.

        Actions are by place. Faults are counted after all of them: each was chosen by a mask that holds for the whole
        step.
        """
        changes: Changes = []
        active = [one for one in self.environments if actions[one.place].op is not Op.WAIT]
        for one in active:
            with self._lanes.on(one.place):
                changes += self._record(one, one.network.apply(actions[one.place], step), step)
        return changes, [(one.place, seed) for one in active for seed in one.network.lost.take()]

    def conclude(self, step: int) -> tuple[Changes, list[Ending]]:
        """End the episodes: prune seeds that are not fossilised, and evaluate what is left on the test split."""
        changes: Changes = []
        for one in self.environments:
            with self._lanes.on(one.place):
                changes += self._prune(one)
                if not one.over:
                    one.measure_again(step)
        tests = self.run_each(self.environments, lambda one: one.evaluate("test"), "in the test at the end")
        endings: list[Ending] = []
        for one, (loss, metric) in self._read(tests):
            assert one.signals is not None
            grown = read_network(slots_of(one.network.model), type(one.network.model).__name__).grown
            endings.append(Ending(one.signals, loss, metric, grown))
        return changes, endings

    def states(self) -> dict[int, State]:
        """Return the state of each environment, by its place."""
        states = self.run_each(self.environments, lambda one: one.state_dict(), "when its state was saved")
        return {one.place: state for one, state in states.items()}

    def load_states(self, states: Mapping[int, State], latest: Sequence[Signals]) -> None:
        """Restore the state and the latest signals of each environment, by its place."""
        for one in self.environments:
            with self._lanes.on(one.place):
                one.load_state_dict(states[one.place])
            one.signals = latest[one.place]

    def run_each(self, members: Sequence[N], act: Callable[[N], T], doing: str) -> dict[N, T]:
        """Return what ``act`` gives for each of these members, each on its lane.

        ``doing`` says for messages what they are doing.
        """
        by_place = {one.place: one for one in members}
        done = self._lanes.run(by_place, lambda place: act(by_place[place]))
        return dict(zip(members, done, strict=True))

    def _read(self, numbers: Mapping[N, Tensor]) -> Iterable[tuple[N, list[float]]]:
        """Copy the numbers of some environments to the host; of none, where each episode is over."""
        if not numbers:
            return []
        self._lanes.drain(one.place for one in numbers)
        on_host = torch.cat([own.reshape(-1).cpu() for own in numbers.values()])
        parts = on_host.split([own.numel() for own in numbers.values()])
        return [(one, own.tolist()) for one, own in zip(numbers, parts, strict=True)]

    @staticmethod
    def _prune(one: N) -> Changes:
        return [(one.place, change) for change in one.network.garden.remove("the episode is over")]

    @staticmethod
    def _record(one: N, transitions: Sequence[Transition], step: int) -> Changes:
        """Report transitions to the member's governor, and return them with the member's place."""
        one.network.governor.record(transitions, step)
        return [(one.place, transition) for transition in transitions]


class Pool(Phases[Environment], StudyPool[Environment]):
    """The environments of every arm, in this process.

    Args:
        environments: How many environments each arm has.
        devices: Those of one index share a device, and the next index takes the next one; none: the recipe's.
        lanes: How many threads, or streams on each device; None: as many as fit.
        undisturbed: For a step, the evidence of a twin that is trained elsewhere.
        indices: Of the environments that live here, where others live in other processes.
        on_turn: Called with the place of each environment whose work begins.
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
        undisturbed: Callable[[int], Tensor | None] = lambda step: None,
        indices: range | None = None,
        on_turn: Callable[[int], None] = lambda place: None,
    ) -> None:
        faults = FaultBook()
        recipes = [recipe.on(device) for device in devices] or [recipe]
        made = [
            Environment(
                recipes[index % len(recipes)],
                arm=arm,
                index=index,
                place=place,
                faults=faults,
                implants=None if implants is None else partial(implants, arm),
            )
            for place, (index, arm) in enumerate(product(range(environments), arms))
            if indices is None or index in indices
        ]
        super().__init__(
            made,
            environments * len(arms),
            faults,
            lanes=lanes_for([environment.recipe.device for environment in made], lanes, on_turn),
            twin=twin,
            undisturbed=undisturbed,
        )
        self._deterministic = recipe.draws is Draws.NEVER
        self._scope = Scope.SETTINGS if recipe.compute.compile else Scope.PROCESS  # a compiler changes what is Python's
        self._memory = Memory(recipe.told)

    def reset(self, round_: int, first_seed: int) -> None:
        """Begin a round: environments of one index share a seed, whatever their arm."""
        for one in self.environments:
            with self._lanes.on(one.place), one.guard():
                one.reset(round_, first_seed + one.index)
        self.begin()

    def close(self) -> None:
        """Release threads, networks and measurements."""
        self._lanes.close()
        for environment in self.environments:
            environment.close()
        self.environments, self._numbers = [], {}

    def run_each(
        self, members: Sequence[Environment], act: Callable[[Environment], T], doing: str
    ) -> dict[Environment, T]:
        """Return what ``act`` gives for each of these environments, each on its lane.

        Errors are attributed to the environment's host and seeds. ``doing`` completes the message.
        """
        by_place, own_thread = {one.place: one for one in members}, threading.get_ident()

        def at(place: int) -> T:
            one = by_place[place]
            scope = self._scope if threading.get_ident() == own_thread else Scope.SETTINGS
            grown = {seed.blueprint for slot in one.garden.slots.values() for seed in slot.stack}
            component = "the host" + (f" with {', '.join(sorted(grown))}" if grown else "")
            with attributed_to(component, doing, one.guard(scope)):
                return act(one)

        components = dict.fromkeys(name for one in members for name in one.components())
        before = torch.get_rng_state() if self._deterministic else None
        with output_to_stderr(), Guard(" or ".join(components), self._scope, memory=self._memory):
            done = self._lanes.run(by_place, at)
        if before is not None and not torch.equal(before, torch.get_rng_state()):
            torch.set_rng_state(before)
            hint = 'They drew none in the dry run before training. Set "randomness: always".'
            raise PluginError(Problem("E236", f"the host, or a seed, drew random numbers {doing}", hint=hint))
        return dict(zip(members, done, strict=True))
