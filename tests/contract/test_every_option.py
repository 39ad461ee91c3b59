"""Every option of a configuration has a visible effect.

There is one row for each key of the model: the value, the observed effect, and its result with and without the value. A
key without a row fails the first test; a row with equal results also fails, since it shows no effect.
"""

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import pytest
import torch

from esper_core.governor import Act
from esper_core.growth import Host, Transition, slots_of
from esper_core.leyline import Action, Cause, Gain, Op, Reason, Stage
from esper_core.leyline.constants import FIRST_LOOK
from esper_core.trainer.groups import Groups
from esper_run.app.interrupts import handled_signals
from esper_run.config.errors import Entry, entry_at
from esper_run.stores import open_store
from esper_run.watchdog import watched

# --- observed effects


refusal: Callable[[Any], str | None] = attrgetter("refusal")
arms: Callable[[Any], tuple[str, ...]] = attrgetter("composition.arm_names")


def has_zeros(world: Any) -> bool:
    return bool(world.recipe.data["train"].inputs.eq(0).any())


def host_class(world: Any) -> str:
    return type(world.recipe.build_host()).__name__


def first_action(world: Any) -> str:
    return world.steps[0].action.title


def pays_rent(world: Any) -> bool:
    return any(step.reward["rent"] < 0 for step in world.steps)


def noted(world: Any) -> str:
    return world.written("noted.txt")


def updates(world: Any) -> int:
    """How often the host's optimizer has stepped after one step."""
    return int(next(iter(world.environment(steps=1).keeper.host.optimizer.state.values()))["step"])


def seed_in(environment: Any) -> Any:
    (seed,) = environment.garden.living_seeds()
    return seed


def grown(world: Any) -> Any:
    return world.environment({-1: GERMINATE})


GERMINATE = Action(Op.GERMINATE, "early", "blueprints/conv_light", speed=0)
KEPT = {-1: GERMINATE, 0: Action(Op.ADVANCE, "early"), 1: Action(Op.FOSSILISE, "early")}
"""A plan that fossilises a seed after the second step."""


def host_group(world: Any) -> Any:
    """Return the settings of the host's optimizer in the first step."""
    return world.environment(steps=1).keeper.host.optimizer.param_groups[0]


def seed_group(world: Any) -> Any:
    """Return the settings of the seed's optimizer in its first step."""
    return world.environment({-1: GERMINATE}, steps=1).keeper.seeds[0].optimizer.param_groups[0]


def moved(world: Any, of_seed: bool = False) -> bool:
    """Return whether a training step noticeably changes the parameters of the host, or of a seed."""
    environment = world.environment({-1: GERMINATE} if of_seed else None)
    parameters = list(seed_in(environment).parameters()) if of_seed else list(environment.keeper.host.parameters)
    before = [parameter.detach().clone() for parameter in parameters]
    environment.train()
    return max(float((now - was).detach().abs().max()) for now, was in zip(parameters, before, strict=True)) > 1e-4


def fossil_moves(world: Any) -> bool:
    """Return whether a fossil continues to train."""
    environment = world.environment(KEPT, steps=2)
    parameters = list(environment.garden.slots["early"].parameters())
    before = [parameter.detach().clone() for parameter in parameters]
    environment.train()
    return any(not torch.equal(now, was) for now, was in zip(parameters, before, strict=True))


def plantable(environment: Any, slot: str = "early") -> bool:
    return Op.GERMINATE in environment.mask().ops[slot] and bool(environment.mask().blueprints[slot])


def judged_by_latest_weights(world: Any) -> bool:
    environment = world.environment(steps=2)
    judged = environment.evaluate("validation")
    latest = environment.network.evaluate(environment._evaluation("validation"), averaged=False)
    return torch.equal(judged, latest.means)


def presence(world: Any) -> str:
    return seed_in(world.environment({-1: GERMINATE}, steps=1)).presence.value


def gates_ready(world: Any, mean: float) -> bool:
    """Return whether the gate of a seed with this gain in each step opens, once it has had its looks."""
    environment = world.environment({-1: GERMINATE}, steps=1)
    gates, seed = environment.garden.gates, seed_in(environment)
    for _ in range(FIRST_LOOK):
        gates.look([seed], {seed.number: Gain(800, mean, 0.1, 0.0, mean - 0.2, mean + 0.2)}, {seed.number: 0.1}, 0.2)
    return gates.ready(seed)


def price(world: Any, loss: float = 2.0) -> float:
    """Return the price of a seed beside this loss of its host."""
    (price,) = world.environment({-1: GERMINATE}, steps=1).network.prices.of_living(loss, 0.5, {}).values()
    return price


def adapter_price(world: Any) -> float:
    """Return the price of a seed of 100 parameters on a frozen host."""
    environment = world.environment()
    environment.model.requires_grad_(False)
    growth = environment.recipe.network.growth
    return round(Host(environment.model).prices(growth, None).price(100, 100, 0, 1.0), 4)


def counts_examples(world: Any) -> bool:
    """Return whether each difference that a gain is measured by is a whole number: an example was right, or was not."""
    gains = [seed.gain for step in world.steps for slot in step.signals.slots for seed in slot.seeds if seed.gain]
    return all(gain.worst.is_integer() and gain.best.is_integer() for gain in gains)


JUST_KEPT = Transition("early", 0, "blueprints/conv_light", Stage.HOLDING, Stage.FOSSILISED, 10, Reason(Cause.POLICY))


def last_act(*losses: float) -> Callable[[Any], Act]:
    """Return what the governor does in the last of these steps, in a host of which a seed has just become a part."""
    return lambda world: world.governed(*losses, note=[JUST_KEPT])[-1].act


def culprit(world: Any) -> bool:
    """Return whether a panic six steps after a seed was kept is attributed to it."""
    return world.governed(*[1.0] * 6, math.nan, note=[JUST_KEPT])[-1].culprit is not None


def snapshots(world: Any) -> int:
    """Return how many snapshots are kept after some steps."""
    governor = world.environment(steps=6).network.governor
    return len(governor.state_dict().plain["snapshots"]["kept"])


def checkpoints(world: Any) -> set[str]:
    return {path.name for path in (world.directory / "checkpoints").iterdir()}


def stored(world: Any) -> str | None:
    """Return the status of the newest upload."""
    run = open_store("memory://runs").storage.find(world.directory.name)
    return None if run is None else run.status


def parts_of_a_batch(world: Any) -> int:
    environment, train = world.environment(), world.recipe.data["train"]
    return len(environment.forward.losses(train.inputs[:20], train.targets[:20]))


def passed_by_the_run(function: Callable[..., Any], place: int) -> Callable[[Any], Any]:
    """Return what a run passes to a function when it first calls it, as the argument at this place."""

    def look(world: Any) -> Any:
        seen: list[Any] = []

        def noted(*arguments: Any) -> Any:
            seen.append(arguments[place])
            return function(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(f"esper_run.app.run.{function.__name__}", noted)
            _ = type(world)(world._sets, world._folder).events
        return seen[0]

    return look


def is_in_a_group(world: Any) -> bool:
    """Return whether the networks of a run are computed together."""
    return not Groups(world.recipe).why_alone(world.environment())


def lays_channels_last(world: Any) -> bool:
    weight: torch.Tensor = world.recipe.build_host().middle.conv.weight
    return weight.is_contiguous(memory_format=torch.channels_last)


def has_a_feed(world: Any) -> bool:
    """Return whether a thread gathers the batches of an environment."""
    environment = world.environment()
    environment.reset(0, 0)
    environment.train()
    names = [thread.name for thread in threading.enumerate()]
    environment.close()
    return any(name.startswith("feed") for name in names)


# --- the rows


@dataclass(frozen=True)
class Row:
    """One option. ``also``: what is set with and without it, so that it matters."""

    path: str
    value: str
    """The value; with a = in it, the whole override."""
    look: Callable[[Any], Any]
    without: Any
    seen: Any
    also: tuple[str, ...] = field(default=())

    @property
    def set(self) -> str:
        return self.value if "=" in self.value else f"{self.path}={self.value}"


def of_optimizer(side: str, group: Callable[[Any], Any]) -> list[Row]:
    """The options of one optimizer, which goes by ``group(world)``."""
    section = f"optimizer.{side}"
    sgd, warm, fast = f"{section}.kind=sgd", f"{section}.schedule=warmup", f"{section}.learning_rate=1.0"
    return [
        Row(f"{section}.kind", "sgd", lambda w: "momentum" in group(w), False, True),
        Row(f"{section}.learning_rate", "0.5", lambda w: group(w)["lr"], 0.003, 0.5),
        Row(f"{section}.momentum", "0.5", lambda w: group(w)["momentum"], 0.9, 0.5, (sgd,)),
        Row(f"{section}.weight_decay", "0.1", lambda w: group(w)["weight_decay"], 0.0, 0.1),
        Row(f"{section}.clip_norm", "1e-9", lambda w: moved(w, side == "seed"), True, False, (sgd, fast)),
        Row(f"{section}.schedule.use", warm, lambda w: group(w)["lr"], 0.003, 0.001),
        Row(f"{section}.schedule.settings", "{over: 5}", lambda w: group(w)["lr"], 0.001, 0.0005, (warm,)),
        Row(f"{section}.implementation", "foreach", lambda w: (group(w)["fused"], group(w)["foreach"]), *KERNELS),
    ]


KERNELS = ((True, None), (None, True))
"""Fused and foreach: by default, and as they are asked for."""
TWO = ("slots.early.blueprints=[conv_light, norm]",)
MNIST = ("task=mnist1d",)
IMAGES = ("task=images-synthetic", "host=cnn2d", "slots.late.blueprints=[conv_light]")
ONE_SLOT = "slots={early: {blueprints: [conv_light]}}"
SHADOW = ("growth.incubation=shadow",)
STRICT = (*MNIST, "growth.gates=strict")
RARELY = ("checkpoints.keep=9", "checkpoints.every=100")
NO_RATIO = ("governor.surge_ratio=1.0",)
RAY = ("engine=ray",)
LANES = ("lanes=2", "environments=2")
WAVERING = [1.4, 1.0] * 3
LEARNING = [2.5] * 3 + [1.0] * 3
CALM = [1.0] * 6
OWN = ("plugins.local=[own.py]",)
NOTED = (*OWN, "sinks=[note]")
FREE = "{use: team, settings: {price: 0}}"
LATE = "arms={a: {policy: {use: schedule, settings: {plan: [{step: 0, op: germinate, slot: late, blueprint: mlp}]}}}}"
EARLY_GROWS, LATE_GROWS = "germinate early blueprints/conv_light", "germinate late blueprints/mlp"
PRUNED = {-1: GERMINATE, 0: Action(Op.PRUNE, "early", speed=0)}

ROWS = [
    Row("name", "by-hand", lambda w: "by-hand" in w.directory.name, False, True, OWN),
    Row("task.use", "task=mnist1d", lambda w: len(w.recipe.data["train"]), 200, 3200),
    Row("task.settings", "task.settings.noise=0.0", has_zeros, False, True),
    Row("host.use", "host=cnn1d", host_class, "PointwiseMlp", "Convolutional", (ONE_SLOT,)),
    Row("host.settings", "host.settings.hidden=8", lambda w: w.composition.host_parameters, 2228, 572),
    Row(
        "slots.NAME.at",
        "slots.early.at=stem.0",
        lambda w: slots_of(w.environment().model).places()["early"],
        "stem",
        "stem.0",
    ),
    Row("slots.NAME.output", "slots.early.output=0", refusal, None, "E317"),
    Row("slots.NAME.kind", "slots.early.kind=vector", refusal, None, "E317"),
    Row("slots.NAME.blueprints", *TWO, lambda w: len(w.composition.space.blueprints["early"]), 1, 2),
    Row("slots.NAME.stack", "slots.early.stack=2", lambda w: plantable(w.environment(KEPT, steps=2)), False, True),
    Row("policy.use", "policy=static", lambda w: {e.action.title for e in w.steps} == {"wait"}, False, True),
    Row("policy.settings", "{plan: []}", first_action, EARLY_GROWS, "wait"),
    Row("arms.NAME.policy.use", "arms={a: {policy: static}}", arms, ("schedule", "twin"), ("a", "twin")),
    Row("arms.NAME.policy.settings", LATE, first_action, EARLY_GROWS, LATE_GROWS),
    Row("twin", "false", arms, ("schedule", "twin"), ("schedule",)),
    Row("reward.use", "reward=rewards/nobody", refusal, None, "E204"),
    Row("reward.settings", f"reward={FREE}", pays_rent, True, False),
    Row("sinks.[0].use", "sinks=[note]", noted, "", "unset", OWN),
    Row("sinks.[0].settings", "sinks=[{use: note, settings: {mark: x}}]", noted, "unset", "x", NOTED),
    Row("seed", "7", lambda w: w.told("episode-finished")[0].seed, 0, 7),
    Row("environments", "2", lambda w: len(w.told("episode-finished")), 2, 4),
    Row("rounds", "2", lambda w: {e.round for e in w.told("episode-finished")}, {0}, {0, 1}),
    Row("episode.steps", "2", lambda w: w.told("episode-finished")[0].steps, 4, 2),
    Row("episode.batches", "3", updates, 1, 3),
    Row("episode.batch_size", "10", lambda w: len(w.environment().order.next()), 20, 10),
    *of_optimizer("host", host_group),
    *of_optimizer("seed", seed_group),
    Row("growth.incubation", "shadow", presence, "branched", "acting"),
    Row("growth.gates", "strict", lambda w: w.environment().garden.gates.open, True, False, MNIST),
    Row("growth.evidence", "loss", counts_examples, True, False, ("growth.average=0",)),
    Row("growth.average", "0.0", judged_by_latest_weights, False, True),
    Row("growth.final_weights", "average", lambda w: w.environment().network.averages.is_final, False, True),
    Row("growth.price.doubling", "0.0", lambda w: price(w) > 0, True, False),
    Row("growth.price.of", "parameters", lambda w: price(w) < 0.04, False, True, ("growth.evidence=loss",)),
    Row("growth.price.budget", "100", adapter_price, 0.0257, 0.011),
    Row("growth.price.floor", "1.5", lambda w: price(w, 1.5) > 0, True, False, ("growth.evidence=loss",)),
    Row("growth.price.per_parameter", "0.5", lambda w: price(w) > 1, False, True),
    Row("growth.auto_advance", "false", lambda w: gates_ready(w, 0.9), True, False, STRICT),
    Row("growth.nursery", "1", lambda w: plantable(grown(w)), True, False, TWO),
    Row("growth.embargo", "0", lambda w: plantable(w.environment(PRUNED, steps=1)), False, True),
    Row("growth.seeds", "1", lambda w: plantable(grown(w), "late"), True, False, SHADOW),
    Row("growth.parameters", "1", lambda w: plantable(w.environment()), True, False),
    Row("growth.freeze_fossils", "true", fossil_moves, True, False),
    Row("governor.enabled", "false", last_act(1.0, math.nan), Act.ROLL_BACK, Act.CONTINUE),
    Row("governor.rollback", "false", last_act(1.0, math.nan), Act.ROLL_BACK, Act.STOP),
    Row("governor.rollbacks", "1", last_act(math.nan, math.nan), Act.ROLL_BACK, Act.STOP),
    Row("governor.penalty", "2.0", lambda w: w.governed(math.nan)[-1].penalty, 5.0, 2.0),
    Row("governor.snapshot_steps", "2", lambda w: w.governed(*[1.0] * 5, math.nan)[-1].back_to, 0, 4),
    Row("governor.snapshots", "3", snapshots, 2, 3),
    Row("governor.history_steps", "3", last_act(*LEARNING, 2.3), Act.CONTINUE, Act.WARN),
    Row("governor.surge_sigmas", "1.0", last_act(*WAVERING, 1.8), Act.CONTINUE, Act.WARN, NO_RATIO),
    Row("governor.surge_ratio", "1.5", last_act(*CALM, 1.8), Act.CONTINUE, Act.WARN),
    Row("governor.surge_steps", "1", last_act(*CALM, 2.5), Act.WARN, Act.ROLL_BACK),
    Row("governor.collapse_share", "0.5", last_act(*CALM, 2.5), Act.WARN, Act.ROLL_BACK),
    Row("governor.watch_steps", "2", culprit, True, False),
    Row("governor.patience", "3", last_act(*[1.0] * 4), Act.CONTINUE, Act.EARLY_STOP),
    Row("compute.precision", "float16", lambda w: w.steps[0].signals.loss_scale, None, 65536.0),
    Row("compute.micro_batches", "4", parts_of_a_batch, 1, 4),
    Row("compute.compile", "true", lambda w: w.environment().network.compiled is not None, False, True),
    Row("compute.fused", "false", is_in_a_group, True, False),
    Row("compute.layout", "plain", lays_channels_last, True, False, IMAGES),
    Row("compute.data", "streamed", has_a_feed, False, True),
    Row("device", "cuda:99", refusal, None, "E123"),
    Row("devices", "[cpu, cuda:99]", refusal, None, "E123"),
    Row("lanes", "2", lambda w: "lane" in w.threads, False, True),
    Row("engine.use", "processes", lambda w: w.lives_here, True, False, LANES),
    Row("engine.settings", "{wait_seconds: 5}", lambda w: w.asked_of_ray.wait_seconds, 300, 5, RAY),
    Row("grace", "7", passed_by_the_run(handled_signals, 1), 20.0, 7.0),
    Row("patience", "77", passed_by_the_run(watched, 0), None, 77.0),
    Row("randomness", "always", lambda w: w.recipe.network.draws.name, "NEVER", "ANYWHERE"),
    Row("capacity", "false", lambda w: bool(w.composition.controls), True, False),
    Row("checkpoints.every", "1", lambda w: "000002" in checkpoints(w), False, True, RARELY),
    Row("store", "memory://runs", stored, None, "done"),
    Row("checkpoints.keep", "1", lambda w: len(checkpoints(w)), 2, 1, ("checkpoints.every=1",)),
    Row("plugins.disable", "[policies]", refusal, None, "E203"),
    Row("plugins.local", "[own.py]", refusal, "E225", None, ("sinks=[note]",)),
]


def keys(entry: Entry, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield every key of the model that has a value; keys that users choose are NAME."""
    if entry.section is not None:
        for name in entry.names:
            below = entry.below(name)
            assert below is not None
            yield from keys(below, (*path, name))
        return
    for step, name in (("NAME", "NAME"), (0, "[0]")):
        below = entry.below(step)
        if below is not None and below.section is not None:
            yield from keys(below, (*path, name))
            return
    yield ".".join(path)


def test_run_12_every_option_has_a_row_here() -> None:
    """An option that no test sets could raise or do nothing."""
    top = entry_at(())
    assert top is not None
    option_paths, rows = list(keys(top)), [row.path for row in ROWS]
    missing = [f'Row("{path}", "{path}=…", lambda w: …, without, with)' for path in option_paths if path not in rows]
    assert missing == [], "each of these options needs a row in ROWS that says what it changes"
    assert [path for path in rows if path not in option_paths] == [], "these rows are of options that are gone"
    assert len(rows) == len(set(rows))


@pytest.mark.install  # CI runs it for every change
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.path)
def test_run_12_an_option_has_the_effect_that_it_is_there_for(row: Row, world) -> None:
    assert row.without != row.seen, "a row has to look different with the option"
    instead = ("policy=null",) if row.path.startswith("arms.") else ()
    assert row.look(world(*row.also)) == row.without
    assert row.look(world(*row.also, *instead, row.set)) == row.seen
