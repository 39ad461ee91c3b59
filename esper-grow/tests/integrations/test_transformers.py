"""Growing in the real Trainer of Hugging Face: the host stays as it was, checkpoints carry the growth."""

import logging
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import esper_grow as esper
from esper_core import EsperError
from esper_core.growth import Host, slots_of
from esper_grow.integrations.attachment import resume_needs_the_callback_grow
from tests.support.core_worlds import same
from tests.support.loops import SLOW_MARKS, planned
from tests.support.small_models import SIZE

pytestmark = [*SLOW_MARKS, pytest.mark.library("transformers")]

SLOT = "bert.encoder.layer.0.output"
QUIET = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "logging_strategy": "no", "learning_rate": 1e-2}
SCHEDULES = {name: {"min_lr": 1e-4} for name in ("cosine_with_min_lr", "cosine_warmup_with_min_lr")}
SCHEDULES |= {"warmup_stable_decay": {"num_decay_steps": 4}}

WORST = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": True}
WORST |= {"save_strategy": "epoch"}
"""Load the model with the largest loss at the end."""


def rows(examples: int, seed: int) -> list[dict[str, Any]]:
    """Sentences of ten words, told apart by their first word."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(0, 30, (examples, 10), generator=generator)
    return [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row[0] % 3} for row in words]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """``fit(epochs, grow=…, **arguments)`` trains a new model, and returns it with its Trainer and its callback."""
    import transformers

    from esper_grow.integrations.transformers import Grow

    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    config = transformers.BertConfig(vocab_size=30, num_labels=3, **SIZE)
    train, held_out = rows(32, 1), rows(120, 2)
    validation = torch.utils.data.DataLoader(held_out, 60, collate_fn=transformers.default_data_collator)

    def fit(
        epochs: int, grow: dict[str, Any] | None = None, *, folder: Path | None = None, resume: Any = None,
        frozen: bool = False, adapters: bool = False, data: Any = train, kind: Any = transformers.Trainer, **more: Any,
    ) -> SimpleNamespace:  # fmt: skip
        torch.manual_seed(3)
        model = transformers.BertForSequenceClassification(config).requires_grad_(not frozen)
        if adapters:
            peft = pytest.importorskip("peft")
            model = peft.get_peft_model(model, peft.LoraConfig(target_modules=["query"], r=2, task_type="SEQ_CLS"))
        settings = {"save_strategy": "no", "eval_strategy": "epoch", "per_device_train_batch_size": 8, **QUIET, **more}
        place = str(folder or tmp_path / "plain")
        arguments = transformers.TrainingArguments(place, num_train_epochs=epochs, **settings)
        grown = [] if grow is None else [Grow(**{"slots": [SLOT], "validation": validation, **grow})]
        trainer = kind(model, arguments, train_dataset=data, eval_dataset=held_out, callbacks=grown)
        trainer.train(resume_from_checkpoint=resume)
        return SimpleNamespace(model=model, trainer=trainer, grow=grown[0] if grown else None)

    def resume(epochs: int, grow: dict[str, Any], checkpoint: Path, **more: Any) -> SimpleNamespace:
        """Resume from a checkpoint that was moved, in another folder."""
        moved = Path(shutil.copytree(checkpoint, tmp_path / "moved"))
        grow = {**grow, "resume_from_checkpoint": moved}
        return fit(epochs, grow, folder=tmp_path / "other", resume=str(moved), **more)

    def plan(**more: Any) -> dict[str, Any]:
        return planned(SLOT, blueprint="mlp", **more)

    kind = transformers.BertForSequenceClassification
    here = {"callback": Grow, "library": transformers}
    return SimpleNamespace(fit=fit, resume=resume, plan=plan, kind=kind, config=config, **here)


def host_of(run: Any) -> dict[str, Any]:
    """Return the state of the host that a Gardener must not change."""
    optimizer = run.trainer.optimizer.optimizer
    named = {name: parameter for name, parameter in run.model.named_parameters() if "_esper" not in name}
    return {
        "tensors": {name: tensor for name, tensor in run.model.state_dict().items() if "_esper" not in name},
        "memory": {name: dict(optimizer.state[parameter]) for name, parameter in named.items()},
        "rates": [float(group["lr"]) for group in optimizer.param_groups],
        "losses": [figures.get("eval_loss") for figures in run.trainer.state.log_history],
        "random": torch.get_rng_state(),
    }


HOW: list[dict[str, Any]] = [
    {},
    {"gradient_accumulation_steps": 3},
    {"max_grad_norm": 0.0},
    {"max_grad_norm": 0.01, "weight_decay": 0.1},
    {"bf16": True},
    {"torch_compile": True, "torch_compile_backend": "eager"},
    {"gradient_checkpointing": True},
    {"optim": "adafactor"},
]


def names_of_schedules() -> list[str]:
    """Every schedule of ``transformers.get_scheduler``, without importing the library."""
    return [
        "linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt",
        "reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay", "greedy",
    ]  # fmt: skip


def test_early_stopping_watches_what_a_branch_gains_and_few_epochs_have_enough_tends(world, caplog):
    best = {"metric_for_best_model": "esper_best_loss", "save_strategy": "best", "load_best_model_at_end": True}
    run = world.fit(3, {**world.plan(), "steps": None}, **best)
    assert len(run.grow.tended) == run.grow.gardener.steps == 12
    logged = [figures["eval_esper_best_loss"] for figures in run.trainer.state.log_history if "eval_loss" in figures]
    assert logged == [run.grow.tended[at].best_loss for at in (3, 7, 11)]
    assert run.trainer.state.best_metric == min(logged)
    assert any(report.best_loss < report.signals.validation_loss for report in run.grow.tended)
    assert "E336 load_best_model_at_end follows esper_best_loss" in caplog.text


class Stream(torch.utils.data.IterableDataset[Any]):
    """Examples without a known number."""

    def __iter__(self) -> Any:
        return iter(rows(32, 1) * 8)


@pytest.mark.parametrize("steps", [45, 66])
@pytest.mark.parametrize("data", [rows(32, 1), Stream()], ids=["list", "stream"])
def test_tend_is_called_as_often_as_planned_where_steps_end_the_training(world, steps, data):
    """An epoch has four steps: eleven and sixteen epochs, and one more step or two."""
    run = world.fit(1, {**world.plan(), "steps": None}, data=data, max_steps=steps, eval_strategy="no")
    assert len(run.grow.tended) == run.grow.gardener.steps > 11


def test_every_schedule_is_tried(world):
    assert {schedule.value for schedule in world.library.SchedulerType} == set(names_of_schedules())


@pytest.mark.parametrize(
    "how", [*HOW, *({"lr_scheduler_type": name, "warmup_steps": 2} for name in names_of_schedules())], ids=str
)
def test_the_host_is_that_of_a_plain_training_until_a_seed_is_kept(world, how):
    if (settings := SCHEDULES.get(how.get("lr_scheduler_type", ""))) is not None:
        how = {**how, "lr_scheduler_kwargs": settings}
    plain = world.fit(3, **how)
    expected = host_of(plain)
    grown = world.fit(3, world.plan(), **how)
    assert [change.now.value for tended in grown.grow.tended for change in tended.changes]
    assert grown.grow.tended[-1].signals.parameters > sum(parameter.numel() for parameter in plain.model.parameters())
    assert same(host_of(grown), expected)


def loss_of_rows(model: Any, batch: Any) -> torch.Tensor:
    logits = model(batch["input_ids"]).logits[:, :-1].transpose(1, 2)
    return torch.nn.functional.cross_entropy(logits, batch["labels"][:, 1:], reduction="none").mean(1)


@pytest.mark.parametrize("settings", [{}, {"loss": loss_of_rows}], ids=["model", "own"])
def test_branches_of_a_causal_model_divide_losses_as_the_trainer_does(world, tmp_path, caplog, settings):
    """By the labels of all micro-batches of a step; a branch that does otherwise is reported (E376)."""
    # The Trainer counts a first label, which no model is trained on.
    texts = [(row, row["input_ids"].masked_fill(torch.arange(10) == 0, -100)) for row in rows(32, 1)]
    library, rows_of_text = world.library, [{**row, "labels": labels} for row, labels in texts]
    sizes = {"vocab_size": 30, "n_positions": 12, "n_embd": 16, "n_layer": 1, "n_head": 2}
    config = library.GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    batches = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_grad_norm": 0.0}
    arguments = library.TrainingArguments(str(tmp_path), num_train_epochs=2, save_strategy="no", **batches, **QUIET)
    grow = world.callback(["transformer.h.0.mlp"], eval_dataset=rows_of_text, blueprints=["mlp"], **settings)
    model = library.GPT2LMHeadModel(config)
    library.Trainer(model, arguments, train_dataset=rows_of_text, callbacks=[grow]).train()
    assert grow.gardener.best_loss > 1.0, "the mean over a batch, and not its part of a step"
    assert "E376" not in caplog.text


@pytest.mark.parametrize("step", [2, 4, 9, 18, 22])
def test_a_resumed_training_has_the_same_numbers_to_the_bit(world, tmp_path, step, caplog):
    # evaluation follows a save, and draws random numbers
    saving = {"save_strategy": "steps", "save_steps": step, "eval_strategy": "no"}
    grow = {**world.plan(keep=4), "slots": [SLOT, "bert.encoder.layer.1.output"]}  # the second stays empty
    uninterrupted = world.fit(7, grow, folder=tmp_path / "run", **saving)
    assert [report.kept != () for report in uninterrupted.grow.tended] == [number == 4 for number in range(7)]
    resumed = world.resume(7, grow, tmp_path / "run" / f"checkpoint-{step}", eval_strategy="no")
    seen = [str(report) for report in uninterrupted.grow.tended]
    assert [str(report) for report in resumed.grow.tended] == seen[step // 4 :]
    assert same(resumed.model.state_dict(), uninterrupted.model.state_dict())
    assert same(*(run.trainer.optimizer.state_dict() for run in (resumed, uninterrupted)))
    assert "unexpected keys" not in caplog.text


@pytest.mark.parametrize("step", [2, 6])
def test_adapters_germinate_together_in_a_frozen_model_and_resume_to_the_bit(world, tmp_path, step):
    """Before the set is kept, and after."""
    slots = ["bert.encoder.layer.*.attention.self.query", "bert.encoder.layer.1.output.dense"]
    together = {"slots": slots, "blueprints": ["lora(rank=2)"], "together": True, "growth": {"gates": "off"}}
    same_way = {"frozen": True, "eval_strategy": "no", "gradient_checkpointing": True}
    same_way["gradient_checkpointing_kwargs"] = {"use_reentrant": True}
    whole = world.fit(4, together, folder=tmp_path / "run", save_strategy="steps", save_steps=step, **same_way)
    assert len(whole.grow.tended[0].kept) == 3
    resumed = world.resume(4, together, tmp_path / "run" / f"checkpoint-{step}", **same_way)
    assert all(parameter.requires_grad == ("_esper" in name) for name, parameter in resumed.model.named_parameters())
    assert same(resumed.model.state_dict(), whole.model.state_dict())
    assert same(*(run.trainer.optimizer.state_dict() for run in (resumed, whole)))


@pytest.mark.parametrize("how", [{}, {"bf16": True}, HOW[5]])
def test_a_frozen_model_grows_an_adapter_that_alone_is_trained(world, how):
    """With a graph from the adapter on, and none before it."""
    graphs: dict[Any, set[bool]] = {}

    def see(module: Any, _inputs: Any, output: Any) -> None:
        if type(module).__name__ == "BertLayer" and module.training and torch.is_grad_enabled():
            graphs.setdefault(module, set()).add(output.requires_grad)

    slot = "bert.encoder.layer.1.output.dense"
    with torch.nn.modules.module.register_module_forward_hook(see):
        run = world.fit(7, {**planned(slot, blueprint="lora(rank=4)", keep=4), "slots": [slot]}, frozen=True, **how)
    assert [*graphs.values()] == [{False}, {False, True}]
    assert not run.model._forward_hooks
    (adapter,) = slots_of(run.model).named(slot).fossils
    assert all(parameter.requires_grad == ("_esper" in name) for name, parameter in run.model.named_parameters())
    assert any(parameter.any() for name, parameter in adapter.block.named_parameters() if "up" in name)


@pytest.fixture
def checkpoint(world: Any, tmp_path: Path) -> SimpleNamespace:
    """The last checkpoint of a training in which a seed was kept; the first one is the best."""
    run = world.fit(6, world.plan(keep=4), folder=tmp_path / "run", save_strategy="epoch")
    return SimpleNamespace(run=run, path=tmp_path / "run" / "checkpoint-24", first=tmp_path / "run" / "checkpoint-4")


def test_a_checkpoint_is_loaded_with_what_grew_or_names_the_function_that_does(world, checkpoint, tmp_path, caplog):
    from esper_grow.integrations.transformers import from_pretrained

    for kind in (world.kind, world.library.AutoModelForSequenceClassification):
        grown = from_pretrained(kind, checkpoint.path)
        assert type(grown).__name__ == "BertForSequenceClassification"
        assert same(grown.state_dict(), checkpoint.run.model.state_dict())
    assert "LOAD REPORT" not in caplog.text
    folder, name = checkpoint.path.parent, checkpoint.path.name
    other = from_pretrained(world.library.BertForMaskedLM, folder, subfolder=name, dtype=torch.bfloat16)
    assert "cls.predictions.bias" in caplog.text, "the new head is reported"
    assert "_esper" not in caplog.text
    assert (len(slots_of(other).named(SLOT).fossils), other.dtype) == (1, torch.bfloat16)
    with pytest.raises(EsperError, match=r"E332 someone/grown is no folder(?s:.)*snapshot_download"):
        from_pretrained(world.kind, "someone/grown")
    world.kind.from_pretrained(checkpoint.path)
    assert "_esper.for_esper_grow.load" in caplog.text
    assert len(slots_of(from_pretrained(world.kind, checkpoint.first)).named(SLOT).nursery) == 1
    again = esper.load(world.kind(world.config), checkpoint.run.model.state_dict())
    assert same(again.state_dict(), grown.state_dict())


@pytest.mark.parametrize("adapters", [False, True])
def test_no_training_resumes_without_what_grew(world, tmp_path, adapters):
    slot = f"base_model.model.{SLOT}" if adapters else SLOT
    grow = {**planned(slot, blueprint="mlp", keep=4), "slots": [slot]}
    run = world.fit(6, grow, folder=tmp_path / "run", adapters=adapters, save_strategy="epoch")
    path = tmp_path / "run" / "checkpoint-24"
    as_torch_advises = torch.serialization.safe_globals([resume_needs_the_callback_grow])
    with as_torch_advises, pytest.raises(EsperError, match=r"E362 .*no state of Grow"):
        world.fit(7, adapters=adapters, resume=str(path))
    with pytest.raises(EsperError, match=r"E362 .*no state of Grow(?s:.)*resume_from_checkpoint=folder"):
        world.fit(7, grow, folder=tmp_path / "other", adapters=adapters, resume=str(path))
    resumed = world.fit(6, grow, folder=tmp_path / "run", adapters=adapters, resume=str(path))
    assert same(resumed.model.state_dict(), run.model.state_dict())
    with pytest.raises(pickle.UnpicklingError, match=r"GLOBAL \S+\.resume_needs_the_callback_grow "):
        world.fit(7, adapters=adapters, resume=str(path))  # the callback is forgotten, after trainings that had it


def test_an_encoder_is_saved_and_loaded_with_what_grew_with_and_without_its_head(world, checkpoint, tmp_path):
    from esper_grow.integrations.transformers import from_pretrained

    encoder = checkpoint.run.model.bert
    encoder.save_pretrained(tmp_path / "encoder")
    for kind, folder in (
        (world.library.BertModel, tmp_path / "encoder"),
        (world.kind, tmp_path / "encoder"),
        (world.library.BertModel, checkpoint.path),
    ):
        loaded = from_pretrained(kind, folder)
        state = getattr(loaded, "bert", loaded).state_dict()
        assert same({name: state[name] for name in encoder.state_dict()}, encoder.state_dict())


def test_the_best_adapters_are_loaded_with_what_had_grown_beside_them(world, tmp_path, caplog):
    slot = f"base_model.model.{SLOT}"
    grow = {**planned(slot, blueprint="mlp", keep=4), "slots": [slot]}
    run = world.fit(6, grow, folder=tmp_path / "run", adapters=True, learning_rate=5e-4, **WORST)
    losses = [figures["eval_loss"] for figures in run.trainer.state.log_history if "eval_loss" in figures]
    assert run.trainer.evaluate()["eval_loss"] == max(losses) != losses[-1]
    assert slots_of(run.model).named(slot).nursery == ()
    assert "E334" not in caplog.text


def test_the_best_model_is_loaded_as_it_had_grown(world, tmp_path, caplog):
    from esper_grow.integrations.transformers import from_pretrained

    run = world.fit(6, world.plan(keep=4), folder=tmp_path / "run", **WORST)
    expected = from_pretrained(world.kind, run.trainer.state.best_model_checkpoint)
    assert len(slots_of(expected).named(SLOT).nursery) == 1, "it was saved before the seed was kept"
    assert f"are dropped: blueprints/mlp in {SLOT}" in caplog.text
    Host(expected).prune()
    assert same(esper.export(run.model).state_dict(), esper.export(expected).state_dict())


class Table(list[Any]):
    """Examples with columns, as those of ``datasets``."""

    column_names = ("input_ids", "attention_mask", "labels")


def test_columns_that_the_trainer_drops_and_folders_of_a_search_are_taken_as_they_are(world, tmp_path):
    class Searching(world.library.Trainer):
        """Has dropped columns from the training data, and saves each trial in a folder."""

        def get_train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(Table(rows(32, 1)), 8, collate_fn=self.data_collator)

        def _get_output_dir(self, trial: Any) -> str:
            return f"{self.args.output_dir}/run-0"

    held_out = [{**row, "place": number} for number, row in enumerate(rows(120, 2))]
    grow = {**world.plan(), "validation": None, "eval_dataset": held_out}
    run = world.fit(1, grow, folder=tmp_path / "run", kind=Searching, save_strategy="epoch")
    assert run.grow.tended
    assert (tmp_path / "run" / "run-0" / "checkpoint-4" / "esper.safetensors").is_file()


def test_a_model_that_is_saved_under_other_names_is_loaded_and_resumed(world, tmp_path):
    """Transformers calls layers of a ViT otherwise in its files."""
    from esper_grow.integrations.transformers import Grow, from_pretrained

    library, kind = world.library, world.library.ViTForImageClassification
    images = [{"pixel_values": torch.randn(1, 8, 8), "labels": torch.tensor(number % 2)} for number in range(120)]
    together = {"blueprints": ["lora(rank=2)"], "together": True, "growth": {"gates": "off"}, "every": 4}

    def fit(resume: Path | None = None) -> Any:
        torch.manual_seed(0)
        small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        config = library.ViTConfig(image_size=8, patch_size=4, num_channels=1, **small)
        best = {"load_best_model_at_end": True, "metric_for_best_model": "loss", **QUIET}
        best |= {"eval_strategy": "epoch", "save_strategy": "epoch", "per_device_train_batch_size": 40}
        arguments = library.TrainingArguments(str(tmp_path / "run"), num_train_epochs=2, **best)
        grow = Grow(["vit.layers.*.mlp.fc1", "vit.layers.*.attention.o_proj"], eval_dataset=images, **together)
        model = kind(config).requires_grad_(requires_grad=False)
        trainer = library.Trainer(model, arguments, train_dataset=images, eval_dataset=images, callbacks=[grow])
        trainer.train(resume_from_checkpoint=resume and str(resume))
        return model

    trained = fit()
    assert all(slot.fossils for slot in slots_of(trained))
    assert same(from_pretrained(kind, tmp_path / "run" / "checkpoint-6").state_dict(), trained.state_dict())
    assert same(fit(tmp_path / "run" / "checkpoint-3").state_dict(), trained.state_dict())


def test_a_training_that_was_interrupted_can_begin_again_on_the_same_model(world, tmp_path):
    run = world.fit(2, world.plan(keep=4))

    class Interrupting(world.library.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

    run.trainer.add_callback(Interrupting())
    with pytest.raises(KeyboardInterrupt):
        run.trainer.train()
    run.trainer.remove_callback(Interrupting)
    run.trainer.train()
    assert run.grow.gardener._closed
    assert len(run.model._forward_pre_hooks) == 0


def test_a_training_that_cannot_grow_says_why(world, checkpoint, tmp_path):
    from esper_grow.integrations.transformers import Grow

    grow = Grow([SLOT], validation=[])
    with pytest.raises(EsperError, match=r"E343 .*2 GPUs"):
        grow.on_train_begin(SimpleNamespace(n_gpu=2), None, None, model=None, optimizer=None)
    with pytest.raises(EsperError, match=r"E344 .*no validation data(?s:.)*eval_dataset"):
        world.fit(1, {**world.plan(), "validation": None})
    with pytest.raises(EsperError, match=r"E364 .*without labels(?s:.)*label_smoothing_factor"):
        world.fit(1, world.plan(), label_smoothing_factor=0.1)
    with pytest.raises(EsperError, match=r"E344 .*several data sets, first, second"):
        world.fit(1, {**world.plan(), "validation": None, "eval_dataset": {"first": [], "second": []}})

    class Squaring(world.library.Trainer):
        def compute_loss(self, model: Any, inputs: Any, **_: Any) -> Any:
            return model(**inputs).logits.square().mean()

    with pytest.raises(EsperError, match=r"E364 .*by another loss than it returns(?s:.)*loss=…"):
        world.fit(1, world.plan(), kind=Squaring)
    grow = {**world.plan(), "loss": lambda model, batch: model(**batch).logits.square().mean(1)}
    assert world.fit(1, grow, kind=Squaring, eval_strategy="no").grow.tended
    (checkpoint.path / "esper.safetensors").unlink()
    with pytest.raises(EsperError, match=r"E362 .*no state of Grow(?s:.)*esper_grow.load"):
        world.fit(7, world.plan(), folder=tmp_path / "run", resume=str(checkpoint.path))
