"""The pool: the environments of every arm, and each phase of a step for all of them.

Environments of all arms are interleaved, and the order of their turns rotates from step to step. What runs on a lane
stays within one environment. What concerns several of them, or is counted over all, happens between, in the order of
their places: so the numbers are the same for any number of lanes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

import torch

from esper_core.governor import Act
from esper_core.growth import Draws, FaultBook, Transition, decode_state, encode_state, read_network, slots_of
from esper_core.leyline.actions import Action, ActionMask, Op
from esper_core.leyline.errors import PluginError, Problem
from esper_core.leyline.protocols import State
from esper_core.leyline.signals import CALM, Signals
from esper_core.plugins.isolation import attributed_to, output_to_stderr
from esper_core.trainer.environment import Environment, Recipe
from esper_core.trainer.event_records import Changes, Ending, LostSeeds, Member, plain_of, record_of
from esper_core.trainer.lanes import lanes_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from esper_core.governor import Decision, RolledBack
    from esper_core.growth import Growth
    from esper_core.leyline.signals import Verdict
    from esper_core.trainer.lanes import Lanes

T = TypeVar("T")
M = TypeVar("M", bound=Member)


class Roster(Generic[M]):
    """Environments by their places, which are the same whichever process an environment lives in.

    Args:
        environments: In the order of their places.
        before: How many environments stand before these, where they are part of a larger roster.
        whole: How many the larger roster has.
    """

    def __init__(self, environments: Sequence[M], before: int = 0, whole: int | None = None) -> None:
        self.environments = list(environments)
        self._before = before
        self._whole = len(self.environments) if whole is None else whole

    @property
    def members(self) -> Sequence[Member]:
        """The environments, as events know them."""
        return self.environments

    def of_arm(self, *names: str) -> list[int]:
        """Return the places of the environments of these arms, in the order of their seeds."""
        return [place for place, environment in enumerate(self.environments) if environment.arm in names]

    @property
    def over(self) -> bool:
        """Whether every episode ended before its last step. That of a twin never does."""
        return all(environment.over for environment in self.environments)

    def running(self) -> list[int]:
        """Return the places of the environments whose episode goes on."""
        return [place for place, environment in enumerate(self.environments) if not environment.over]

    def turns(self, step: int) -> list[int]:
        """Return ``running()`` in the order of turns in ``step``: it rotates, so that no arm is always first."""
        first = step % self._whole - self._before
        return sorted(self.running(), key=lambda place: (place < first, place))

    @property
    def incubation_share(self) -> float:
        """Share of the latest step's training that incubating seeds took, over all environments."""
        whole, incubation = (sum(times) for times in zip(*(one.seconds for one in self.environments), strict=True))
        return incubation / whole if whole else 0.0


def interleaved(arms: Sequence[str], indices: Sequence[int]) -> list[tuple[int, str]]:
    """Return index and arm of each place: those of one index, and so of one seed, stand side by side."""
    return [(index, arm) for index in indices for arm in arms]


class Pool(Roster[Environment]):
    """The environments of every arm, in this process.

    Args:
        recipe: What they have in common.
        arms: Names of the arms.
        environments: How many environments each arm has.
        twin: The arm that never grows, with which seeds are compared.
        devices: Those of one index share a device, and the next index takes the next one; none: the recipe's.
        lanes: How many threads, or streams on each device; None: as many as fit.
        implants: For an arm and a seed, what the host has grown from the start.
        undisturbed: For a step, the losses of a twin that is trained elsewhere.
        new_lanes: Makes the lanes for the environments' devices.
        indices: Of the environments that live here, where others live in other processes.
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
        new_lanes: Callable[[Sequence[torch.device], int | None], Lanes] = lanes_for,
        indices: range | None = None,
    ) -> None:
        self.faults = FaultBook()
        self._twin = twin
        self._undisturbed = undisturbed
        recipes = [recipe.on(device) for device in devices] or [recipe]
        here = range(environments) if indices is None else indices
        made = [
            Environment(
                recipes[index % len(recipes)],
                arm=arm,
                index=index,
                faults=self.faults,
                implants=None if implants is None else partial(implants, arm),
            )
            for index, arm in interleaved(arms, here)
        ]
        super().__init__(made, before=here.start * len(arms), whole=environments * len(arms))
        self._deterministic = recipe.draws is Draws.NEVER
        self._lanes = new_lanes([environment.recipe.device for environment in self.environments], lanes)
        self._numbers: dict[int, Tensor] = {}
        self.latest: list[Signals] = []
        """The latest signals of each environment."""

    # The phases of a step, in their order.

    def reset(self, round_: int, first_seed: int) -> None:
        """Begin a round: environments of one index share a seed, whatever their arm."""
        for place, environment in enumerate(self.environments):
            with self._lanes.on(place):
                environment.reset(round_, first_seed + environment.index)
        before = "in evaluation, before it was trained"
        guesses = self._on_lanes(self.running(), lambda one: one.evaluate("validation"), before)
        for place, (loss, _) in enumerate(self._read(guesses)):
            with self._lanes.on(place):
                self.environments[place].governor.begin(self.environments[place].garden, loss)

    def train(self, step: int) -> Changes:
        """Train every environment for one step, and return what time brought to the seeds."""
        turns = self.turns(step)
        passed = self._on_lanes(turns, Environment.train, f"in training, step {step}")
        changes: Changes = []
        for place, transitions in zip(turns, passed.values(), strict=True):
            changes += self._record(self.environments[place], transitions, step)
        return changes

    def evaluate(self, step: int) -> None:
        """Measure every environment on the validation split. The results stay on the device."""
        running = self.running()
        self._on_lanes(running, lambda one: one.evaluate("validation"), f"in evaluation, step {step}")
        twins = {self.environments[place].index: place for place in self.of_arm(self._twin or "")}
        for place in running if twins else ():
            twin = twins[self.environments[place].index]
            self._lanes.hand(self.environments[twin].losses(), twin, place)

        def measure(environment: Environment) -> Tensor:
            twin = self.environments[twins[environment.index]] if twins else None
            beside = self._undisturbed(step) if twin is None else next(iter(twin.losses()), None)
            environment.measure_seeds(None if twin is environment else beside)
            return environment.network.numbers()

        self._numbers = self._on_lanes(running, measure, f"when its seeds were measured, step {step}")

    def synchronise(self, step: int) -> list[Signals]:
        """Read what was measured, and let the gates look at it.

        This is the one place in a step where the host waits for the device. The signals of an episode that is over are
        its last ones.
        """
        read: dict[int, Signals] = {}
        for place, numbers in zip(self._numbers, self._read(self._numbers), strict=True):
            read[place] = self.environments[place].network.conclude_step(step, numbers)
        return self._keep([read.get(place) or self.latest[place] for place in range(len(self.environments))])

    def heal(self, signals_E: Sequence[Signals], step: int) -> tuple[list[Signals], LostSeeds]:
        """Take out seeds that broke a loss, and measure their environments again.

        Returns:
            The signals as they are now, and the seeds that were lost.
        """
        healed: list[Signals] = []
        lost: LostSeeds = []
        for place, (environment, signals) in enumerate(zip(self.environments, signals_E, strict=True)):
            sick = not environment.over and environment.network.is_sick(signals)
            with self._lanes.on(place):
                changed = sick and environment.network.heal(signals)
                healed.append(environment.measure_again(step) if changed else signals)
            own = environment.network.lost.take()
            lost += [(environment, one) for one in own]
            self._record(environment, [one.ending for one in own if one.ending is not None], step)
        return self._keep(healed), lost

    def judge(self, signals_E: Sequence[Signals], opinions: Mapping[int, Verdict]) -> dict[int, Decision]:
        """Return the governor's decision for each environment whose episode goes on, by its place.

        Args:
            signals_E: The signals of the step.
            opinions: What plugins say about an environment's health, by its place.
        """
        decisions: dict[int, Decision] = {}
        for place in self.running():
            environment = self.environments[place]
            with self._lanes.on(place):
                decision = environment.network.judge(signals_E[place], opinions.get(place, CALM))
            if decision.truncated and environment.arm == self._twin:  # the others are compared with it to the end
                decision = replace(decision, act=Act.CONTINUE)
            decisions[place] = decision
        return decisions

    def carry_out(
        self, signals_E: Sequence[Signals], decisions: Mapping[int, Decision], step: int
    ) -> tuple[list[Signals], dict[int, RolledBack], Changes]:
        """Roll environments back, and end episodes, as the governor decided.

        An environment that was rolled back is measured again. So is one whose episode ends here: seeds that are not
        fossilised are pruned first.

        Returns:
            The signals as they are now, what was rolled back, by its place, and the seeds that were pruned.
        """
        now = list(signals_E)
        changes: Changes = []
        rolled: dict[int, RolledBack] = {}
        for place, decision in decisions.items():
            environment = self.environments[place]
            with self._lanes.on(place):
                if decision.act is Act.ROLL_BACK:
                    rolled[place] = environment.network.roll_back(decision)
                    now[place] = environment.measure_again(step)
                    if environment.arm == self._twin:
                        self._forget_leads(environment.index)
                elif decision.truncated:
                    changes += [(environment, t) for t in environment.garden.remove("the episode is over")]
                    now[place] = environment.measure_again(step)
                    environment.over = True
        return self._keep(now), rolled, changes

    def masks(self) -> list[ActionMask]:
        """Return what can be done now, for each environment."""
        return [environment.mask() for environment in self.environments]

    def apply(self, actions: Sequence[Action], step: int) -> tuple[Changes, LostSeeds]:
        """Carry out one action in each environment, and return what changed and which seeds could not be built.

        Faults are counted after all actions: each was chosen by a mask that holds for the whole step.
        """
        changes: Changes = []
        lost: LostSeeds = []
        active = [(place, action) for place, action in enumerate(actions) if action.op is not Op.WAIT]
        for place, action in active:
            environment = self.environments[place]
            with self._lanes.on(place):
                changes += self._record(environment, environment.network.apply(action, step), step)
        for place, _ in active:
            environment = self.environments[place]
            lost += [(environment, one) for one in environment.network.lost.take()]
        return changes, lost

    def conclude(self, step: int) -> tuple[Changes, list[Ending]]:
        """End the episodes: prune seeds that are not fossilised, and evaluate what is left on the test split."""
        changes: Changes = []
        every = range(len(self.environments))
        for place, environment in enumerate(self.environments):
            with self._lanes.on(place):
                changes += [(environment, t) for t in environment.garden.remove("the episode is over")]
                if not environment.over:
                    self.latest[place] = environment.measure_again(step)
        tests = self._on_lanes(every, lambda one: one.evaluate("test"), "in the test at the end")
        endings: list[Ending] = []
        for place, (loss, metric) in enumerate(self._read(tests)):
            model = self.environments[place].model
            grown = read_network(slots_of(model), type(model).__name__).grown
            endings.append(Ending(self.latest[place], loss, metric, grown))
        return changes, endings

    # State.

    def state_dict(self) -> State:
        """Return the state between two steps."""
        return state_of_pool(self.states(), self.faults, self.latest)

    def states(self) -> list[State]:
        """Return the state of each environment."""
        every = self._on_lanes(range(len(self.environments)), Environment.state_dict, "when its state was saved")
        return list(every.values())

    def load_state_dict(self, state: State, *, in_round: bool) -> None:
        """Restore what ``state_dict`` returned; between two rounds only the faults of blueprints."""
        self.faults.load_state_dict(state.part("faults"))
        if in_round:
            states_E, latest = parts_of_pool_state(state, len(self.environments))
            self.load_states(states_E, latest)

    def load_states(self, states_E: Sequence[State], latest: Sequence[Signals]) -> None:
        """Restore each environment's state, and the latest signals."""
        for place, (environment, state) in enumerate(zip(self.environments, states_E, strict=True)):
            with self._lanes.on(place):
                environment.load_state_dict(state)
        self._keep(latest)

    def close(self) -> None:
        """Release threads, networks and measurements."""
        self._lanes.close()
        for environment in self.environments:
            environment.close()
        self.environments, self._numbers, self.latest = [], {}, []

    def _on_lanes(self, places: Sequence[int], act: Callable[[Environment], T], doing: str) -> dict[int, T]:
        """Return what ``act`` gives for the environments at ``places``, each on its lane.

        Errors are attributed to the environment's host and seeds. ``doing`` completes the message.
        """

        def at(place: int) -> T:
            environment = self.environments[place]
            with attributed_to(_describe(environment), doing):
                return act(environment)

        before = torch.get_rng_state() if self._deterministic else None
        with output_to_stderr():
            done = self._lanes.run(places, at)
        if before is not None and not torch.equal(before, torch.get_rng_state()):
            torch.set_rng_state(before)
            hint = 'They drew none in the dry run before training. Write "randomness: always".'
            raise PluginError(Problem("E236", f"the host, or a seed, drew random numbers {doing}", hint=hint))
        return dict(zip(places, done, strict=True))

    def _read(self, numbers: Mapping[int, Tensor]) -> list[list[float]]:
        """Copy the numbers of some places to the host."""
        self._lanes.drain(numbers)
        on_host = torch.cat([own.reshape(-1).cpu() for own in numbers.values()]) if numbers else torch.zeros(0)
        lengths = [own.numel() for own in numbers.values()]
        return [own.tolist() for own in on_host.split(lengths)]

    def _forget_leads(self, index: int) -> None:
        """Forget what seeds gained over a twin that was rolled back."""
        for environment in self.environments:
            if environment.index == index:
                environment.network.gains.forget_lead()

    def _keep(self, signals: Sequence[Signals]) -> list[Signals]:
        self.latest = list(signals)
        return self.latest

    @staticmethod
    def _record(environment: Environment, transitions: Sequence[Transition], step: int) -> Changes:
        """Tell the environment's governor of transitions, and return them with their environment."""
        environment.governor.record(transitions, step)
        return [(environment, transition) for transition in transitions]


def state_of_pool(states_E: Sequence[State], faults: FaultBook, latest: Sequence[Signals]) -> State:
    """Return the state of a pool: its environments by their places, the faults of the run, and the latest signals."""
    return State.of(
        {
            "environments": State.of({str(place): state for place, state in enumerate(states_E)}),
            "faults": faults.state_dict(),
            "latest": encode_state([plain_of(signals) for signals in latest]),
        }
    )


def parts_of_pool_state(state: State, count: int) -> tuple[list[State], list[Signals]]:
    """Return the states of ``count`` environments, and the latest signals, from a pool's state."""
    environments = state.part("environments")
    latest = [record_of(Signals, plain) for plain in decode_state(state.part("latest"))]
    return [environments.part(str(place)) for place in range(count)], latest


def _describe(environment: Environment) -> str:
    grown = {seed.blueprint for slot in environment.garden.slots.values() for seed in slot.stack}
    return "the host" + (f" with {', '.join(sorted(grown))}" if grown else "")
