"""The worker's side: a shard of the environments, which answers requests until its connection ends."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from esper_core.leyline.errors import EsperError, PluginError, Problem
from esper_core.leyline.lifecycle import WAIT, Op, Stage
from esper_core.plugins import location_of
from esper_core.trainer import Pool
from esper_scale.engines.breadcrumbs import Breadcrumb
from esper_scale.engines.protocol import EnvironmentStatus, PackedState, Reply, Request, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from esper_core.growth import Seed
    from esper_core.leyline import Signals
    from esper_core.trainer import Recipe
    from esper_scale.engines.breadcrumbs import BreadcrumbMemory
    from esper_scale.engines.protocol import Order

log = logging.getLogger("esper")

Warn = Callable[[str, str], None]
"""Warns of what failed, and why; the run gives each warning once."""

AFTER_SIGNALS: Final = frozenset({"heal", "carry_out", "apply"})
"""Methods that begin when the signals of a step are known: a seed that is taken out before them changes these."""


class Shard(Pool):
    """The environments of one worker, with what only a worker is asked.

    Args:
        order: Which environments there are, here and elsewhere.
        breadcrumbs: Where the worker notes whose code it runs.
    """

    def __init__(self, order: Order, recipe: Recipe, warn: Warn, breadcrumbs: BreadcrumbMemory) -> None:
        implants = order.implants
        super().__init__(
            replace(recipe, reports=replace(recipe.reports, warn=warn)),
            order.arms,
            order.environments,
            twin=order.twin,
            implants=None if implants is None else lambda arm, seed: implants[arm, seed],
            indices=order.indices,
            on_turn=self._begin_turn,
        )
        self._breadcrumbs = breadcrumbs
        self._by_index = {environment.pool_index: environment for environment in self.environments}
        self._request: Request

    def statuses(self) -> list[EnvironmentStatus]:
        """Return the status of each environment."""
        names = [field.name for field in fields(EnvironmentStatus)]
        return [
            EnvironmentStatus(**{name: getattr(environment, name) for name in names})
            for environment in self.environments
        ]

    def packed_states(self) -> dict[int, PackedState]:
        """Return the state of each environment, by its pool index."""
        return {pool_index: pack(state) for pool_index, state in self.states().items()}

    def load_packed_states(self, states: Mapping[int, PackedState], latest: Sequence[Signals]) -> None:
        """Restore the state and the latest signals of each environment, by its pool index."""
        self.load_states({pool_index: unpack(state) for pool_index, state in states.items()}, latest)

    def answer(self, request: Request) -> Any:
        """Take out the seeds that were lost in a request, carry it out, and return the result."""
        self._request = request
        # A blueprint that is withdrawn because of seeds in other workers must not be offered here either.
        self.faults.load_state_dict(request.faults)
        self.groups.singly = request.singly
        arguments, unborn = request.arguments, []
        for breadcrumb, what in request.lost_seeds:
            environment = self._by_index[breadcrumb.pool_index]
            lost = environment.network.lost
            if breadcrumb.number is None:  # nothing was built yet: its action becomes a wait, and the seed is reported
                arguments = {**arguments[0], environment.pool_index: WAIT}, *arguments[1:]
                lost.record_unborn(breadcrumb.slot, breadcrumb.blueprint, what)
                unborn += [(environment.pool_index, lost_seed) for lost_seed in lost.take()]
                continue
            lost.remove(what, [breadcrumb.slot], breadcrumb.number)
            if request.method in AFTER_SIGNALS:
                self.measure_again(environment, arguments[-1])
        result = getattr(self, request.method)(*arguments)
        if request.method in ("reset", "load_packed_states"):  # these make new networks, with new slots
            for environment in self.environments:
                for slot in environment.garden.slots.values():
                    slot.entered = self._watch(environment.pool_index, slot.name)
        if unborn:
            changes, lost_seeds = result
            result = changes, sorted([*lost_seeds, *unborn], key=lambda entry: entry[0])
        return result

    def _begin_turn(self, pool_index: int) -> None:
        """Note which environment is at work.

        Where states are read or a seed is born, code of seeds runs in places that no slot sees. So the breadcrumb
        names the newborn seed, or the youngest one, from the start.
        """
        environment, method = self._by_index[pool_index], self._request.method
        breadcrumb = self._breadcrumb(pool_index, environment.recipe.reports.label)
        if method == "apply" and (action := self._request.arguments[0][pool_index]).op is Op.GERMINATE:
            varieties = environment.recipe.network.varieties[action.slot]
            title = next(variety.title for variety in varieties if variety.id == action.blueprint)
            component = f"{title} when it was built in slot {action.slot}"
            breadcrumb = self._breadcrumb(pool_index, component, action.slot, action.blueprint)
        elif method == "packed_states" and (living := environment.garden.living()):
            slot, seed = max(living, key=lambda place: place[1].number)
            breadcrumb = self._breadcrumb_of(pool_index, slot.name, seed)
        self._breadcrumbs.leave(breadcrumb)

    def _watch(self, pool_index: int, slot: str) -> Callable[[Seed], AbstractContextManager[None]]:
        """Return what leaves a breadcrumb where the code of a seed is entered in a slot."""

        # A plain function: a bound method or partial would be copied with the slot, and with it the shared memory.
        def entered(seed: Seed) -> AbstractContextManager[None]:
            return self._breadcrumbs.left(self._breadcrumb_of(pool_index, slot, seed))

        return entered

    def _breadcrumb_of(self, pool_index: int, slot: str, seed: Seed) -> Breadcrumb:
        component = f"{seed.title} in slot {slot}"
        if seed.stage is Stage.FOSSILISED:  # it is part of the network, and cannot be taken out
            return self._breadcrumb(pool_index, component)
        return self._breadcrumb(pool_index, component, slot, seed.blueprint, seed.number)

    def _breadcrumb(
        self, pool_index: int, component: str, slot: str = "", blueprint: str = "", number: int | None = None
    ) -> Breadcrumb:
        environment, request = self._by_index[pool_index], self._request
        # An environment that is about to begin a round still has the RNG seed of the one before.
        seed = request.arguments[1] + environment.index if request.method == "reset" else environment.seed
        component = f'{component}, arm "{environment.arm}", RNG seed {seed}'
        return Breadcrumb(pool_index, component, slot, blueprint, number)


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
    # A fork inherits the handlers of the run, which writes all messages itself, in the order of its workers.
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
        # Signals are most of a status, and few requests change them: what the run knows is not sent again.
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
    # What cannot be pickled, or not be built again from its arguments, would be lost with the reply.
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
