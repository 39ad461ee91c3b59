"""When is the host's pass recorded, and when is it replayed? A small network keeps a GPU waiting for its launches.

A CUDA graph is the pass with everything that is in it: addresses, and every number that stood in Python, a seed's
strength among them. So it is recorded only while nothing moves, and anew whenever the structure has changed, or a
parameter or buffer lies elsewhere. Clipping and the optimizers' steps are not part of it: their numbers change.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
from torch import Tensor, nn

from esper_core.growth import disturbed
from esper_core.trainer.ways import structure_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from esper_core.growth import Garden
    from esper_core.trainer.ways import Act, Notices, Way

WARM_UPS: Final = 3
"""Batches that are trained without a recording first: what is made at the first use is there then."""

ABOUT = "the host's pass cannot be recorded (compute.cuda_graphs)"

Replay = Callable[[], None]


class Recorder(Protocol):
    """What records the work of a device."""

    def aside(self) -> AbstractContextManager[Any]:
        """A block for the batches before a recording."""
        ...

    def record(self, act: Callable[[], Tensor]) -> tuple[Replay, Tensor]:
        """What does again what ``act`` launches, which is not done yet, and the tensor that ``act`` returned."""
        ...


class CudaRecorder:
    """CUDA graphs, recorded on a stream of their own and replayed on whatever stream is current."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """The stream of the recordings, behind the current one, which goes on behind it."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            current.wait_stream(self._stream)

    def record(self, act: Callable[[], Tensor]) -> tuple[Replay, Tensor]:
        """A graph. Other threads may allocate memory meanwhile."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            loss = act()
        return graph.replay, loss


class Recorded:
    """The pass of one garden's network, recorded. within: what runs it meanwhile, and while it is recorded."""

    def __init__(self, garden: Garden, notices: Notices, recorder: Recorder, within: Way) -> None:
        self._garden = garden
        self._notices = notices
        self._recorder = recorder
        self._within = within
        self._known: Any = None
        self._warm_ups = 0
        self._recording: _Recording | None = None

    holds = True
    """A generator's state cannot be read or set while a pass is recorded."""

    def run(self, act: Act, inputs: Tensor, targets: Tensor) -> Tensor:
        """What ``act`` gives for a batch, replayed where it was recorded."""
        known = None if self._moves() else self._what_is_recorded(inputs, targets)
        if known is None or known != self._known:
            self._known, self._recording, self._warm_ups = known, None, 0
        if known is None or self._warm_ups > WARM_UPS:  # it moves, or could not be recorded as it stands
            return self._within.run(act, inputs, targets)
        if self._warm_ups < WARM_UPS:
            self._warm_ups += 1
            with self._recorder.aside():
                return self._within.run(act, inputs, targets)
        if self._recording is None:
            try:
                self._recording = _Recording(self._garden.model, self._recorder, self._within, act, inputs, targets)
            except Exception as error:
                disturbed()
                self._warm_ups += 1
                whole = self._within.run(act, inputs, targets)
                self._notices.once(ABOUT, error)
                return whole
        return self._recording.replay(inputs, targets)

    def _moves(self) -> bool:
        return any(seed.alpha.moving for seed in self._garden.living_seeds())

    def _what_is_recorded(self, inputs: Tensor, targets: Tensor) -> Any:
        model = self._garden.model
        strengths = tuple(seed.alpha.value for slot in self._garden.slots.values() for seed in slot.stack)
        addresses = tuple(tensor.data_ptr() for tensor in chain(model.parameters(), model.buffers()))
        shapes = tuple((tensor.shape, tensor.dtype) for tensor in (inputs, targets))
        return structure_of(self._garden), strengths, addresses, shapes, model.training


class _Recording:
    """One recording: where it reads its batch, and where it leaves its loss and its gradients."""

    def __init__(
        self, model: nn.Module, recorder: Recorder, within: Way, act: Act, inputs: Tensor, targets: Tensor
    ) -> None:
        self._trained = list(model.parameters())
        self._inputs, self._targets = inputs.clone(), targets.clone()
        self._replay, self._loss = recorder.record(lambda: within.run(act, self._inputs, self._targets))
        self._gradients = [parameter.grad for parameter in self._trained]

    def replay(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch, whose gradients lie where the parameters have theirs."""
        self._inputs.copy_(inputs)
        self._targets.copy_(targets)
        self._replay()
        for parameter, gradient in zip(self._trained, self._gradients, strict=True):
            parameter.grad = gradient
        return self._loss.clone()
