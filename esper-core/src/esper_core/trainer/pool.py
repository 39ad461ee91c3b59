"""Where do the environments live, and in which order do they work? In a pool, each on its lane.

The arms' environments are interleaved and the order in which they take their turns is rotated each step. What happens
on the lanes stays within an environment; what concerns several, or is counted over all of them, happens between, in the
order of their places: so it is the same for any number of lanes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import torch

from esper_core.governor import Act
from esper_core.growth import Draws, FaultBook, Transition, read_network, slots_of
from esper_core.leyline.actions import Action, ActionMask, Op
from esper_core.leyline.errors import PluginError, Problem
from esper_core.leyline.signals import CALM
from esper_core.plugins.isolation import attributed_to, output_to_stderr
from esper_core.trainer.environment import Environment, Mishap, Recipe
from esper_core.trainer.lanes import lanes_for
from esper_core.trainer.remembering import parts_of_all, state_of_all
from esper_core.trainer.study import Member, Roster, interleaved

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from esper_core.governor import Decision, RolledBack
    from esper_core.growth import Growth
    from esper_core.leyline.protocols import State
    from esper_core.leyline.signals import Signals, Verdict
    from esper_core.trainer.lanes import Lanes

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ending:
    """How an episode ended: the network that is left, measured once on the test split."""

    signals: Signals
    test_loss: float
    test_metric: float
    growth: tuple[Growth, ...]


Changes = list[tuple[Member, Transition]]
Mishaps = list[tuple[Member, Mishap]]


class Pool(Roster[Environment]):
    """The environments of every arm: ``environments`` of each, side by side.

    twin: the arm that never grows, against which seeds are weighed. devices: which the environments of one index share,
    and those of the next index take the next; none: the recipe's. lanes: threads, or streams on each device, as
    ``trainer.lanes.lanes_for`` takes them, or a function that makes them of the environments' devices. implants: what
    the host of an arm has from the start, by arm and seed. indices: those of the environments that live here, where
    others live elsewhere.
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
        self._quiet = recipe.draws is Draws.NEVER
        self._lanes = new_lanes([environment.recipe.device for environment in self.environments], lanes)
        self._numbers: dict[int, Tensor] = {}
        self.latest: list[Signals] = []
        """What was measured last, of each environment."""

    def reset(self, round_: int, first_seed: int) -> None:
        """Begin a round: the environments of one index share a seed, whatever their arm."""
        for place, environment in enumerate(self.environments):
            with self._lanes.on(place):
                environment.reset(round_, first_seed + environment.index)
        before = "in evaluation, before it was trained"
        guesses = self._together(self.running(), lambda one: one.evaluate("validation"), before)
        for place, (loss, _) in enumerate(self._read(guesses)):
            with self._lanes.on(place):
                self.environments[place].governor.begin(self.environments[place].garden, loss)

    def train(self, step: int) -> Changes:
        """Train every environment for one step; what time brought to its seeds."""
        turns = self.turns(step)
        passed = self._together(turns, Environment.train, f"in training, step {step}")
        changes: Changes = []
        for place, transitions in zip(turns, passed.values(), strict=True):
            changes += self._noted(self.environments[place], transitions, step)
        return changes

    def evaluate(self, step: int) -> None:
        """Measure every environment on the validation split; the results stay on the device."""
        running = self.running()
        self._together(running, lambda one: one.evaluate("validation"), f"in evaluation, step {step}")
        twins = {self.environments[place].index: place for place in self.of_arm(self._twin or "")}
        for place in running if twins else ():
            twin = twins[self.environments[place].index]
            self._lanes.hand(self.environments[twin].losses(), twin, place)

        def weighed(environment: Environment) -> Tensor:
            twin = self.environments[twins[environment.index]] if twins else None
            beside = self._undisturbed(step) if twin is None else next(iter(twin.losses()), None)
            environment.weigh(None if twin is environment else beside)
            return environment.numbers()

        self._numbers = self._together(running, weighed, f"when its seeds were weighed, step {step}")

    def synchronise(self, step: int) -> list[Signals]:
        """Read what was measured: the one place in a step where the host waits for the device.

        Of an episode that is over these are the last signals that there were.
        """
        read: dict[int, Signals] = {}
        for place, numbers in zip(self._numbers, self._read(self._numbers), strict=True):
            read[place] = self.environments[place].reading.signals(step, numbers)
        return self._keep([read.get(place) or self.latest[place] for place in range(len(self.environments))])

    def heal(self, signals_E: Sequence[Signals], step: int) -> tuple[list[Signals], Mishaps]:
        """Take out seeds that went wrong, and measure their environments again; the signals, and what was lost."""
        healed: list[Signals] = []
        mishaps: Mishaps = []
        for place, (environment, measured) in enumerate(zip(self.environments, signals_E, strict=True)):
            sick = not environment.over and not (measured.finite and not environment.reading.gone_wild)
            with self._lanes.on(place):
                healed.append(_read_again(environment, step) if sick and environment.heal(measured) else measured)
            lost = environment.take_mishaps()
            mishaps += [(environment, mishap) for mishap in lost]
            self._noted(environment, [mishap.ending for mishap in lost if mishap.ending is not None], step)
        return self._keep(healed), mishaps

    def judge(self, signals_E: Sequence[Signals], opinions: Mapping[int, Verdict]) -> dict[int, Decision]:
        """What is to be done in each environment whose episode goes on, by its place.

        opinions: what others think of it. No twin is stopped early: the others are measured by it.
        """
        decisions: dict[int, Decision] = {}
        for place in self.running():
            environment = self.environments[place]
            with self._lanes.on(place):
                decision = environment.judge(signals_E[place], opinions.get(place, CALM))
            if decision.truncated and environment.arm == self._twin:
                decision = replace(decision, act=Act.CONTINUE)
            decisions[place] = decision
        return decisions

    def heed(
        self, signals_E: Sequence[Signals], decisions: Mapping[int, Decision], step: int
    ) -> tuple[list[Signals], dict[int, RolledBack], Changes]:
        """Carry out what was decided: signals as they are now, what was rolled back, by its place, and what was pruned.

        An environment that was rolled back is measured anew, and so is one whose episode ends here: with it go the
        seeds whose fate is open. Its own lane waits for it, and no other.
        """
        now, changes = list(signals_E), Changes()
        rolled: dict[int, RolledBack] = {}
        for place, decision in decisions.items():
            environment = self.environments[place]
            with self._lanes.on(place):
                if decision.act is Act.ROLL_BACK:
                    rolled[place] = environment.roll_back(decision)
                    now[place] = _read_again(environment, step)
                    self._tell_of_twin(environment)
                elif decision.truncated:
                    changes += [(environment, t) for t in environment.garden.uproot("the episode is over")]
                    now[place] = _read_again(environment, step)
                    environment.over = True
        return self._keep(now), rolled, changes

    def masks(self) -> list[ActionMask]:
        """What could be done now, in each environment."""
        return [environment.mask() for environment in self.environments]

    def apply(self, actions: Sequence[Action], step: int) -> tuple[Changes, Mishaps]:
        """Carry out one action in each environment; what changed, and what could not even be built.

        Faults are counted when all is carried out: everybody decided by a mask, which holds for all of the step.
        """
        changes, mishaps = Changes(), Mishaps()
        active = [(place, action) for place, action in enumerate(actions) if action.op is not Op.WAIT]
        for place, action in active:
            environment = self.environments[place]
            with self._lanes.on(place):
                changes += self._noted(environment, environment.apply(action, step), step)
        for place, _ in active:
            mishaps += [(self.environments[place], mishap) for mishap in self.environments[place].take_mishaps()]
        return changes, mishaps

    def conclude(self, step: int) -> tuple[Changes, list[Ending]]:
        """End the episodes: seeds whose fate is open are pruned, and what is left is read on the test split."""
        changes: Changes = []
        every = range(len(self.environments))
        for place, environment in enumerate(self.environments):
            with self._lanes.on(place):
                changes += [(environment, t) for t in environment.garden.uproot("the episode is over")]
                if not environment.over:
                    self.latest[place] = _read_again(environment, step)
        tests = self._together(every, lambda one: one.evaluate("test"), "in the test at the end")
        endings: list[Ending] = []
        for place, (loss, metric) in enumerate(self._read(tests)):
            model = self.environments[place].model
            grown = read_network(slots_of(model), type(model).__name__).grown
            endings.append(Ending(self.latest[place], loss, metric, grown))
        return changes, endings

    def state(self) -> State:
        """All that is known, between two steps."""
        return state_of_all(self.states(), self.faults, self.latest)

    def states(self) -> list[State]:
        """What each environment knows."""
        every = self._together(range(len(self.environments)), Environment.state, "when it was written down")
        return list(every.values())

    def load(self, state: State, *, in_round: bool) -> None:
        """Be as another pool was; of one that was between two rounds nothing but the faults is of any use."""
        self.faults.load_state_dict(state.part("faults"))
        if in_round:
            states_E, latest = parts_of_all(state, len(self.environments))
            self.load_states(states_E, latest)

    def load_states(self, states_E: Sequence[State], latest: Sequence[Signals]) -> None:
        """Let each environment know what another one knew; ``latest`` was measured last."""
        for place, (environment, state) in enumerate(zip(self.environments, states_E, strict=True)):
            with self._lanes.on(place):
                environment.load(state)
        self._keep(latest)

    def close(self) -> None:
        """Let everything go: threads, networks, and what was measured of them."""
        self._lanes.close()
        for environment in self.environments:
            environment.close()
        self.environments, self._numbers, self.latest = [], {}, []

    def _together(self, places: Sequence[int], act: Callable[[Environment], T], doing: str) -> dict[int, T]:
        """What ``act`` gives for the environments at ``places``, each on its lane. Who raises answers for it."""

        def at(place: int) -> T:
            environment = self.environments[place]
            with attributed_to(_of(environment), doing, contain=False):
                return act(environment)

        before = torch.get_rng_state() if self._quiet else None
        with output_to_stderr():
            done = self._lanes.run(places, at)
        if before is not None and not torch.equal(before, torch.get_rng_state()):
            torch.set_rng_state(before)
            hint = 'It drew none when it was tried. Write "randomness: always".'
            raise PluginError(Problem("E236", f"the host, or a seed, drew random numbers {doing}", hint=hint))
        return dict(zip(places, done, strict=True))

    def _read(self, numbers: Mapping[int, Tensor]) -> list[list[float]]:
        """The numbers of some places, on the host."""
        self._lanes.drain(numbers)
        on_host = torch.cat([own.reshape(-1).cpu() for own in numbers.values()]) if numbers else torch.zeros(0)
        lengths = [own.numel() for own in numbers.values()]
        return [own.tolist() for own in on_host.split(lengths)]

    def _tell_of_twin(self, environment: Environment) -> None:
        """A twin that was rolled back is not what others were weighed against before."""
        if environment.arm == self._twin:
            for other in self.environments:
                if other.index == environment.index:
                    other.scales.forget_lead()

    def _keep(self, signals: Sequence[Signals]) -> list[Signals]:
        self.latest = list(signals)
        return self.latest

    @staticmethod
    def _noted(environment: Environment, transitions: Sequence[Transition], step: int) -> Changes:
        """The transitions, of which the environment's governor knows now."""
        environment.governor.note(transitions, step)
        return [(environment, transition) for transition in transitions]


def _of(environment: Environment) -> str:
    grown = {seed.blueprint for slot in environment.garden.slots.values() for seed in slot.stack}
    return "the host" + (f" with {', '.join(sorted(grown))}" if grown else "")


def _read_again(environment: Environment, step: int) -> Signals:
    """The signals of an environment that was changed after it was read: the step's own loss stays."""
    environment.evaluate("validation")
    return environment.reading.signals(step, environment.numbers().tolist())
