"""Grow a model in the Trainer of Hugging Face: ``Grow`` is a callback of ``transformers.Trainer``.

    grow = Grow(["bert.encoder.layer.*.output"], eval_dataset=held_out)
    Trainer(model, arguments, train_dataset=train, callbacks=[grow]).train()

A hook on the model's forward sees the batches, so that a Trainer is used as it is.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, TrainerCallback, default_data_collator
from transformers.core_model_loading import revert_weight_conversion
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, RemoveColumnsCollator

from esper_core.growth import Example, Host, ungraft
from esper_core.leyline.errors import GrowthError, Problem
from esper_grow.gardener.borrowed_optimizers import grown_parameters, unwrapped
from esper_grow.gardener.validation import first_batch
from esper_grow.integrations.attachment import (
    BEST_LOSS,
    STATE_FILE,
    GrownMark,
    GrowsModel,
    MovedBatches,
    grow_as,
    model_loss,
    read_state,
    write_state,
)
from esper_grow.network_files import load
from esper_grow.peft_growth import GROWN_FILE, has_adapters, living_seeds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import nn
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from esper_core.leyline import SlotPlace


log = logging.getLogger("esper")

GROWN: Final = "._esper."
"""What stands, in a key, between the name of a module and that of what grew behind it."""


class Grow(GrowsModel, TrainerCallback):
    """Grows the model that a Trainer trains.

    ``Gardener.tend`` is called at the end of each epoch, before its checkpoint; more often in fewer than 15 epochs.
    Checkpoints of the Trainer get a file ``esper.safetensors``: ``train(resume_from_checkpoint=…)`` with the same
    callback goes on bit for bit.

    Args:
        slots: Names of modules of the model, as ``esper_core.graft`` takes them.
        eval_dataset: Held-out examples, as the Trainer takes them. They are batched like those of the training.
        validation: Held-out batches, instead: mappings of the model's arguments, labels included.
        loss: ``loss(model, batch)`` returns one loss for each example, or their mean; by default the model's own loss.
        steps: Calls of ``tend`` that policies plan for; None: as many as there will be.
        every: Steps of the optimizer between two calls of ``tend``, instead of an epoch.
        resume_from_checkpoint: The folder of the checkpoint that training resumes from, if it is not in the Trainer's
            ``output_dir``.
        settings: Further arguments of ``esper_grow.Gardener``.
    """

    def __init__(
        self,
        slots: Sequence[str] | Mapping[str, str | SlotPlace] | None = None,
        *,
        eval_dataset: Any = None,
        validation: Iterable[Any] | None = None,
        loss: Callable[[Any, Any], Tensor] = model_loss,
        steps: int | None = None,
        every: int | None = None,
        resume_from_checkpoint: str | Path | None = None,
        **settings: Any,
    ) -> None:
        super().__init__({"loss": partial(_as_trained, loss), "slots": slots, **settings}, validation, steps, every)
        self._rows = eval_dataset
        self._labels: set[str] = set()
        self._folder = resume_from_checkpoint
        self._batches: list[Any] = []
        """Batches since the last call of the Gardener."""
        self._own_pass = False
        self._loss_is_of_model = loss is model_loss
        self._untrained: set[int] = set()
        """Losses, by their ids, that the model has returned since, and that no gradient has reached."""
        self._attachment.restore_names = restore_names

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: nn.Module, **_: Any
    ) -> None:
        """Prepare the model for the state of a checkpoint; an event of the Trainer."""
        self._attachment.expects_state = True
        self._attachment.watch(model)

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module,
        optimizer: Any,
        train_dataloader: Any = None,
        **_: Any,
    ) -> None:
        """Make the Gardener, before the first step; an event of the Trainer."""
        if args.n_gpu > 1:
            message = f"a Gardener works on one device, and this training has {args.n_gpu} GPUs, each with a copy"
            raise GrowthError(Problem("E343", message, hint="Choose one:  CUDA_VISIBLE_DEVICES=0"))
        if args.load_best_model_at_end and BEST_LOSS in (args.metric_for_best_model or ""):
            message = "load_best_model_at_end follows esper_best_loss, often that of seeds that are not kept yet"
            hint = "They are dropped with the best checkpoint. Choose it by another metric:  metric_for_best_model"
            log.warning("%s", Problem("E336", message, hint=hint))
        self._batches.clear()
        self._untrained.clear()  # a training before this one may have been interrupted
        self._attachment.watch(model)
        is_frozen = not any(parameter.requires_grad for parameter in Host(model).parameters().values())
        is_checkpointed = any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
        if is_frozen and is_checkpointed and isinstance(model, PreTrainedModel):
            model.enable_input_require_grads()  # reentrant checkpoints train nothing behind inputs without gradients
        device = Host(model).device
        saved = self._read(args, state, device)
        owner, batches = unwrapped(optimizer), self._held_out(args, train_dataloader)
        epochs = state.num_train_epochs if state.num_train_epochs <= state.max_steps else 1  # a stream is endless
        self._attachment.begin(
            model,
            [owner],
            validation=MovedBatches(batches, lambda batch: Example.of(batch).to(device)),
            steps=int(self.plan(epochs, lambda: state.max_steps) or 1),
            clip_norm=args.max_grad_norm or None,
            state=saved.get("gardener"),
        )
        for name, parameter in grown_parameters(model):
            if name in saved.get("optimizer", {}):
                owner.state[parameter] = saved["optimizer"][name]
        self._labels = {"labels", *(args.label_names or ())} & set(first_batch(batches) or ())
        self._attachment.closing.callback(model.register_forward_pre_hook(self._see, with_kwargs=True).remove)
        if is_frozen:
            self._attachment.closing.callback(model.register_forward_hook(self._require_gradients).remove)
        if self._loss_is_of_model:
            self._attachment.closing.callback(model.register_forward_hook(self._see_loss).remove)
        self._attachment.closing.callback(owner.register_state_dict_post_hook(_HostState(model)).remove)

    def on_substep_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Pass on a micro-batch; an event of the Trainer."""
        self._step(epoch_ended=False)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Train the seeds, and tend them at the end of an epoch; an event of the Trainer."""
        is_last = state.global_step >= state.max_steps  # perhaps within an epoch
        self._step(epoch_ended=is_last or float(state.epoch or 0.0).is_integer())

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        """Add the state to a checkpoint; an event of the Trainer."""
        gardener = self.gardener
        assert gardener is not None
        states, named = gardener.optimizer.state, grown_parameters(gardener.model)
        of_grown = {name: states[parameter] for name, parameter in named if parameter in states}
        checkpoint = f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        # A search for hyperparameters has one for each trial, in folders of their own.
        folders = [folder for at in ("", "*/") for folder in Path(args.output_dir).glob(at + checkpoint)]
        target = max(folders, key=lambda folder: folder.stat().st_mtime, default=Path(args.output_dir, checkpoint))
        write_state(target / STATE_FILE, {"gardener": gardener.state_dict(), "optimizer": of_grown})

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Refuse to evaluate a model without what grew in its checkpoint; an event of the Trainer."""
        self._attachment.refuse_loss()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any],
        model: nn.Module,
        **_: Any,
    ) -> None:
        """Add the metric for early stopping to those of an evaluation; an event of the Trainer."""
        if "train_runtime" in logs and _best_adapters(args, state, model) and Host(model).is_grafted:
            # The last event before the Trainer loads the adapters of its best checkpoint, which had grown otherwise.
            self._attachment.close()
            ungraft(model, discard=True)
        if self.gardener is not None and any(name.startswith("eval_") for name in logs):
            # The Trainer's own dictionary, which callbacks and the choice of the best checkpoint see afterwards.
            logs[f"eval_{BEST_LOSS}"] = state.log_history[-1][f"eval_{BEST_LOSS}"] = self.gardener.best_loss

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: nn.Module, **_: Any
    ) -> None:
        """End the Gardener; an event of the Trainer."""
        self._attachment.close()
        best = _best_adapters(args, state, model)
        if best and Path(best, GROWN_FILE).is_file():
            load(model, best)
        if args.load_best_model_at_end and (living := living_seeds(model)):
            message = f"{state.best_model_checkpoint} is of when these were not kept, and they are dropped"
            hint = "If they were kept later: load_best_model_at_end=False, or choose by another metric."
            log.warning("%s", Problem("E336", f"{message}: {', '.join(living)}", hint=hint))
        Host(model).prune()

    def _held_out(self, args: TrainingArguments, train: Any) -> Iterable[Any]:
        """Return the batches to measure gains with; examples are collated as those of ``train``."""
        if self._validation is None and self._rows is None:
            hint = "Pass the Trainer's  Grow(…, eval_dataset=examples), or  Grow(…, validation=batches)."
            raise GrowthError(Problem("E344", "there is no validation data to measure gains with", hint=hint))
        if self._validation is not None:
            return self._validation
        if isinstance(self._rows, dict):
            message = f"eval_dataset is several data sets, {', '.join(self._rows)}, and gains are measured with one"
            raise GrowthError(Problem("E344", message, hint="Pass one of them:  Grow(…, eval_dataset=examples)"))
        collate = getattr(train, "collate_fn", default_data_collator)
        if columns := getattr(getattr(train, "dataset", None), "column_names", None):
            collate = RemoveColumnsCollator(collate, columns)  # those that the Trainer has left
        return DataLoader(self._rows, args.per_device_eval_batch_size, collate_fn=collate)

    def _see(self, module: nn.Module, args: tuple[Any, ...], batch: dict[str, Any]) -> None:
        """Keep the batch of a training pass; a hook of the model."""
        if module.training and not self._own_pass:
            self._batches.append(_Part(batch) if self._loss_is_of_model and _COUNT in batch else dict(batch))

    def _see_loss(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        """Note the loss of a training pass until a gradient reaches it; a hook of the model."""
        loss = outputs.get("loss") if self._trains(module) and isinstance(outputs, dict) else None
        if isinstance(loss, Tensor) and loss.requires_grad and not torch.compiler.is_compiling():
            key = id(loss)
            self._untrained.add(key)
            loss.register_hook(lambda gradient: self._untrained.discard(key))

    def _trains(self, module: nn.Module) -> bool:
        """Return whether the Trainer makes a training pass."""
        return module.training and torch.is_grad_enabled() and not self._own_pass

    def _require_gradients(self, module: nn.Module, inputs: Any, outputs: Any) -> Any:
        """Let outputs of a training pass require gradients where nothing trains yet; a hook of the model.

        The Trainer calls ``backward`` from its first step. No graph is built in the model for it.
        """
        if not self._trains(module) or any(tensor.requires_grad for tensor in Example.tensors_in(outputs)):
            return outputs
        if not isinstance(outputs, dict):
            return tuple(map(_leaf, outputs)) if isinstance(outputs, tuple) else _leaf(outputs)
        for name, value in list(outputs.items()):
            outputs[name] = _leaf(value)
        return outputs

    def _step(self, *, epoch_ended: bool) -> None:
        batches, self._batches = self._batches, []
        missing = self._labels - batches[0].keys() if batches else set()
        if missing or self._untrained:
            what = f"without {', '.join(sorted(missing))}" if missing else "by another loss than it returns"
            message = f"the model was trained {what}: the Trainer computes its loss itself"
            hint = "Leave out label_smoothing_factor and compute_loss_func; beside your compute_loss pass  Grow(loss=…)"
            raise GrowthError(Problem("E364", message, hint=hint))
        self._own_pass = True
        try:
            for number, batch in enumerate(batches, 1):
                self._attachment.step(batch, epoch_ended=epoch_ended and number == len(batches))
        finally:
            self._own_pass = False

    def _read(self, args: TrainingArguments, state: TrainerState, device: torch.device) -> dict[str, Any]:
        """Return the state in the checkpoint from which a training resumes; nothing if it begins, or has none."""
        default = Path(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
        file = Path(self._folder or default, STATE_FILE)
        return dict(read_state(file, device)) if state.global_step and file.exists() else {}


_COUNT: Final = "num_items_in_batch"
"""Argument of a model by which the Trainer has it divide losses: the labels in all batches of a step."""


class _Part(dict[str, Any]):
    """A batch whose loss is its part of the mean over a step, which the parts add up to."""

    adds_up = True


def _as_trained(loss: Callable[[Any, Any], Tensor], model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """Return losses as the Trainer computes them; in evaluation, or by another loss, their mean is the batch's own."""
    is_part = loss is model_loss and torch.is_grad_enabled()
    return loss(model, batch if is_part else {name: value for name, value in batch.items() if name != _COUNT})


def _leaf(value: Any) -> Any:
    """Return a tensor as one that requires gradients, if it can."""
    if not (isinstance(value, Tensor) and value.is_floating_point()):
        return value
    leaf = value.detach().requires_grad_()
    return leaf if leaf.ndim else leaf.clone()  # the Trainer scales a loss in place, which torch refuses of leaves


def from_pretrained(kind: Any, folder: str | Path, **arguments: Any) -> Any:
    """Load a model as ``kind.from_pretrained`` does, and rebuild what grew in it.

    Args:
        kind: A class of transformers, such as ``AutoModelForCausalLM``.
        folder: A checkpoint of a Trainer, or what ``save_pretrained`` has written.
        arguments: Further arguments of ``from_pretrained``.

    Raises:
        GrowthError: The files do not fit the model, or are damaged.
    """
    path = Path(folder, arguments.get("subfolder") or "")
    if not path.is_dir():
        hint = "Download a model of the hub first:  folder = huggingface_hub.snapshot_download(name)"
        raise GrowthError(Problem("E332", f"{path} is no folder on this machine", hint=hint))
    reporting = logging.getLogger("transformers.modeling_utils")
    reporting.addFilter(_leave_out_growth)
    try:
        model = kind.from_pretrained(folder, **arguments)
    finally:
        reporting.removeFilter(_leave_out_growth)
    if Path(path, GROWN_FILE).is_file():
        return load(model, path)
    saved: dict[str, Tensor] = {}
    for file in sorted(path.glob("model*.safetensors")):
        saved |= load_file(file)
    # As from_pretrained does: a model with a head has its base below a prefix, and each loads from the other's files.
    state, prefix = dict(model.state_dict()), f"{model.base_model_prefix}."
    if not any(key.startswith(prefix) for key in state):
        saved = {key.removeprefix(prefix): value for key, value in saved.items()}
    elif not any(key.startswith(prefix) for key in saved):
        saved = {prefix + key: value for key, value in saved.items()}
    restore_names(model, saved)
    grow_as(model, state | Host.split_state(saved)[1])
    return model


def _leave_out_growth(record: logging.LogRecord) -> bool:
    """Leave out what grew from the table of keys that transformers logs; a filter of its logger."""
    lines = [line for line in record.getMessage().splitlines() if GROWN not in line]
    record.msg, record.args = "\n".join(lines), ()
    return sum(" | " in line for line in lines) != 1  # a head without rows


def restore_names(model: nn.Module, state: dict[str, Any]) -> None:
    """Call the items of a file as the model calls them: transformers gives some layers other names when it saves.

    It takes them back in ``from_pretrained``, but neither in a Trainer nor for what grew.
    """
    if not isinstance(model, PreTrainedModel):
        return
    items = {**model.state_dict(), **{f"{name}{GROWN}": Tensor() for name, _ in model.named_modules()}}
    names = {id(tensor): name for name, tensor in items.items()}
    renamed = {saved: names.get(id(tensor)) for saved, tensor in revert_weight_conversion(model, items).items()}
    for saved in [key for key in state if key not in items]:
        at, grown, what = saved.partition(GROWN)
        if name := renamed.get(at + grown):
            state[name + what] = state.pop(saved)


def _best_adapters(args: TrainingArguments, state: TrainerState, model: nn.Module) -> str | None:
    """Return the folder from which the Trainer loads a model's adapters at the end, without what grew beside them."""
    best: str | None = state.best_model_checkpoint
    return best if args.load_best_model_at_end and best and Path(best).is_dir() and has_adapters(model) else None


class _HostState:
    """A post-hook of an optimizer's state dict that leaves out what grew: a Trainer loads it before the growth."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __call__(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        grown = {id(parameter) for _, parameter in grown_parameters(self._model)}
        host_state = {**state, "state": dict(state["state"]), "param_groups": []}
        if grown:
            host_state["esper"] = GrownMark()
        for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
            places = list(zip(group["params"], saved["params"], strict=True))
            host_state["param_groups"].append(
                {**saved, "params": [at for parameter, at in places if id(parameter) not in grown]}
            )
            for parameter, at in places:
                if id(parameter) in grown:
                    host_state["state"].pop(at, None)
        return host_state
