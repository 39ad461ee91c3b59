"""Probes: findings and their ranking, no side effects, and messages for mistakes."""

import gc
import itertools
import json
import math
import random
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from esper_core import BlueprintSpec, EsperError, Site, graft
from esper_core.growth import Example, Variety, slots_of
from esper_core.leyline.errors import plural
from esper_grow.probes import ProbeResult, probe
from esper_grow.probes.budget import BudgetClock, OutOfTimeError, seconds_of
from esper_grow.probes.host import HostCurve
from esper_grow.probes.places import attach_slots
from esper_grow.probes.trainings import new_training
from tests.support.core_worlds import Drawn, Net, bad, per_example, same, zeroed

Batch = tuple[Tensor, Tensor]


def residual(name: str, width: int) -> Variety:
    """Return a blueprint of x + last(relu(first(x))), with a last layer that is zero at birth."""

    def block(site: Site) -> nn.Module:
        first = nn.Conv1d(site.channels, site.channels, width, padding=width // 2)
        last = zeroed(nn.Conv1d(site.channels, site.channels, 1, bias=False))
        return Net(lambda net, hidden: hidden + net.last(torch.relu(net.first(hidden))), first=first, last=last)

    spec = BlueprintSpec("sequence", starts_as_identity=True)
    return Variety(f"test/{name}", spec, block)


def fails_on_300(block: nn.Module, grown: Tensor) -> Tensor:
    if len(grown) == 300:  # a trial of a few examples passes
        raise ValueError("300 examples")
    return grown


NEIGHBOURS = residual("neighbours", 3)
ALONE = residual("alone", 1)
BROKEN = bad(fails_on_300)


class Pointwise(nn.Sequential):
    """A convolution helps in its first slot, but not behind the mean over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(1, 4, 1), nn.BatchNorm1d(4), nn.ReLU())
        self.drop = nn.Dropout(0.05)
        self.pool = nn.AdaptiveAvgPool1d(1)
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.ReLU())
        self.head = nn.Linear(4, 2)


def rising(examples: int, seed: int, *, shuffled: bool = False) -> Batch:
    """Return steps up or down in noise, which only neighbouring positions reveal."""
    generator = torch.Generator().manual_seed(seed)
    inputs = 0.1 * torch.randn(examples, 1, 12, generator=generator)
    targets = torch.randint(0, 2, (examples,), generator=generator)
    starts = torch.randint(0, 10, (examples,), generator=generator)
    inputs[torch.arange(examples), 0, starts] += 1.0 - 2.0 * targets
    inputs[torch.arange(examples), 0, starts + 1] += 2.0 * targets - 1.0
    return inputs, targets[torch.randperm(examples, generator=generator)] if shuffled else targets


@dataclass
class Lab:
    """A probe of a small model, and the state that it must not change."""

    model: nn.Module
    train: Any
    validation: list[Batch]
    settings: dict[str, Any] = field(default_factory=dict)

    def probe(self, **more: Any) -> ProbeResult:
        settings = {"budget": 600.0, "steps": 27, "optimizer": partial(torch.optim.Adam, lr=0.02)}
        settings |= self.settings | more
        arguments = [settings.pop(name, default) for name, default in (("model", self.model), ("loss", per_example))]
        data = [settings.pop(name, getattr(self, name)) for name in ("train", "validation")]
        return probe(*arguments, *data, **settings)


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Return a probe that takes a second; it evaluates the host more often than a real one."""
    monkeypatch.setattr("esper_grow.probes.host.SHORTEST_INTERVAL", 4)
    torch.manual_seed(0)
    batches = list(zip(*(part.split(60) for part in rising(300, 1)), strict=True))
    settings = {"slots": ["stem"], "blueprints": [ALONE, NEIGHBOURS]}
    return Lab(Pointwise(), batches, [rising(300, 2)], settings)


def test_what_the_host_lacks_ranks_first_and_pays(lab: Lab) -> None:
    result = lab.probe()
    first, second = result.rows
    assert (result.verdict, result.best) == ("pays", first)
    assert (first.slot, first.short, first.pays) == ("stem", "neighbours", True)
    assert 0.3 < first.at_least < first.gain < first.gain + first.error < 0.8
    host_flops = 2 * (12 * 4 + 4 * 4 + 4 * 2)
    assert (first.parameters, first.flops) == (68, 2 * 12 * (3 * 4 * 4 + 4 * 4))
    assert first.price == pytest.approx(0.01 * (math.log2(1 + first.flops / host_flops) + 0.1) * result.host_loss)
    assert (second.short, second.pays) == ("alone", False)
    assert second.at_least < second.price
    assert second.behind == pytest.approx(first.net - second.net, abs=1e-6)
    assert second.behind > 10 * second.behind_error
    assert (result.model, result.slots, result.examples) == ("Pointwise", {"stem": "sequence (4, 12)"}, 300)
    assert result.needs is None


@pytest.mark.parametrize(
    "settings",
    [{"train": [rising(300, 1, shuffled=True)], "validation": [rising(300, 2, shuffled=True)]}, {"price": 0.1}],
    ids=["labels mean nothing", "too expensive"],
)
def test_nothing_pays_where_nothing_helps(lab: Lab, settings: dict[str, Any]) -> None:
    result = lab.probe(**settings)
    assert result.verdict == "nothing pays"
    assert not any(row.pays for row in result.rows)
    assert "Nothing pays" in str(result)
    assert repr(result) == f"<ProbeResult of Pointwise: nothing pays; {plural(len(result.rows), 'candidate')}>"


def opaque_mean(model: nn.Module, batch: Batch) -> Tensor:
    losses = per_example(model, batch)
    return losses.sum() / len(losses)


def test_a_host_with_small_losses_is_trained_for_as_long_as_with_large_ones():
    curves = HostCurve(), HostCurve()
    for step in range(40):
        for curve, unit in zip(curves, (1.0, 1e-4), strict=True):
            curve.add(step, unit * 0.9**step)
    assert [curve.is_flat for curve in curves] == [False, False]


@pytest.mark.install  # CI runs it for every change
def test_the_loss_of_a_batch_counts_as_one_example(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the examples of which it is the mean are found."""
    for name, value in (("EVALUATIONS", 1), ("FLAT_SHARE", 9.0)):  # the host is trained for an interval alone
        monkeypatch.setattr(f"esper_grow.probes.host.{name}", value)
    monkeypatch.setattr("esper_grow.probes.search.interval_of", lambda examples, batch: 50)
    lab.validation = [rising(400, 2)]
    lab.settings["blueprints"] = [NEIGHBOURS]
    examples = lab.probe(loss=lambda *arguments: per_example(*arguments).mean())
    lab.validation = list(zip(*(part.split(4) for part in lab.validation[0]), strict=True))
    batches = lab.probe(loss=opaque_mean)
    assert (batches.examples, examples.examples) == (100, 400)
    assert "each of 100 validation batches counts as one example" in batches.remarks[0]
    assert not examples.remarks
    assert batches.rows[0].pays
    assert batches.rows[0].gain == pytest.approx(examples.rows[0].gain, abs=0.02)
    assert batches.rows[0].at_least < examples.rows[0].at_least


@pytest.mark.install  # CI runs it for every change
def test_a_probe_repeats_itself(lab: Lab) -> None:
    results = [lab.probe(steps=9, seed=seed).rows for seed in (0, 0, 1)]
    first, again, other = ([(row.gain, row.at_least, row.behind) for row in rows] for rows in results)
    assert first == again
    assert first != other


def test_a_candidate_without_effect_trains_bit_for_bit_like_the_host(lab: Lab) -> None:
    """With dropout and batch norm: both get the same batches and random numbers, and no earlier state."""

    def block(site: Site) -> nn.Module:
        return Net(lambda net, hidden: hidden + 0.0 * net.unused, unused=nn.Parameter(torch.zeros(())))

    training = new_training(lab.model, partial(torch.optim.Adam, lr=0.01), per_example, None, 0)
    graft(training.model, ["stem"], example=lab.train[0][0])
    idle = deepcopy(ALONE)
    object.__setattr__(idle, "factory", block)
    host, trial = training.copy(1, 0.0), training.copy(1, 0.0)
    trial.plant("stem", idle, 0, lab.train[0])
    for batch in lab.train:
        host.step(batch)
        trial.step(batch)
    before, after, tried = (dict(run.model.named_parameters()) for run in (training, host, trial))
    assert all(torch.equal(after[name], tried[name]) for name in before)
    assert not torch.equal(before["head.weight"], after["head.weight"])


def everything_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the state that a probe must not change."""
    return {
        "state": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "gradients": [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()],
        "modes": [module.training for module in model.modules()],
        "classes": [type(module) for module in model.modules()],
        "hooks": [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()],
        "optimizer": deepcopy(optimizer.state_dict()),
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": np.random.get_state()[1].tolist(),
        "settings": (torch.is_grad_enabled(), torch.get_default_dtype()),
    }


class Counting:
    """A loss function that raises after some calls."""

    def __init__(self, calls: int, error: type[BaseException]) -> None:
        self.left, self.error = calls, error

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        self.left -= 1
        if not self.left:
            raise self.error
        return per_example(model, batch)


@pytest.mark.parametrize(
    ("calls", "error"), [(0, None), (20, KeyboardInterrupt), (100, ValueError), (150, KeyboardInterrupt)]
)
def test_the_model_and_its_optimizer_are_as_before(lab: Lab, calls: int, error: type[BaseException] | None) -> None:
    """Trained by a loop, in evaluation mode, with gradients, hooks and a schedule; also if the probe is interrupted."""
    model = lab.model
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model.head.register_forward_hook(lambda *_: None)
    for batch in lab.train:
        optimizer.zero_grad()
        per_example(model, batch).mean().backward()
        optimizer.step()
    model.eval()
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(TensorDataset(*rising(300, 1)), batch_size=60, shuffle=True, generator=generator)
    before, drawn = everything_of(model, optimizer), generator.get_state()
    settings = {"train": loader, "optimizer": optimizer}
    if error is None:
        assert lab.probe(**settings).rows[0].short == "neighbours"
    else:
        with pytest.raises((EsperError, KeyboardInterrupt), match=r"E352 .*raised ValueError|^$"):
            lab.probe(**settings, loss=Counting(calls, error))
    assert same(everything_of(model, optimizer), before)
    assert torch.equal(generator.get_state(), drawn)
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.002)


def test_a_copied_optimizer_has_the_state_of_the_models_own(lab: Lab) -> None:
    """With its moments and rates, but neither its schedule nor its hooks, and without parameters of other models."""
    optimizer = torch.optim.AdamW([{"params": lab.model.parameters()}, {"params": [nn.Parameter(torch.ones(1))]}], 0.02)
    called = []
    optimizer.register_step_post_hook(lambda *_: called.append(1))
    torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    training = new_training(lab.model, optimizer, per_example, None, 0)
    for batch in lab.train[:2]:
        optimizer.zero_grad()
        per_example(lab.model, batch).mean().backward()
        optimizer.step()
    copy = new_training(lab.model, optimizer, per_example, None, 0)
    copied = list(copy.optimizer.state.values())
    assert [len(group["params"]) for group in copy.optimizer.param_groups] == [8, 0]
    assert all(same(new, old) for new, old in zip(copied, optimizer.state.values(), strict=True))
    copy.step(lab.train[2])
    assert len(called) == 2
    assert not training.optimizer.state


def test_an_optimizer_that_harms_the_host_is_remarked(lab: Lab) -> None:
    result = lab.probe(optimizer=partial(torch.optim.SGD, lr=30.0), blueprints=[ALONE], steps=9)
    assert "Training raised the validation loss of the host from" in " ".join(str(result).split())


def test_a_frozen_host_is_ready_at_once_and_its_seeds_train(lab: Lab) -> None:
    lab.model.requires_grad_(False)
    result = lab.probe()
    assert result.host_steps == 0
    assert all(row.gain != 0.0 for row in result.rows)


@pytest.mark.members
def test_adapters_are_tried_on_a_frozen_transformer(lab: Lab) -> None:
    layers = [nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(2)]
    model = nn.Sequential(nn.Linear(1, 8), *layers, nn.Flatten(), nn.Linear(96, 2)).requires_grad_(False)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return per_example(model, (batch[0].transpose(1, 2), batch[1]))

    result = lab.probe(model=model, loss=loss, slots="auto", blueprints=ADAPTERS, steps=9)
    assert {(row.slot, row.short) for row in result.rows} == {(at, name) for at in "012" for name in ADAPTERS}
    assert all(row.gain != 0.0 for row in result.rows)


ADAPTERS = ["lora(rank=2)", "lora(rank=3)"]


def test_a_compiled_model_is_probed_as_it_was_written(lab: Lab) -> None:
    result = lab.probe(model=torch.compile(lab.model, backend="eager"), steps=9)
    assert (result.model, [row.slot for row in result.rows]) == ("Pointwise", ["stem", "stem"])


def test_a_grafted_model_is_probed_in_its_slots_and_beside_what_grew(lab: Lab) -> None:
    graft(lab.model, {"first": "stem"}, example=lab.train[0][0])
    result = lab.probe(slots="auto", steps=9)
    assert [row.slot for row in result.rows] == ["first", "first"]
    assert [name for name in lab.model.state_dict() if "esper" in name] == []


def test_parameters_of_the_loss_function_are_left_alone(lab: Lab) -> None:
    scale = nn.Parameter(torch.ones(()))
    lab.probe(loss=lambda model, batch: scale * per_example(model, batch), steps=9)
    assert scale.grad is None
    assert scale.item() == 1.0


def test_a_seed_that_fails_is_reported_and_the_others_go_on(lab: Lab) -> None:
    lab.train = [rising(300, 1)]
    result = lab.probe(blueprints=[BROKEN, NEIGHBOURS])
    (failure,) = result.failed
    assert (failure.slot, failure.blueprint) == ("stem", "test/bad")
    assert re.search(r"raised ValueError: 300 examples \(core_worlds.py:\d+\)", failure.what)
    assert [row.short for row in result.rows] == ["neighbours"]
    assert "test/bad in stem failed" in " ".join(str(result).split())
    alone = lab.probe(blueprints=[BROKEN])
    assert (alone.verdict, alone.rows, alone.needs) == ("undecided", (), None)
    assert "every candidate failed" in alone.reason


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """``clock(tick)``: return a clock that advances by ``tick`` seconds whenever it is read."""

    def install(tick: float) -> None:
        read = itertools.count(0.0, tick).__next__
        monkeypatch.setattr("esper_grow.probes.search.BudgetClock", lambda budget: BudgetClock(budget, read))

    return install


def test_a_budget_that_ends_while_the_host_learns_is_undecided(lab: Lab, clock: Callable[[float], None]) -> None:
    clock(1.0)
    result = lab.probe(budget="60s")
    assert result.verdict == "undecided"
    assert [row.short for row in result.rows] == ["alone", "neighbours"]
    assert all(row.pays is None and row.at_least < row.gain and row.error > 0 for row in result.rows)
    assert result.seconds < 75
    assert result.needs is not None
    assert re.search(r"host still improves.* It needs about [0-9]+ min.*; the budget was 1 min\.", result.reason)
    assert re.search(r"those of \d+ steps? on \d+ validation examples: they rank", result.remarks[0])
    decided = lab.probe(budget=1.5 * result.needs)
    assert decided.verdict == "pays"
    assert decided.seconds / 2 < result.needs < 2 * decided.seconds


def test_a_budget_that_ends_in_the_trials_is_undecided(lab: Lab, clock: Callable[[float], None]) -> None:
    clock(1.0)
    result = lab.probe(budget=400.0, steps=630)
    assert result.verdict == "undecided"
    assert all(row.pays is None for row in result.rows)
    assert "2 candidates need longer trials" in result.reason
    assert result.needs is not None
    assert result.needs > 1000


def test_a_budget_that_ends_in_the_longest_trials_leaves_the_others_open(lab: Lab) -> None:
    def report(text: str) -> None:
        if text == "trials of 27 steps: 1 of 2":
            raise OutOfTimeError

    result = lab.probe(on_progress=report)
    assert [row.pays for row in result.rows] == [True, None]
    assert "those without a verdict may pay more" in str(result).replace("\n", " ")


def test_the_table_is_80_wide_and_the_json_is_plain(lab: Lab) -> None:
    name = "a_module_with_a_rather_long_name"
    model = Net(lambda net, inputs: getattr(net, name)(inputs), **{name: Pointwise()})
    result = lab.probe(model=model, slots=["*.stem"], steps=27)
    lines = str(result).splitlines()
    assert max(map(len, lines)) == 80
    assert lines[3].split()[:2] == ["slot", "blueprint"]
    assert re.match(r"a_modu\S*…\S*stem neighbours ", lines[4])
    decoded = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert decoded["format"] == 1
    fields = {"slot", "blueprint", "gain", "at_least", "parameters", "flops", "seconds", "pays"}
    assert set(decoded["rows"][0]) >= fields
    assert decoded["rows"][0]["slot"] == f"{name}.stem"


def test_at_most_two_copies_live_beside_the_model(lab: Lab) -> None:
    """The trained host and one that is trained from it: candidates come one after the other."""
    living: list[int] = []
    calls = itertools.count()

    def counted(model: nn.Module, batch: Batch) -> Tensor:
        if next(calls) % 7 == 0:  # it takes its time
            models = [candidate for candidate in gc.get_objects() if isinstance(candidate, Pointwise)]
            living.append(sum(model.head.weight.numel() > 0 for model in models))
        return per_example(model, batch)

    counted(lab.model, lab.train[0])
    lab.probe(loss=counted, steps=9)
    assert max(living) - living[0] == 2


def detached(model: nn.Module, batch: Batch) -> Tensor:
    return per_example(model, batch).detach()


def confused(model: nn.Module, batch: Batch) -> Tensor:
    return per_example(model, batch[0])  # type: ignore[arg-type]


class Locked(nn.Module):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("cannot pickle a lock")


class Shared(nn.Linear):
    def __deepcopy__(self, memo: Any) -> Any:
        return self


NAN = [(torch.full((120, 1, 12), torch.nan), torch.zeros(120, dtype=torch.long))]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "a model"}, "E350 .*Received: str"),
        ({"model": Locked()}, "E350 .*cannot be copied: TypeError: cannot pickle a lock"),
        ({"model": nn.Sequential(nn.Flatten(), Shared(12, 2))}, "E350 .*its copy shares 1.weight"),
        ({"model": nn.Linear(12, 2, device="meta")}, "E350 .*meta, where tensors have no values"),
        ({"optimizer": 0.1}, "E340 .*Received: float"),
        ({"optimizer": torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)}, "E341 .*none of the model's parameters"),
        ({"loss": opaque_mean}, "E353 .*losses of 1 batches(?s:.)*reduction"),
        ({"loss": lambda model, batch: 0.5}, "E342 (?s:.)*Received: float"),
        ({"loss": detached}, "E352 .*does not depend on any parameter(?s:.)*detach"),
        ({"loss": confused}, r"E352 the loss function raised ValueError: .*test_probe.py:\d+"),
        ({"optimizer": partial(torch.optim.SGD, lr=1e30)}, "E352 .*validation loss .*is (nan|inf) after 5 steps"),
        ({"validation": NAN}, "E352 .*is nan after 0 steps"),
        ({"validation": []}, "E344 .*no examples"),
        ({"validation": [rising(60, 2)]}, "E353 .*60 examples(?s:.)*100 at least"),
        ({"validation": None}, "E344 the validation data must yield batches. Received: NoneType"),
        ({"train": per_example}, "E344 the training data must yield batches. Received: function"),
        ({"train": []}, "E344 the training data has no batches"),
        ({"train": iter([rising(60, 1)] * 9)}, "E344 the training data can be read only once"),
        ({"train": DataLoader(Drawn(*rising(60, 1)), 60)}, "E344 the training data yielded other batches"),
        ({"slots": ["stme"]}, r'E313 .*"stme"(?s:.)*Did you mean "stem"'),
        ({"blueprints": ["conv_ligth"]}, "E201 .*conv_ligth"),
        ({"model": graft(Pointwise(), ["stem"])}, "E310 .*slots already"),
        ({"budget": "soon"}, "E354 (?s:.)*Received: 'soon'"),
        ({"price": -1.0}, r"E112 .*-1(?s:.)*probe\.price"),
        ({"model": nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), "slots": "auto"}, "E351 no place for a slot"),
        ({"blueprints": {"stem": []}}, r"E351 no blueprint fits .*sequence \(4, 12\)"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else " and ".join(value),
)
def test_a_wrong_argument_is_refused(lab: Lab, settings: dict[str, Any], message: str) -> None:
    with pytest.raises((EsperError, ValueError), match=message):
        lab.probe(**settings)


def test_an_unknown_option_is_refused_with_the_nearest_name(lab: Lab) -> None:
    with pytest.raises(TypeError, match=r"probe\(\) got .*'on_progres'. Did you mean \"on_progress\""):
        lab.probe(on_progres=print)


@pytest.mark.parametrize(
    "budget", ["", "60", "s", "-5s", "0s", 0, -1.0, float("nan"), float("inf"), True, None, "5 days"]
)
def test_an_invalid_time_budget_is_refused(budget: Any) -> None:
    with pytest.raises(EsperError, match="E354"):
        seconds_of(budget)


def normed(channels: int) -> nn.Module:
    """Return a block of functional code around layers: norm last, activation as a function."""

    def compute(net: Any, hidden: Tensor) -> Tensor:
        return torch.relu(hidden + net.norm(net.conv(hidden)))

    return Net(compute, conv=nn.Conv2d(channels, channels, 3, padding=1), norm=nn.BatchNorm2d(channels))


def in_blocks(entrance: nn.Module, blocks: list[nn.Module], head: nn.Module) -> nn.Module:
    """Return a transformer or a convolutional network: a stem, blocks in a list, and a head."""

    def compute(net: Any, inputs: Tensor) -> Tensor:
        hidden = net.entrance(inputs)
        for block in net.blocks:
            hidden = block(hidden)
        return net.head(hidden.flatten(1) if hidden.ndim == 4 else hidden.mean(1))

    return Net(compute, entrance=entrance, blocks=nn.ModuleList(blocks), head=head)


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(40, 2))


def one_block() -> nn.Module:
    return nn.Sequential(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 2))


def functional_blocks() -> nn.Module:
    return in_blocks(nn.Conv2d(3, 4, 3), [normed(4) for _ in range(2)], nn.Linear(144, 2))


def called_twice() -> nn.Module:
    def compute(net: Any, ids: Tensor) -> Tensor:
        hidden, _ = net.mix(net.twice(net.twice(net.embed(ids))))
        return net.head(hidden[:, -1])

    parts = {"embed": nn.Embedding(9, 8), "mix": nn.GRU(8, 8, batch_first=True)}
    return Net(compute, **parts, head=nn.Linear(8, 2), twice=nn.Linear(8, 8))


def ten_blocks() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    return in_blocks(nn.Linear(5, 8), [layer, *(nn.Linear(8, 8) for _ in range(9))], nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("build", "inputs", "kind", "places"),
    [
        (convolutional, torch.randn(4, 1, 12), "sequence", ["2"]),
        (one_block, torch.randn(4, 6), "vector", ["0", "0.1"]),
        (functional_blocks, torch.randn(4, 3, 8, 8), "image", ["entrance", "blocks.0", "blocks.1"]),
        (ten_blocks, torch.randn(4, 7, 5), "tokens", ["entrance", "blocks.2", "blocks.6", "blocks.9"]),
        (called_twice, torch.randint(9, (4, 7)), "tokens", ["embed", "mix"]),
    ],
    ids=["activations", "inside of one block", "functional blocks", "spread over ten blocks", "called twice"],
)
def test_automatic_places_are_found(build, inputs, kind, places):
    model = build()
    attach_slots(model, "auto", Example.of(inputs))
    assert {slot.name: slot.site.kind for slot in slots_of(model) if slot.site} == dict.fromkeys(places, kind)
