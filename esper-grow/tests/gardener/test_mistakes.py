"""Mistakes are reported where they are made, with what to do."""

import copy
import gc
import re
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn, optim
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from esper_core import EsperError, graft
from esper_core.growth import Garden, host_parameters, slots_of
from esper_core.leyline import Action, Op, SlotPlace
from esper_grow import Gardener
from esper_grow.integrations.attachment import Attachment
from tests.support.core_worlds import Drawn, NoisyHost, PlannedPolicy, SmoothHost, per_example
from tests.support.loops import adam, make_loop


def mean_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return per_example(model, batch).sum() / len(batch[1])


def ranks(number: int) -> Any:
    """Let torch report so many ranks."""
    return mock.patch.multiple("torch.distributed", is_initialized=lambda: True, get_world_size=lambda *_: number)


GERMINATE = {0: Action(Op.GERMINATE, "stem", "test/local-conv")}
FULL_LIFE = None
"""The plan of the loop itself: a seed germinates, is blended in, and is kept in the fourth step."""


def epochs(count: int, plan: Any = FULL_LIFE, **settings: Any) -> Callable[[Any], Any]:
    return lambda loop: loop.tended(plan, **settings).epochs(count)


def step_once_an_epoch(loop: Any) -> None:
    gardener = loop.tended({}).gardener
    for batch in loop.batches:
        loop.train(batch)
    gardener.step(batch)
    gardener.tend()


def do_nothing(loop: Any) -> None:
    with loop.tended({}).gardener:
        loop.train(loop.batches[0])


def never_tend(loop: Any) -> None:
    with loop.tended({}).gardener as gardener:
        for batch in loop.batches:
            loop.train(batch)
            gardener.step(batch)


def never_tend_for_long(loop: Any) -> None:
    with mock.patch("esper_grow.gardener.loop_environment.STEPS_WITHOUT_TEND", 3):
        loop.tended({}).epoch()


def close_early(loop: Any) -> None:
    loop.tended(GERMINATE).epochs(2)
    loop.gardener.close()


def doubled(batches: Any) -> list[Any]:
    return [(inputs.double(), targets) for inputs, targets in batches]


def cast_while_a_seed_lives(loop: Any) -> None:
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), 1e-2)
    loop.tended(GERMINATE).epoch()
    loop.model.double()
    loop.batches = doubled(loop.batches)
    loop.epoch()


def unfreeze_the_base(loop: Any) -> None:
    loop.model.stem.requires_grad_(requires_grad=False)
    loop.optimizer = adam([parameter for parameter in loop.model.parameters() if parameter.requires_grad])
    loop.tended(GERMINATE).epoch()
    loop.model.requires_grad_(requires_grad=True)
    loop.epoch()


def replace_a_layer(loop: Any) -> None:
    loop.tended(GERMINATE).epoch()
    loop.model.stem = nn.Conv1d(1, 4, 1)
    loop.epoch()


def replace_another_layer(loop: Any) -> None:
    loop.tended(GERMINATE).epoch()
    loop.model.head = nn.Linear(8, 3)
    loop.optimizer.add_param_group({"params": loop.model.head.parameters()})
    loop.epoch()


def replace_statistics(loop: Any) -> None:
    loop.model.drop = nn.BatchNorm1d(4, affine=False)
    loop.tended(GERMINATE).epoch()
    loop.model.drop = nn.BatchNorm1d(4, affine=False)
    loop.epoch()


def replace_the_optimizer(loop: Any) -> None:
    loop.tended(GERMINATE).epoch()
    loop.optimizer = torch.optim.Adam(loop.model.parameters())
    loop.epoch()


def replace_one_of_two_optimizers(loop: Any) -> None:
    *stem, last = loop.model.parameters()
    loop.optimizer, loop.optimizers = adam(stem), [adam([last])]
    loop.tended({}, optimizer=[loop.optimizer, *loop.optimizers]).epoch()
    loop.optimizers = [adam([last])]
    loop.epoch()


def move_frozen_statistics(loop: Any) -> None:
    loop.model.norm = nn.BatchNorm1d(4).requires_grad_(requires_grad=False)
    loop.tended({}, slots=["head"], blueprints=["lora(rank=2)"]).epochs(2)


def add_all_parameters_again(loop: Any) -> None:
    loop.tended({**GERMINATE, 1: Action(Op.ADVANCE, "stem")}).epoch()
    loop.optimizer.param_groups.clear()
    loop.optimizer.add_param_group({"params": list(loop.model.parameters())})
    loop.epoch()


def validate_on_a_data_set(loop: Any) -> None:
    loop.validation = TensorDataset(*loop.validation[0])
    loop.tended({}).epoch()


def start_ranks(loop: Any) -> None:
    with ranks(2), pytest.raises(EsperError, match=r"E343 .*2 ranks"):
        loop.tended()
    loop.tended({})
    with ranks(2):
        loop.epoch()


def average_buffers(loop: Any) -> None:
    average = AveragedModel(loop.model, use_buffers=True)
    loop.tended(GERMINATE).epoch()
    del average


def average_a_pruned_seed(loop: Any) -> None:
    loop.tended({**GERMINATE, 2: Action(Op.PRUNE, "stem", speed=0)}).epochs(2)
    average = AveragedModel(loop.model)
    loop.epoch()
    del average


def clip_a_list_from_before(loop: Any) -> None:
    clipped = list(loop.model.parameters())
    loop.tended().epochs(5)
    del clipped


def average_by_place(loop: Any, average: Any) -> None:
    def follow() -> None:
        values = average.values() if isinstance(average, dict) else getattr(average, "parameters", average.copy)()
        for mean, parameter in zip(values, loop.model.parameters(), strict=False):
            mean.detach().lerp_(parameter.detach(), 0.1)

    loop.after.append(follow)
    loop.tended().epochs(6)


def average_in_a_list(loop: Any) -> None:
    average_by_place(loop, [parameter.detach().clone() for parameter in loop.model.parameters()])


def average_in_a_dict(loop: Any) -> None:
    average_by_place(loop, {name: parameter.detach().clone() for name, parameter in loop.model.named_parameters()})


def average_in_a_copy(loop: Any) -> None:
    average = copy.deepcopy(loop.model)
    average.copy = None
    average_by_place(loop, average)


def average_in_a_copy_of_the_grafted_model(loop: Any) -> None:
    average = copy.deepcopy(loop.tended().model)

    def follow() -> None:
        for name, mean in average.named_parameters():
            mean.detach().lerp_(loop.model.get_parameter(name).detach(), 0.1)

    loop.after.append(follow)
    loop.epochs(6)


def step_twice(loop: Any) -> None:
    loop.tended(GERMINATE)
    loop.after.append(lambda: loop.gardener.step(loop.batches[0]) or loop.gardener.step(loop.batches[0]))
    loop.epoch()


def train_on_validation_data(loop: Any) -> None:
    loop.validation = loop.batches
    loop.tended({}).epochs(2)


def freeze_before_the_step(loop: Any) -> None:
    """As a loop freezes one of two models, while the other learns from it."""
    loop.tended(GERMINATE).epoch()
    loop.train(loop.batches[0])
    loop.model.requires_grad_(requires_grad=False)
    loop.gardener.step(loop.batches[0])


def draw_validation_data(loop: Any) -> None:
    loop.validation = DataLoader(Drawn(*loop.validation[0]), 20)
    loop.tended().epochs(2)


def fill_all_slots(loop: Any) -> None:
    loop.tended().epochs(4)
    loop.gardener.close()
    loop.tended({}, slots=None)


def pass_inputs_alone(loop: Any) -> None:
    loop.tended({})
    loop.train(loop.batches[0])
    loop.gardener.step(loop.batches[0][0])
    loop.gardener.tend()


def leave_easy_examples_out(loop: Any) -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        losses = per_example(model, batch)
        return losses[losses > 0.8]

    loop.tended(GERMINATE, loss=loss).epochs(8)


def load_leniently(loop: Any) -> None:
    new = copy.deepcopy(loop.model)
    loop.tended().epochs(4)
    graft(new, ["stem"]).load_state_dict(loop.model.state_dict(), strict=False)


def fall_back_to_best_weights(loop: Any) -> None:
    loop.tended(GERMINATE).epochs(2)
    with torch.no_grad():
        loop.model.head.weight.mul_(0.9)
    loop.epoch()


class Counting(NoisyHost):
    passes, outputs, best, edges = 0, None, float("nan"), torch.eye(2, dtype=torch.long).to_sparse()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.passes += self.training
        self.outputs = super().forward(inputs)  # which only tells of the pass
        return self.outputs


def count_passes(loop: Any) -> None:
    example = tuple(part[:12] for part in loop.batches[0])  # as many as the slot has positions
    make_loop(host=Counting).tended({}, example=example)


def load_what_was_before(loop: Any) -> None:
    before = copy.deepcopy(loop.model.state_dict())
    loop.tended().epochs(4)
    loop.model.load_state_dict(before)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (step_once_an_epoch, "E370 .*for 1 of 3 steps"),
        (lambda loop: Attachment({}, every=0), "E347 every .*Received: 0"),
        (do_nothing, r"E371 tend\(\) was never called and step\(\) neither"),
        (never_tend, r"E371 tend\(\) was never called in 3 steps.*\n  Seeds are kept in tend\(\)"),
        (never_tend_for_long, "E371 .*not called for 3 steps"),
        (epochs(3, {}, steps=2), "E371 .*more often than steps=2 says"),
        (close_early, r"E371 close\(\) pruned .*test/local-conv in stem"),
        (lambda loop: loop.tended().tended(slots=None), "E357 .*has a Gardener already"),
        (cast_while_a_seed_lives, "E358 .*float32 on cpu .*is float64 on cpu"),
        (unfreeze_the_base, r"E358 .*frozen parameters require gradients now, such as stem\.(?s:.)*Freeze them again"),
        (replace_a_layer, 'E358 slot "stem" acts no more, because its module was replaced'),
        (replace_another_layer, r"E358 .*other layers than when seeds germinated, such as head\.weight"),
        (replace_statistics, "E358 .*other layers than when seeds germinated, such as drop"),
        (lambda loop: loop.tended().gardener.tend(), r"E345 .*gardener.step\(batch\) was not called"),
        (replace_the_optimizer, "E345 .*the optimizer did not step"),
        (replace_one_of_two_optimizers, "E374 1 of 2 optimizers.*did not step"),
        (move_frozen_statistics, "E375 1 frozen BatchNorm layer in training mode, such as norm"),
        (add_all_parameters_again, "E304 .*stem.seeds.0(?s:.)*host_parameters"),
        (validate_on_a_data_set, "A data set yields single examples: pass a DataLoader"),
        (start_ranks, "E343 .*2 ranks"),
        (average_buffers, "E349 .*averages buffers, too.*germinated"),
        (average_a_pruned_seed, "E349 .*pairs tensors wrongly"),
        (clip_a_list_from_before, "E349 a list of 8 parameters was made before test/local-conv was kept"),
        (average_in_a_list, r"E349 an average of the weights \(list\) was made before test/local-conv was kept"),
        (average_in_a_dict, r"E349 an average of the weights \(dict\) was made before"),
        (average_in_a_copy, r"E349 an average of the weights \(NoisyHost\) was made before"),
        (average_in_a_copy_of_the_grafted_model, r"E349 an average of the weights \(NoisyHost\) was made before"),
        (freeze_before_the_step, r"E358 what grows is frozen(?s:.)*before requires_grad_\(False\)"),
        (step_twice, "E370 .*twice with a batch"),
        (train_on_validation_data, "E372 .*passed to step"),
        (draw_validation_data, "E344 .*other examples"),
        (epochs(2, {}, growth={"gates": "strict"}), "E361 the validation data has 60 losses, and gates need 100"),
        (fill_all_slots, "E373 no slot is free.*stem keeps 1"),
        (pass_inputs_alone, r"got the batch of step\(\): Tensor"),
        (leave_easy_examples_out, r"E342 .* losses with a seed, \d+ without"),
        (load_leniently, "E334 .*test/local-conv in stem, and this one has no seeds"),
        (fall_back_to_best_weights, r"E376 the loop has changed the weights since tend\(\)"),
        (count_passes, "E377 each pass changes attributes of the model: passes\n"),
        (load_what_was_before, "Missing key.*stem._esper.for_esper_grow.load"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_mistake_in_the_loop_is_named(caplog, mistake, message):
    raised = ""
    try:
        mistake(make_loop())
    except (EsperError, RuntimeError, ValueError, IndexError) as error:
        raised = "\n".join([str(error), *getattr(error, "__notes__", ())])
    assert re.search(message, raised + caplog.text)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_loop_that_trains_otherwise_than_the_loss_of_its_branches_is_told_so(smoothing, caplog):
    loop = make_loop(host=SmoothHost).tended(GERMINATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(loop.optimizer, 0.1, total_steps=40)

    def train(batch: Any) -> None:
        loop.optimizer.zero_grad()
        nn.functional.cross_entropy(loop.model(batch[0]), batch[1], label_smoothing=smoothing).backward()
        loop.optimizer.step()
        schedule.step()  # before gardener.step(): branches train with the rate of the loop's step

    loop.epochs(3, train)
    assert caplog.text.count("E376 a branch trains otherwise than the loop") == (smoothing > 0.0)


def test_copies_that_are_no_averages_and_lists_of_now_are_not_reported(caplog):
    loop, twin = make_loop(), make_loop()
    best = [parameter.detach().clone() for parameter in loop.model.parameters()]
    teacher, others = copy.deepcopy(loop.model), list(twin.model.parameters())
    loop.after.append(lambda: twin.train(twin.batches[0]) or twin.optimizer.zero_grad())
    loop.after.append(lambda: (dead := [list(loop.model.parameters())]).append(dead))  # type: ignore[arg-type]
    gc.disable()  # as between two of its rounds
    try:
        loop.tended().epochs(4)
    finally:
        gc.enable()
    clipped = list(loop.model.parameters())
    loop.epochs(2)
    assert "E349" not in caplog.text
    assert len(best) == len(others) == len(list(teacher.parameters())) < len(clipped)


def test_layers_that_are_frozen_between_two_tends_are_no_change_of_weights(caplog):
    loop = make_loop().tended(GERMINATE)
    for trains in (True, False, True):
        loop.model.head.requires_grad_(requires_grad=trains)
        loop.epoch()
    assert "E376" not in caplog.text


def test_a_head_that_alone_is_trained_is_not_reported(caplog):
    """A layer holds its parameters in a dict of its own."""
    loop = make_loop()
    loop.model.requires_grad_(requires_grad=False).head.requires_grad_(requires_grad=True)
    loop.optimizer = adam(loop.model.head.parameters())
    assert loop.tended().epochs(4)[-1].kept
    assert caplog.text == ""


@pytest.mark.parametrize("built", ["same", nn.Module.parameters, host_parameters], ids=["same", "all", "the host's"])
def test_a_second_gardener_adopts_what_the_first_has_grown(built):
    loop = make_loop().tended(slots={"stem": SlotPlace("stem", stack=2)})
    loop.epochs(4)
    loop.gardener.close()
    if built != "same":
        loop.optimizer = adam(built(loop.model))
    loop.tended(slots=None)
    (fossil,) = slots_of(loop.model).named("stem").fossils
    before = [parameter.detach().clone() for parameter in fossil.parameters()]
    assert any(tended.kept for tended in loop.epochs(4))
    assert not any(torch.equal(parameter, old) for parameter, old in zip(fossil.parameters(), before, strict=True))
    owned = [id(parameter) for group in loop.optimizer.param_groups for parameter in group["params"]]
    assert sorted(owned) == sorted(id(parameter) for parameter in loop.model.parameters())


def test_a_model_may_be_cast_while_no_seed_lives():
    def loss(model: Any, batch: Any) -> torch.Tensor:
        return per_example(model, (batch[0].to(model.head.weight.dtype), batch[1]))

    loop = make_loop(lambda parameters: torch.optim.SGD(parameters, 1e-2)).tended(loss=loss)
    loop.model.double()
    loop.batches = doubled(loop.batches)
    assert loop.epochs(4)[-1].kept
    assert {parameter.dtype for parameter in loop.model.parameters()} == {torch.float64}


def number(model: nn.Module, batch: Any) -> Any:
    return mean_loss(model, batch).item()


def of_each_token(model: nn.Module, batch: Any) -> torch.Tensor:
    return torch.stack([model(batch[0])] * 3, 1).flatten()


def trained_by_itself(model: nn.Module, batch: Any) -> torch.Tensor:
    losses = per_example(model, batch)
    if torch.is_grad_enabled():
        losses.mean().backward()
    return losses


def around_another(parameters: Any) -> torch.optim.Optimizer:
    optimizer = adam(parameters)
    optimizer.inner = adam(parameters)
    return optimizer


def scheduled(parameters: Any) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(parameters, 0.1)
    torch.optim.lr_scheduler.ConstantLR(optimizer)
    return optimizer


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": 0.1}, "E340 .*Received: float"),
        ({"optimizer": [None]}, "E340 .*Received: NoneType"),
        ({"optimizer": torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)}, "E341 .*none of the model's parameters"),
        ({"optimizer": torch.optim.LBFGS}, "E306 LBFGS"),
        ({"optimizer": around_another}, r"E340 Adam steps another optimizer(?s:.)*Gardener\(model, optimizer.inner, "),
        ({"model": nn.Linear}, "E350 .*Received: type"),
        ({"steps": 0}, "E347 steps .*Received: 0"),
        ({"clip_norm": -1.0}, "E347 clip_norm .*Received: -1.0"),
        ({"seed_lr": -1.0}, "E347 seed_lr .*Received: -1.0"),
        ({"seed_lr": 1e-3, "slots": ["stme"]}, "E313"),
        ({"seed_decay": 0.1, "optimizer": optim.Rprop}, "E347 Rprop has no weight decay. Received: seed_decay=0.1"),
        (
            {"seed_lr": 1e-3, "optimizer": scheduled},
            "E347 .*schedule of it was built before(?s:.)*schedule afterwards",
        ),
        ({"growth": "off"}, "E347 growth takes .*Received: 'off'"),
        ({"governor": 3}, "E347 governor takes .*Received: 3"),
        ({"policy": object()}, "E347 a policy needs the method act(?s:.)*Received: object"),
        ({"policy": PlannedPolicy}, "E347 (?s:.)*Received: PlannedPolicy"),
        ({"validation": None}, "E344 .*Received: NoneType"),
        ({"blueprints": []}, "E351 no blueprint fits .*stem: sequence"),
        ({"loss": number}, r"E342 .*each example(?s:.)*Received: float"),
        ({"validation": []}, r"E344 .*no examples(?s:.)*held-out batches"),
        (
            {"loss": nn.functional.cross_entropy},
            r"E342 .*TypeError before it ran the model(?s:.)*def loss(?s:.)*got the example",
        ),
        (
            {"validation": (torch.ones(4, 1, 12), torch.ones(4))},
            r"E344 .*one batch.*tuple with tensors of shape \(4, 1, 12\), \(4,\)\n.*validation=\[batch\]",
        ),
        ({"validation": {"x": torch.ones(4, 1, 12)}}, "E344 .*one batch.*Received: dict with"),
        ({"loss": lambda batch: batch}, r"E342 .*takes 1 positional argument"),
        ({"loss": None}, r"E342 .*'NoneType' object is not callable"),
        ({"validation": iter(())}, "E344 .*only once. Received: tuple_iterator"),
        ({"loss": lambda model, batch: per_example(model, batch).detach()}, "E342 .*no gradient"),
        ({"loss": lambda model, batch: per_example(model, batch) / 0.0}, "E342 20 of 20 .*not finite"),
        ({"loss": of_each_token}, r"E317 .*180 losses\n(?s:.)*one loss for each example: see E342"),
        ({"loss": trained_by_itself}, r"E342 .*calls backward\(\)"),
        ({"slots": ["stme"]}, r'E313 .*"stme"(?s:.)*Did you mean "stem"'),
        ({"slots": None}, "E312 the list of slots is empty"),
        ({"blueprints": ["conv_ligth"]}, "E201 .*conv_ligth"),
        ({"blueprints": {"stmm": ["conv_light"]}}, r'E302 .*"stmm"(?s:.)*Did you mean "stem"'),
        pytest.param(
            {"blueprints": ["gru_*"]},
            r"E305 .*gru_mixer.*kind sequence, and the blueprint takes tokens(?s:.)*These can: .*conv_light",
            marks=pytest.mark.members,
        ),
        ({"policy": "heurstic"}, "E203 .*heurstic"),
        ({"growth": {"incubation": "shadow"}}, "E347 .*branches"),
        ({"growth": {"evidence": "metric"}}, "E347 .*in the loss. Received: evidence metric"),
        ({"growth": {"gate": "off"}}, r"E110 .*\n  growth\.gate\n.*gates"),
        ({"governor": {"rollbacks": "x"}}, r"E11[12] .*\n  governor\.rollbacks"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_wrong_argument_is_refused(settings, message):
    loop = make_loop()
    before = loop.state()
    with pytest.raises((EsperError, ValueError), match=message):
        loop.tended(**settings)
    assert loop.is_as(before)
    assert type(loop.model).__name__ == "NoisyHost"
    assert not hasattr(loop.model, "_esper")
    assert not loop.optimizer._optimizer_step_post_hooks


@pytest.mark.members
def test_an_unknown_option_is_refused_with_the_nearest_name():
    with pytest.raises(TypeError, match=r"Gardener\(\) got an unexpected .*'polcy'. Did you mean \"policy\""):
        Gardener(nn.Linear(1, 1), adam, loss=per_example, validation=[], polcy="heuristic")
    with pytest.raises(TypeError, match=r"'clipnorm'. Did you mean \"clip_norm\""):
        Gardener(nn.Linear(1, 1), adam, loss=per_example, validation=[], clipnorm=1.0)


def test_what_is_named_for_several_slots_grows_where_it_fits():
    loop = make_loop().tended({}, slots=["stem", "hidden"], blueprints=["conv_*", "mlp"])
    loop.epoch()
    (mask,) = loop.policy.masks
    names = {slot: {name.partition("/")[2] for name in blueprints} for slot, blueprints in mask.blueprints.items()}
    assert names == {"stem": {"conv_light", "conv_heavy"}, "hidden": {"mlp"}}


def test_a_grafted_model_needs_no_slots_and_takes_no_others():
    loop = make_loop()
    graft(loop.model, ["stem"])
    with pytest.raises(EsperError, match="E310"):
        loop.tended(slots=["stem"])
    assert loop.tended(slots=None).epochs(4)[-1].kept


def test_a_garden_refuses_an_optimizer_without_a_keeper():
    loop = make_loop()
    graft(loop.model, ["stem"], example=loop.batches[0][0])
    wrong: Any = loop.optimizer
    with pytest.raises(EsperError, match=r"E340 .*Received: Adam(?s:.)*esper_grow.Gardener"):
        Garden(loop.model, wrong, {"stem": [loop.variety]}, seed=0, batches=1)


def test_an_error_of_the_loss_says_which_batch_it_got():
    """A data set of examples, or one batch, was passed instead of batches."""
    loop = make_loop()
    messages = {"example": "the example: Tensor with", "validation": "batch 1 of the validation data: Tensor"}
    for argument, message in messages.items():
        with pytest.raises((EsperError, ValueError, RuntimeError, IndexError)) as caught:
            loop.tended(**{argument: loop.batches[0][0]})
        assert any(message in text for text in (str(caught.value), *getattr(caught.value, "__notes__", ())))

    message = r"E317 .*stem.* returns 20 rows, .* and the loss function 19 losses"
    with pytest.raises(EsperError, match=message) as refused:
        loop.tended(loss=lambda model, batch: per_example(model, batch)[:-1])
    assert "returned 19 losses for an example of 20 rows" in refused.value.__notes__[0]


def test_a_loader_that_shuffles_is_paired_and_its_generator_put_back():
    loop = make_loop()
    generator = torch.Generator().manual_seed(1)
    loop.validation = DataLoader(TensorDataset(*loop.validation[0]), 20, shuffle=True, generator=generator)
    before = generator.get_state()
    assert loop.tended().epochs(4)[-1].kept
    assert torch.equal(generator.get_state(), before)


def test_the_loss_of_a_batch_counts_as_one_example_and_a_warning_says_so(caplog):
    loop = make_loop()
    inputs, targets = loop.validation[0]
    loop.validation = list(zip(inputs.split(20), targets.split(20), strict=True))
    tended = loop.tended(GERMINATE, loss=mean_loss, growth={"gates": "strict"}).epochs(4)
    messages = [record.getMessage() for record in caplog.records]
    assert [message[:4] for message in messages] == ["E360", "E361"]
    assert "3 losses" in messages[1]
    assert "smaller batches" in messages[1]
    assert tended[-1].signals.slots[0].seeds[0].gain.n == 3
