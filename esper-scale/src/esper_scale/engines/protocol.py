"""The protocol between a run and its workers: plain records, and what an engine has to provide.

A run spreads its environments over workers. Each worker holds a ``Shard``: the environments of some indices, of every
arm. The run sends one ``Request`` at a time to each worker and gets one ``Reply``. An ``Engine`` starts workers; it
says nothing of training, so that forked processes and actors on other machines serve the same requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from safetensors.torch import load, save

from esper_core.leyline.protocols import State

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from esper_core.growth import Growth
    from esper_core.leyline import Signals
    from esper_scale.engines.breadcrumbs import Breadcrumb


@dataclass(frozen=True, slots=True)
class Order:
    """Which environments a worker has to make.

    Attributes:
        environments: How many environments each arm has in the whole run.
        indices: The environments of this worker, by their index.
        implants: What each network has from the start, by arm and RNG seed; None where nothing is implanted.
    """

    arms: tuple[str, ...]
    environments: int
    indices: range
    twin: str | None = None
    implants: Mapping[tuple[str, int], Sequence[Growth]] | None = None

    def __str__(self) -> str:
        return f"the environments with index {self.indices.start} to {self.indices.stop - 1}"


@dataclass(frozen=True, slots=True)
class Request:
    """A method of ``Shard`` and its arguments.

    Attributes:
        faults: State of the run's ``FaultBook``: a worker knows only of its own seeds.
        lost_seeds: Seeds that ended or blocked a worker in this request, each with what it did; they are taken out
            before it is carried out.
        singly: Whether to compute networks of a group one by one, with the same results: a worker was lost in this
            request, and its breadcrumb shall name whose code it was.
    """

    method: str
    arguments: tuple[Any, ...]
    faults: State
    lost_seeds: tuple[tuple[Breadcrumb, str], ...] = ()
    singly: bool = False


@dataclass(slots=True)
class EnvironmentStatus:
    """Status of an environment in a worker, with the attributes of ``AnyEnvironment``."""

    pool_index: int
    arm: str
    index: int
    round: int = 0
    seed: int = 0
    steps: int = 0
    over: bool = False
    flops: int | None = None
    signals: Signals | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to a request: what the method returned, or raised with its traceback, and what is new.

    Attributes:
        seconds: How long the method took.
    """

    value: Any
    error: BaseException | None = None
    trace: str = ""
    statuses: Sequence[EnvironmentStatus] = ()
    logged: Sequence[tuple[int, str]] = ()
    warnings: Sequence[tuple[str, str]] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """How a worker ended.

    Attributes:
        how: For messages: ``"was ended by SIGSEGV"``.
        what: What the component at work did, as ``LostSeed.what``: ``"ended the process by SIGSEGV"``.
        signal: Which signal ended it; empty if none did, or that is unknown.
        breadcrumb: Whose code it ran; None: unknown.
        trace: The traceback of its threads, if it could write one.
    """

    how: str
    what: str = ""
    signal: str = ""
    breadcrumb: Breadcrumb | None = None
    trace: str = field(default="", repr=False)


class WorkerGone(Exception):
    """A worker does not exist any more; ``Worker.end`` says how it ended."""


class WorkerStarting(TimeoutError):
    """A worker waits for a machine, or is being prepared there; this is not counted as its own time."""


class Worker(Protocol):
    """One worker, as the run sees it. Its first reply, before any request, says whether its shard could be made."""

    def send(self, request: Request) -> None:
        """Send a request. If the worker is gone, ``receive`` says so."""

    def receive(self, seconds: float) -> Reply:
        """Return the next reply.

        Raises:
            WorkerGone: The worker is gone.
            WorkerStarting: It is not ready for its first reply.
            TimeoutError: It did not reply in so many seconds.
        """

    def end(self) -> WorkerEnd:
        """End the worker if it still runs, and return how it ended and what it was doing."""

    def close(self) -> None:
        """End the worker, whatever it is doing. May be called twice."""


class Engine(Protocol):
    """Starts workers."""

    def start(self, order: Order) -> Worker:
        """Start a worker, and do not wait for it."""

    def close(self) -> None:
        """Release what the engine holds; its workers are closed before."""


PackedState = tuple["Mapping[str, Any]", tuple[str, ...], bytes]
"""Plain data of a ``State``, the names of its tensors in order, and the tensors as safetensors bytes."""


def pack(state: State) -> PackedState:
    """Pack a state whose tensors share no memory, as those of a checkpoint."""
    return state.plain, tuple(state.tensors), save(dict(state.tensors))


def unpack(packed: PackedState) -> State:
    """Return the state that was packed."""
    plain, names, tensors = packed
    # Safetensors stores them in an order of its own, and checkpoints are to have the same one, whatever the engine.
    by_name = load(tensors)
    return State(plain, {name: by_name[name] for name in names})
