"""The Gardener of a library's training loop: when it is called, and how checkpoints carry its state.

A library loads the state of the model before the Gardener exists, into a host that has not grown. So while a loop is
about to begin, a hook on the model removes the grown parts from such a state; the Gardener restores them from its
own. At any other time the hook rebuilds what the state holds.
"""

from __future__ import annotations

import json
import logging
import math
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, NoReturn

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch.serialization import safe_globals

from esper_core.growth import Host, Network, decode_state, encode_state, ungraft
from esper_core.leyline.errors import GrowthError, Problem
from esper_core.leyline.protocols import State
from esper_grow.gardener import Gardener, Tended
from esper_grow.network_files import load, part_of_state
from esper_grow.peft_growth import has_adapters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import torch
    from torch import Tensor, nn


log = logging.getLogger("esper")

STATE_FILE: Final = "esper.safetensors"
"""The state of a Gardener in a checkpoint that is a folder."""

BEST_LOSS: Final = "esper_best_loss"
"""Name of the logged metric for early stopping: ``Gardener.best_loss``."""

FEW_EPOCHS: Final = 15
"""Epochs below which ``tend`` is called more often than once an epoch: the default policy needs so many calls."""

CALLS_IN_FEW_EPOCHS: Final = 20
"""Calls of ``tend`` in such a training: the first seed can be kept, and a few others can follow."""

_GROWTH_HOOK: Final = "esper_growth_hook"
"""Attribute of a watched model: its load-state-dict pre-hook."""

_PLAIN: Final = "plain"
"""Key of the plain values, as JSON, in the metadata of that file."""


def resume_needs_the_callback_grow() -> NoReturn:
    """Refuse to load an optimizer that trained a grown model; torch shows this name to a trainer without ``Grow``."""
    message = "the checkpoint has a grown model, but no state of Grow to resume from"
    hint = (
        "Resume with the callback Grow; if it is there, pass it the folder:  Grow(…, resume_from_checkpoint=folder)\n"
        "To use the model or grow it further, build it with  esper_grow.load  first."
    )
    raise GrowthError(Problem("E362", message, hint=hint))


class GrownMark:
    """What the saved optimizer of a grown model holds, so that it cannot be loaded without ``Grow``.

    With ``weights_only=True`` torch calls no function that it was not allowed to, and names it in its error.
    """

    def __reduce__(self) -> tuple[Callable[[], NoReturn], tuple[()]]:
        return resume_needs_the_callback_grow, ()


def write_state(file: Path, state: Any) -> None:
    """Write a state, plain values and tensors in any structure, to a file that executes nothing when it is read."""
    encoded = encode_state(state)
    metadata = {_PLAIN: json.dumps(encoded.plain)}
    file.write_bytes(save(dict(encoded.tensors), metadata))


def read_state(file: Path, device: torch.device) -> Any:
    """Return what ``write_state`` was given, with its tensors on ``device``.

    Raises:
        GrowthError: The file is damaged, or another one (E334).
    """
    try:
        with safe_open(file, "pt") as opened:
            plain = json.loads(opened.metadata()[_PLAIN])
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  it is no mapping
    except (SafetensorError, OSError, LookupError, TypeError, ValueError) as error:
        message = f"{file} does not hold the state of a Gardener"
        raise GrowthError(Problem("E334", message, hint=f"{type(error).__name__}: {error}")) from error
    return decode_state(State(plain, tensors), device)


class Attachment:
    """Makes the Gardener of a loop, calls it, and keeps its state for the checkpoints of the library.

    Args:
        settings: Arguments of the Gardener.
        every: Steps of the optimizer between two calls of ``tend``; None: it is called at the end of each epoch.

    Attributes:
        gardener: None before the loop begins.
        tended: What each call of ``tend`` returned.
        every: Steps of the optimizer between two calls of ``tend``; None: an epoch.
        expects_state: Whether a state that is loaded into the model is that of a checkpoint to resume from.
        restore_names: Calls the items of a state from a file as the model calls them.
        closing: What to do when the Gardener ends.
    """

    def __init__(self, settings: Mapping[str, Any], every: int | None) -> None:
        if every is not None and every < 1:
            message = f"every must be a whole number above 0, or None. Received: {every!r}"
            hint = "It counts the optimizer's steps from one tend() to the next."
            raise GrowthError(Problem("E347", message, hint=hint))
        self.gardener: Gardener | None = None
        self.tended: list[Tended] = []
        self.expects_state = False
        self._settings = dict(settings)
        self.every = every
        self._has_growth = self._has_mark = False
        """Whether a state had growth that was loaded into the model, or the optimizer, without it: the Gardener has to
        restore it."""
        self._admission = ExitStack()
        self.restore_names: Callable[[nn.Module, dict[str, Any]], None] = lambda model, state: None
        self.closing = ExitStack()

    def admit_mark(self) -> None:
        """Let torch load the optimizer of a grown model until ``begin`` or ``close``."""

        def note() -> None:
            self._has_mark = True

        refusal = f"{__name__}.{resume_needs_the_callback_grow.__name__}"
        self._admission.close()
        self._admission.enter_context(safe_globals([(note, refusal)]))

    def watch(self, model: nn.Module) -> None:
        """Let states of a grown model be loaded into ``model``; a later attachment takes the place of this one."""
        existing = getattr(model, _GROWTH_HOOK, None)
        if existing is not None:
            if existing.attachment is not None and existing.attachment is not self:
                existing.attachment.close()  # its loop may have been interrupted
            existing.attachment = self
            return
        hook = GrowthHook(self)
        setattr(model, _GROWTH_HOOK, hook)
        model.register_load_state_dict_pre_hook(hook)

    def begin(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        validation: Iterable[Any],
        steps: int,
        clip_norm: float | None,
        state: Mapping[str, Any] | None,
    ) -> None:
        """Make the Gardener, and restore the ``state`` of one before.

        Raises:
            GrowthError: The checkpoint holds a grown model, and there is no state of a Gardener (E362).
        """
        self.close()
        if state is None:
            self.refuse_loss()
        settings = {"steps": steps, "clip_norm": clip_norm, **self._settings}
        if Host(model).is_grafted:
            settings["slots"] = None
        elif state is not None and settings["slots"] is None:  # slots that the loop had put in were removed
            network = State(state["plain"], state["tensors"]).part("environment").part("garden").plain["network"]
            settings["slots"] = Network.parse(json.dumps(network), source="the state")[0].places()
        self.gardener = Gardener(model, list(optimizers), validation=validation, **settings)
        if state is not None:
            self.gardener.load_state_dict(state)
        self.expects_state = self._has_growth = self._has_mark = False

    def refuse_loss(self) -> None:
        """Raise GrowthError if grown parts were removed from a state, and no Gardener has restored them (E362)."""
        if self._has_growth or self._has_mark:
            resume_needs_the_callback_grow()

    def step(self, batch: Any, *, epoch_ended: bool) -> Tended | None:
        """Pass a batch on which the loop has trained; return what ``tend`` says, if it was time for it."""
        gardener = self.gardener
        assert gardener is not None
        before = gardener.steps_since_tend
        gardener.step(batch)
        steps = gardener.steps_since_tend
        due = epoch_ended if self.every is None else steps > before and steps >= self.every
        if not (due and steps):
            return None
        tended = gardener.tend()
        self.tended.append(tended)
        log.info("%s", tended)
        return tended

    def close(self, error: BaseException | None = None) -> None:
        """End the Gardener, if there is one; ``error`` ended the loop."""
        self._admission.close()
        self.closing.close()
        if self.gardener is not None:
            self.gardener.__exit__(None if error is None else type(error), error, None)


class GrowsModel:
    """What the callbacks of all libraries share.

    Args:
        settings: Arguments of the Gardener.
        validation: Held-out batches.
        steps: Calls of ``tend`` that policies plan for; None: as many as the training will have.
        every: Steps of the optimizer between two calls of ``tend``; None: an epoch, or less in a short training.
    """

    def __init__(
        self, settings: Mapping[str, Any], validation: Iterable[Any] | None, steps: int | None, every: int | None
    ) -> None:
        self._attachment = Attachment(settings, every)
        self._validation, self._steps, self._every = validation, steps, every

    @property
    def gardener(self) -> Gardener | None:
        """The Gardener; None before the training begins."""
        return self._attachment.gardener

    def plan(self, epochs: float | None, steps: Callable[[], float]) -> float | None:
        """Return how often ``tend`` will be called; None: unknown. ``steps`` returns those of the optimizer.

        In few epochs it is called more often, or nothing could grow.
        """
        attachment = self._attachment
        attachment.every = self._every  # a training before this one may have been a short one
        if self._steps is not None:
            return self._steps
        is_short = epochs is not None and 0 < epochs < FEW_EPOCHS
        if attachment.every is None and (not is_short or math.isinf(steps())):
            return epochs
        if attachment.every is None:
            attachment.every = max(1, int(steps()) // CALLS_IN_FEW_EPOCHS)
            message = "%g epochs are few for growing: tend() is called every %d steps; every= sets it"
            log.info(message, epochs, attachment.every)
        return max(steps() // attachment.every, 1)

    @property
    def tended(self) -> list[Tended]:
        """What each call of ``tend`` returned."""
        return self._attachment.tended


def model_loss(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """Return the loss that a model computes by itself, as those of transformers do."""
    loss: Tensor = model(**batch)["loss"]
    return loss


class MovedBatches:
    """The batches of a loader as a trainer passes them to the model, by ``move``."""

    def __init__(self, batches: Iterable[Any], move: Callable[[Any], Any]) -> None:
        self._batches, self._move = batches, move
        self.generator = getattr(batches, "generator", None)
        self.sampler = getattr(batches, "sampler", None)

    def __iter__(self) -> Iterator[Any]:
        return map(self._move, self._batches)


class GrowthHook:
    """A load-state-dict pre-hook that removes the grown parts from the state, or rebuilds them in the model."""

    def __init__(self, attachment: Attachment | None = None) -> None:
        self.attachment = attachment

    def __call__(self, module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        """Make model and state fit each other."""
        attachment = self.attachment
        if attachment is None:
            return
        if not prefix:
            attachment.restore_names(module, state)
        if attachment.expects_state:
            attachment.admit_mark()  # the library loads the model before the optimizer
            if Host(module).is_grafted:
                ungraft(module, discard=True)
            attachment._has_growth |= Network.in_state(part_of_state(prefix, state)) is not None
            for key in Host.split_state(state, prefix)[1]:
                del state[key]  # the library loads this very dictionary
        elif has_adapters(module) and Network.in_state(state) is None:
            pass  # PEFT loads adapters alone, and what grew is in a file beside them
        elif not prefix and (attachment.gardener is None or attachment.gardener.model is module):
            attachment.close()
            grow_as(module, state)

    def __deepcopy__(self, memo: dict[int, Any]) -> GrowthHook:
        return self

    def __reduce__(self) -> tuple[type[GrowthHook], tuple[()]]:
        return GrowthHook, ()


def grow_as(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Give ``model`` the growth of a state dict, which is loaded afterwards."""
    network = Network.in_state(state)
    if Host(model).is_grafted:
        if Host(model).network.fits(network):
            return
        ungraft(model, discard=True)
    if network is not None:
        load(model, state)
