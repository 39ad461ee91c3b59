"""Growing in the real loop of Lightning: the host stays as it was, seeds are kept, checkpoints carry the growth."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

import esper_run as esper
from esper_core import EsperError
from esper_core.growth import slots_of
from tests.support.core_worlds import NoisyHost, same
from tests.support.loops import SLOW_MARKS, by_kind, planned, toy_data

pytestmark = [*SLOW_MARKS, pytest.mark.library("lightning")]

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "OneCycle": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=18),
    "cosine": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2),
}


@pytest.fixture
def world() -> SimpleNamespace:
    """``fit(epochs, grow=…, **trainer)`` trains a new module, and returns it with its trainer and its callback."""
    import lightning.pytorch as pl
    from torchmetrics import MeanMetric

    from esper_grow.integrations.lightning import Grow

    class Net(pl.LightningModule):
        def __init__(self, schedule: str | None = None, checkpointed: bool = False, dropout: float = 0.2) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.host = NoisyHost()
            self.host.drop = nn.Dropout(dropout)
            self.schedule, self.checkpointed = schedule, checkpointed
            self.seen = MeanMetric()
            self.collected, self.steps = [], 0

        def losses(self, batch: Any) -> torch.Tensor:
            inputs, targets = batch
            run = torch.utils.checkpoint.checkpoint
            outputs = run(self.host, inputs, use_reentrant=False) if self.checkpointed else self.host(inputs)
            return nn.functional.cross_entropy(outputs, targets, reduction="none")

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss = self.losses(batch).mean()
            self.seen.update(loss.detach())
            if not torch.compiler.is_compiling():  # torch cannot trace it
                self.log("train", loss, on_epoch=True)
                self.collected.append(loss.detach())
                self.steps += 1
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("validation", self.losses(batch).mean())

        def configure_optimizers(self) -> Any:
            weights, vectors = by_kind(self.parameters())
            groups = [{"params": weights, "weight_decay": 0.1}, {"params": vectors, "lr": 2e-3}]
            optimizer = torch.optim.AdamW(groups, lr=1e-2)
            if self.schedule is None:
                return optimizer
            return [optimizer], [{"scheduler": SCHEDULES[self.schedule](optimizer), "interval": "step"}]

    train, held_out = (TensorDataset(*split) for split in toy_data())
    loaders = DataLoader(train, 10, shuffle=True), DataLoader(held_out, 30)

    def new(**arguments: Any) -> Any:
        torch.manual_seed(3)
        return Net(**arguments)

    def fit(
        epochs: int, grow: dict[str, Any] | None = None, *, path: Any = None, module: Any = None, folder: Any = None,
        slots: Any = ("host.stem",), callbacks: Any = (), compiled: bool = False, arguments: Any = None, **trainer: Any,
    ) -> SimpleNamespace:  # fmt: skip
        module = module or new(**(arguments or {}))
        grown = [] if grow is None else [Grow(list(slots), **grow)]
        checkpoint = partial(pl.callbacks.ModelCheckpoint, save_last=True, save_on_exception=True)
        saving = [] if folder is None else [checkpoint(folder)]
        new_trainer = pl.Trainer(
            max_epochs=epochs, callbacks=[*callbacks, *grown, *saving], enable_checkpointing=bool(saving),
            **QUIET, **trainer,
        )  # fmt: skip
        torch.manual_seed(4)
        new_trainer.fit(torch.compile(module, backend="eager") if compiled else module, *loaders, ckpt_path=path)
        random, grow = torch.get_rng_state(), grown[0] if grown else None
        return SimpleNamespace(net=module, trainer=new_trainer, grow=grow, random=random)

    return SimpleNamespace(pl=pl, Net=Net, Grow=Grow, new=new, fit=fit, loaders=loaders)


def host_of(run: Any) -> dict[str, Any]:
    """Return the state of the host that a Gardener must not change."""
    (optimizer,) = run.trainer.optimizers
    named = {name: parameter for name, parameter in run.net.named_parameters() if "_esper" not in name}
    return {
        "tensors": {name: tensor for name, tensor in run.net.state_dict().items() if "_esper" not in name},
        "memory": {name: dict(optimizer.state[parameter]) for name, parameter in named.items()},
        "rates": [float(group["lr"]) for group in optimizer.param_groups],
        "modes": [module.training for name, module in run.net.named_modules() if "_esper" not in name],
        "random": run.random,
        "metric": run.net.seen.metric_state,
        "collected": (run.net.steps, run.net.collected),
        "logged": {name: value for name, value in run.trainer.callback_metrics.items() if name.startswith("train")},
    }


def ema(world: Any) -> list[Any]:
    return [world.pl.callbacks.EMAWeightAveraging(decay=0.9)]


def scaler(world: Any) -> list[Any]:
    """Scaled float16 on a CPU, whose first scale overflows."""
    grad_scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18)
    return [world.pl.plugins.MixedPrecision("16-mixed", "cpu", grad_scaler)]


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"accumulate_grad_batches": 4},
        {"gradient_clip_val": 0.1},
        {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
        {"precision": "bf16-mixed"},
        {"precision": "64-true"},
        {"compiled": True},
        {"arguments": {"schedule": "OneCycle"}},
        {"arguments": {"schedule": "cosine"}},
        {"arguments": {"checkpointed": True}},
        {"callbacks": ema},
        {"plugins": scaler},
        {"plugins": scaler, "gradient_clip_val": 0.1},
    ],
    ids=lambda how: "-".join(f"{name}={getattr(value, '__name__', value)}" for name, value in how.items()) or "plainly",
)
def test_the_host_is_that_of_a_plain_training_until_a_seed_is_kept(world, how):
    def run(grow: Any) -> Any:
        return world.fit(3, grow, **{key: value(world) if callable(value) else value for key, value in how.items()})

    plain, grown = run(None), run(planned("host.stem"))
    assert [change.now.value for report in grown.grow.tended for change in report.changes]
    assert grown.grow.tended[-1].signals.parameters > sum(parameter.numel() for parameter in plain.net.parameters())
    assert same(host_of(grown), host_of(plain))


def test_an_average_has_what_grows_from_its_first_step_on(world, caplog):
    averaging = ema(world)
    grown = world.fit(3, {"blueprints": ["conv_light"], "together": True}, callbacks=averaging)
    average = next(value for value in vars(averaging[0]).values() if isinstance(value, AveragedModel))
    assert [*average.module.state_dict()] == [*grown.net.state_dict()]
    assert "E349" not in caplog.text


def test_tend_is_called_every_so_many_steps_of_the_optimizer(world):
    grown = world.fit(3, {**planned("host.stem"), "every": 2}, accumulate_grad_batches=2)
    assert len(grown.grow.tended) == 4, "9 steps, of which 3 end an epoch"


def test_early_stopping_watches_what_a_branch_gains_and_few_epochs_have_enough_tends(world):
    """The best loss is logged for callbacks that look after a validation, and for those that look after an epoch."""

    class Watching(world.pl.Callback):
        def __init__(self) -> None:
            self.seen: list[tuple[float, float]] = []

        def on_validation_end(self, trainer: Any, module: Any) -> None:
            if not trainer.sanity_checking:
                self.seen.append((float(trainer.callback_metrics["esper_best_loss"]), grow.gardener.best_loss))

        on_train_epoch_end = on_validation_end

    grow, watching = world.Grow(["host.stem"], **{**planned("host.stem"), "steps": None}), Watching()
    stopping = world.pl.callbacks.EarlyStopping("esper_best_loss", patience=9)
    trainer = world.pl.Trainer(max_epochs=4, callbacks=[grow, watching, stopping], enable_checkpointing=False, **QUIET)
    trainer.fit(world.new(), *world.loaders)
    assert len(grow.tended) == grow.gardener.steps == 24
    assert [logged for logged, _ in watching.seen] == pytest.approx([best for _, best in watching.seen])
    assert any(report.best_loss < report.signals.validation_loss for report in grow.tended)


def test_a_training_that_fails_ends_its_run_and_can_be_resumed(world, tmp_path):
    class Failing(world.pl.Callback):
        def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
            if trainer.current_epoch == 3:
                raise KeyError("no more data")

    settings = {**planned("host.stem", keep=4), "run_dir": tmp_path / "runs"}
    with pytest.raises(KeyError):
        world.fit(7, settings, callbacks=[Failing()], folder=tmp_path)
    (directory,) = (tmp_path / "runs").iterdir()
    assert esper.load_run(directory).status == "failed"
    resumed = world.fit(7, planned("host.stem", keep=4), path=tmp_path / "last.ckpt")
    assert [bool(report.kept) for report in resumed.grow.tended] == [False, True, False, False]


@pytest.mark.parametrize("averaged", [False, True])
@pytest.mark.parametrize("epochs", [1, 2, 3, 5])
def test_a_resumed_training_has_the_same_numbers_to_the_bit(world, tmp_path, epochs, averaged):
    def run(until: int, **more: Any) -> Any:
        callbacks = ema(world) if averaged else []
        grow = {**planned("host.stem", keep=4), "blueprints": ["conv_light", "norm"]}
        return world.fit(until, grow, slots=("host.stem", "host.hidden"), callbacks=callbacks, **more)

    uninterrupted = run(7)
    run(epochs, folder=tmp_path)
    resumed = run(7, path=tmp_path / "last.ckpt")
    assert [report.kept != () for report in uninterrupted.grow.tended] == [step == 4 for step in range(7)]
    seen = [str(report) for report in uninterrupted.grow.tended]
    assert [str(report) for report in resumed.grow.tended] == seen[epochs:]
    assert same(resumed.net.state_dict(), uninterrupted.net.state_dict())
    states = [run.trainer.optimizers[0].state_dict() for run in (resumed, uninterrupted)]
    assert same(*states)
    assert torch.equal(resumed.random, uninterrupted.random)


@pytest.mark.parametrize(("gates", "kept"), [("strict", 0), ("off", 1)])
def test_a_set_that_germinates_together_resumes_to_the_bit(world, tmp_path, gates, kept):
    """While it lives, since there are too few examples to judge by, and when it was kept."""
    together = {"blueprints": ["conv_light"], "together": True, "steps": 3, "growth": {"gates": gates}}
    whole = world.fit(4, together)
    world.fit(1, together, folder=tmp_path)
    resumed = world.fit(4, together, path=tmp_path / "last.ckpt")
    assert len(whole.grow.tended[0].kept) == kept
    assert [str(report) for report in resumed.grow.tended] == [str(report) for report in whole.grow.tended][1:]
    assert same(resumed.net.state_dict(), whole.net.state_dict())


def test_a_resume_without_the_callback_is_refused_or_names_it(world, tmp_path):
    world.fit(3, planned("host.stem", keep=4), folder=tmp_path)
    path, lenient = tmp_path / "last.ckpt", world.new()
    with pytest.raises(RuntimeError, match=r"for_esper_grow\.load"):
        world.fit(4, path=path)
    lenient.strict_loading = False
    with pytest.warns(UserWarning, match=r"add the following callbacks: .*'Grow'"):
        world.fit(4, module=lenient, path=path)
    with pytest.warns(UserWarning, match=r"for_esper_grow\.load"):
        world.Net.load_from_checkpoint(path, strict=False)


@pytest.fixture
def checkpoint(world: Any, tmp_path: Path) -> SimpleNamespace:
    """The last checkpoint of a training in which a seed was kept."""
    run = world.fit(6, planned("host.stem", keep=4), folder=tmp_path)
    return SimpleNamespace(run=run, path=tmp_path / "last.ckpt")


def test_a_checkpoint_is_loaded_with_what_grew_or_names_the_function_that_does(world, checkpoint):
    from esper_grow.integrations.lightning import load_from_checkpoint

    grown = load_from_checkpoint(world.Net, checkpoint.path)
    assert type(grown).__name__ == "Net"
    assert len(slots_of(grown).named("host.stem").fossils) == 1
    assert same(grown.state_dict(), checkpoint.run.net.state_dict())
    assert load_from_checkpoint(world.Net, checkpoint.path, dropout=0.5).host.drop.p == 0.5
    with pytest.raises(RuntimeError, match=r"for_esper_grow\.load"):
        world.Net.load_from_checkpoint(checkpoint.path)
    trainer = world.pl.Trainer(callbacks=[world.Grow(["host.stem"])], **QUIET)
    plain = world.Net()
    (figures,) = trainer.validate(plain, world.loaders[1], ckpt_path=checkpoint.path)
    assert same(plain.state_dict(), grown.state_dict())
    assert figures["validation"] == pytest.approx(float(grown.eval().losses(world.loaders[1].dataset[:]).mean()), 1e-5)


def test_a_checkpoint_from_before_a_seed_was_kept_is_validated_without_it(world, checkpoint, tmp_path):
    early = world.fit(1, folder=tmp_path / "early")
    run = checkpoint.run
    run.trainer.validate(run.net, world.loaders[1], ckpt_path=tmp_path / "early" / "last.ckpt")
    assert same(run.net.state_dict(), early.net.state_dict())


def test_training_goes_on_with_the_same_objects_and_from_the_end(world, checkpoint):
    run = checkpoint.run
    trainer = world.pl.Trainer(max_epochs=2, callbacks=[run.grow], enable_checkpointing=False, **QUIET)
    trainer.fit(run.net, *world.loaders)
    assert len(run.grow.tended) == 8
    again = world.fit(8, planned("host.stem"), module=run.net, path=checkpoint.path)
    assert len(slots_of(again.net).named("host.stem").fossils) == 1


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"loaders": 1}, r"E344 .*no validation data(?s:.)*validation=batches"),
        ({"max_epochs": -1, "max_steps": 3}, r"E363 .*length of the training"),
        ({"manual": True}, r"E364 .*optimizes manually(?s:.)*loss=Net.losses"),
        ({"forgotten": True}, r"E362 .*no state of Grow(?s:.)*esper_grow.load"),
    ],
    ids=str,
)
def test_a_training_that_cannot_grow_says_why(world, checkpoint, how, message):
    path = None
    if how.pop("forgotten", False):
        state = torch.load(checkpoint.path, weights_only=True)
        del state["esper"]
        torch.save(state, checkpoint.path)
        path = checkpoint.path
    loaders, module = world.loaders[: how.pop("loaders", 2)], world.new()
    module.automatic_optimization = not how.pop("manual", False)
    grow = world.Grow(["host.stem"])
    trainer = world.pl.Trainer(callbacks=[grow], enable_checkpointing=False, **{**QUIET, "max_epochs": 9, **how})
    with pytest.raises(EsperError, match=message):
        trainer.fit(module, *loaders, ckpt_path=path)
