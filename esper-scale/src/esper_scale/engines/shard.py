"""The worker's side: a shard of the environments, which answers requests until its connection ends."""

from __future__ import annotations

import inspect
import logging
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from esper_core.leyline.actions import Op
from esper_core.leyline.errors import EsperError, PluginError, Problem
from esper_core.plugins import is_third_party, location_of
from esper_core.trainer import Pool
from esper_scale.engines.protocol import (
    Condemned,
    EnvironmentStatus,
    PackedState,
    Reply,
    Request,
    pack,
    unpack,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from esper_core.leyline import Signals
    from esper_core.trainer import Recipe
    from esper_run.watchdog import Frame
    from esper_scale.engines.protocol import Order

log = logging.getLogger("esper")

Warn = Callable[[str, str], None]
"""Warns of what failed, and why; the run gives each warning once."""

AFTER_SIGNALS: Final = frozenset({"heal", "carry_out", "apply"})
"""Methods that begin when the signals of a step are known: a seed that is taken out before them changes these."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A component that was at work when a worker was lost.

    Attributes:
        label: How messages name it.
        verdict: The seed to take out; None if the network cannot do without the component.
    """

    label: str
    verdict: Condemned | None = None


class Shard(Pool):
    """The environments of one worker, with what only a worker is asked."""

    order: Order
    """Which environments there are, here and elsewhere."""

    @classmethod
    def of(cls, order: Order, recipe: Recipe, warn: Warn, on_turn: Callable[[int], None]) -> Shard:
        """Return the shard of an order; ``on_turn`` is called with the place of each environment that works."""
        implants = order.implants
        shard = cls(
            replace(recipe, warn=warn),
            order.arms,
            order.environments,
            twin=order.twin,
            implants=None if implants is None else lambda arm, seed: implants[arm, seed],
            indices=order.indices,
            on_turn=on_turn,
        )
        shard.order = order
        return shard

    def statuses(self) -> list[EnvironmentStatus]:
        """Return the status of each environment."""
        names = [field.name for field in fields(EnvironmentStatus)]
        return [
            EnvironmentStatus(**{name: getattr(environment, name) for name in names})
            for environment in self.environments
        ]

    def packed_states(self) -> dict[int, PackedState]:
        """Return the state of each environment, by its place."""
        return {place: pack(state) for place, state in self.states().items()}

    def load_packed_states(self, states: Mapping[int, PackedState], latest: Sequence[Signals]) -> None:
        """Restore the state and the latest signals of each environment, by its place."""
        self.load_states({place: unpack(state) for place, state in states.items()}, latest)

    def answer(self, request: Request) -> Any:
        """Take out condemned seeds, carry out a request, and return the result."""
        self.faults.load_state_dict(request.faults)
        for condemned in request.condemned:
            environment = next(candidate for candidate in self.environments if candidate.place == condemned.place)
            network = environment.network
            if condemned.number is None:
                network.refuse_birth(condemned.what)
            elif (
                network.lost.remove(condemned.what, [condemned.slot], condemned.number)
                and request.method in AFTER_SIGNALS
            ):
                environment.measure_again(request.arguments[-1])
        return getattr(self, request.method)(*request.arguments)

    def find_suspect(self, request: Request, place: int | None, frames: Sequence[Frame], what: str) -> Suspect | None:
        """Return which component was at work in a request that ended a worker; None if nothing tells.

        The innermost line that belongs to a component decides. Where no line does, as after the system killed the
        worker, it is the youngest seed of the environment at work: if it was another one, that one is next.
        """
        environment = next((environment for environment in self.environments if environment.place == place), None)
        if environment is None or not hasattr(environment, "network"):
            return None
        seeds = [(slot, seed) for slot in environment.garden.slots.values() for seed in slot.stack]

        def accused(slot: Any, seed: Any) -> Suspect:
            living = seed in slot.nursery
            verdict = Condemned(environment.place, slot.name, seed.blueprint, seed.number, what) if living else None
            return Suspect(f"{seed.blueprint} in slot {slot.name}", verdict)

        owners = [(_sources(seed.block.modules()), accused(slot, seed)) for slot, seed in seeds]
        if request.method == "apply" and (action := request.arguments[0][environment.place]).op is Op.GERMINATE:
            verdict = Condemned(environment.place, action.slot, action.blueprint, None, what)
            variety = next(
                candidate
                for candidate in environment.recipe.network.varieties[action.slot]
                if candidate.id == action.blueprint
            )
            newborn = Suspect(f"{action.blueprint} when it was built in slot {action.slot}", verdict)
            owners.insert(0, (_sources([variety.factory]), newborn))
        inside = {id(module) for _, seed in seeds for module in seed.modules()}
        host = (module for module in environment.model.modules() if id(module) not in inside)
        owners.append((_sources(host), Suspect(f"the host, {type(environment.model).__name__}")))
        for label, component in environment.recipe.origins:
            owners.append((_sources([component]), Suspect(str(label))))
        for matches in (_Source.holds, _Source.is_beside):  # several components may share a file
            for frame in frames:
                for sources, suspect in owners:
                    if any(matches(source, frame) for source in sources):
                        return suspect
        living = [accused(slot, seed) for slot, seed in seeds if seed in slot.nursery]
        return max(living, key=_number_of) if living else None


def _number_of(suspect: Suspect) -> int:
    return -1 if suspect.verdict is None or suspect.verdict.number is None else suspect.verdict.number


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a class or function is defined."""

    file: str
    first: int
    last: int

    def holds(self, frame: Frame) -> bool:
        """Return whether a line is part of the definition."""
        return frame.file == self.file and self.first <= frame.line <= self.last

    def is_beside(self, frame: Frame) -> bool:
        """Return whether a line is in the same file."""
        return frame.file == self.file


def _sources(components: Iterable[Any]) -> list[_Source]:
    """Return where modules' classes, or functions, are defined, if that is in a third party's package."""
    sources = []
    for component in components:
        definition = component if inspect.isroutine(component) or inspect.isclass(component) else type(component)
        try:
            file, (lines, first) = inspect.getsourcefile(definition), inspect.getsourcelines(definition)
        except (OSError, TypeError):
            continue
        if file is not None and is_third_party(str(definition.__module__)):
            sources.append(_Source(file, first, first + len(lines) - 1))
    return sources


class Connection(Protocol):
    """What a worker gets requests from and sends replies to."""

    def recv(self) -> Any:
        """Return the next request; EOFError if there will be none."""

    def send(self, message: Any) -> None:
        """Send a reply."""


def serve(make: Callable[[Warn], Shard], connection: Connection) -> None:
    """Make a shard, and answer requests until the connection ends (EOFError).

    The first reply, before any request, says whether the shard could be made.
    """
    logged = _Logged()
    log.handlers, log.propagate = [logged], False
    warned: list[tuple[str, str]] = []
    shard: Shard | None = None
    sent: list[EnvironmentStatus] = []

    def replied(act: Callable[[], Any]) -> Reply:
        nonlocal sent
        value, error, trace, began = None, None, "", time.perf_counter()
        try:
            value = act()
        except BaseException as raised:  # whatever it is, it is raised again in the run's own process
            error, trace = sendable(raised), "".join(traceback.format_exception(raised))
        before, sent = sent, [] if shard is None else shard.statuses()
        changed = [status for status in sent if status not in before]
        kept = logged.kept, tuple(warned)
        logged.kept = []
        warned.clear()
        return Reply(value, error, trace, changed, *kept, time.perf_counter() - began)

    def begin() -> None:
        nonlocal shard
        shard = make(lambda failure, reason: warned.append((failure, reason)))

    def answer(request: Request) -> Any:
        assert shard is not None
        return shard.answer(request)

    connection.send(replied(begin))
    while True:
        connection.send(replied(partial(answer, connection.recv())))


_HINT: Final = "Its package must raise an error instead; report it there."


def sendable(error: BaseException) -> BaseException:
    """Return ``error`` if it can be sent to the run, else a RuntimeError with its message."""
    if isinstance(error, KeyboardInterrupt):  # of a component: workers ignore Ctrl-C
        file, line = location_of(error)
        return PluginError(Problem("E231", "a component raised KeyboardInterrupt", file=file, line=line, hint=_HINT))
    home = type(error).__module__
    is_core_error = isinstance(error, EsperError) and home.startswith("esper_core.")
    plain = home == "builtins" and all(isinstance(argument, str | int | float | None) for argument in error.args)
    if is_core_error or (plain and not vars(error)):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")


class _Logged(logging.Handler):
    """Keeps log messages for the next reply."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.kept.append((record.levelno, record.getMessage()))
