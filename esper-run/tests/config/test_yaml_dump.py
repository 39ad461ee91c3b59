"""Writing a configuration: it is read back as an equal one, whatever its texts look like."""

from itertools import product

from hypothesis import given, settings, strategies as st

from esper_core.settings import EpisodeConfig, GrowthConfig, OptimizerConfig, OptimizersConfig, Use
from esper_run import config as model
from esper_run.config import RunConfig, dump_config, load_config, parse_config
from esper_run.config.model import PluginsConfig
from tests.support.configurations import problem_of

NUMBERS = ["1e-3", "0o7", "0x1F", "1.5e3", ".5", "1_000", "1:30", "007", "+1", "-", ".inf", ".nan", "2026-11-21"]
WORDS = ["~", "", "null", "Null", "true", "no", "yes", "on", "y", "<<", "=", "---", "..."]
MARKED = ["*", "*x", "&x", "!x", "@x", "`x`", "%x", "#x", "x #y", "x: y", "x:", ":x", "- x", "-x", "? x"]
ENCLOSED = ["[x]", "{x}", "x,y", "'x'", '"x"', "\\", "a\nb", "a\n", "\n", "\t", " x", "x ", "a\r\nb"]
CHARACTERS = ["\0", "\x1b[31m", "\x7f", "\x85", "\u2028", "\u2029", "\ufeff", "\xa0", "é", "😀", "\U000e0001"]
AWKWARD = [*NUMBERS, *WORDS, *MARKED, *ENCLOSED, *CHARACTERS]

TEXTS = st.sampled_from(AWKWARD) | st.text(max_size=20)
NAMES = st.sampled_from([text for text in AWKWARD if text]) | st.text(min_size=1, max_size=100)
KEYS = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,49}", fullmatch=True)
SCALARS = st.none() | st.booleans() | st.integers(-(10**90), 10**90) | st.floats(allow_nan=False) | TEXTS
VALUES = st.recursive(SCALARS, lambda value: st.lists(value, max_size=4) | st.dictionaries(TEXTS, value, max_size=4))
USES = st.builds(Use, use=NAMES, settings=st.dictionaries(TEXTS, VALUES, max_size=4))
SLOTS = st.builds(
    model.SlotConfig,
    at=st.none() | NAMES,
    kind=st.sampled_from([None, "image", "sequence", "vector", "tokens"]),
    blueprints=st.lists(NAMES, min_size=1, max_size=4).map(tuple),
    stack=st.integers(1, 8),
)
OPTIMIZERS = st.builds(
    OptimizerConfig,
    kind=st.sampled_from(["adam", "sgd"]),
    learning_rate=st.floats(0, 10, exclude_min=True),
    momentum=st.floats(0, 1, exclude_max=True),
    weight_decay=st.floats(0, 1e30),
    clip_norm=st.none() | st.floats(0, allow_infinity=False, exclude_min=True),
)
RUNS = st.fixed_dictionaries(
    {
        "name": st.none() | KEYS,
        "task": USES,
        "host": USES,
        "slots": st.dictionaries(KEYS, SLOTS, min_size=1, max_size=4),
        "twin": st.just(False),
        "reward": USES,
        "seed": st.integers(0, 2**31 - 1),
        "environments": st.integers(1, 4096),
        "rounds": st.integers(1, 10_000_000 // (3 * 4096)),
        "episode": st.builds(EpisodeConfig, steps=st.integers(1, 100_000)),
        "optimizer": st.builds(OptimizersConfig, host=OPTIMIZERS, seed=OPTIMIZERS),
        "growth": st.builds(GrowthConfig, embargo=st.integers(0, 100_000)),
        "device": st.sampled_from(["auto", "cpu", "cuda", "cuda:0", "cuda:127"]),
        "plugins": st.builds(PluginsConfig, disable=st.lists(NAMES, max_size=3).map(tuple)),
    }
)
ARMS = st.dictionaries(KEYS, st.builds(model.ArmConfig, policy=USES), min_size=1, max_size=3)
WHO = st.fixed_dictionaries({"policy": USES}) | st.fixed_dictionaries({"arms": ARMS})


def again(config):
    return parse_config(dump_config(config).encode(), file="again.yaml").config


def with_settings(values):
    text = b"task: t\nhost: h\nslots: {a: {blueprints: [b]}}\npolicy: p\n"
    config = parse_config(text, file="f.yaml").config
    return config.model_copy(update={"task": Use(use="t", settings=values)})


@settings(max_examples=15)
@given(RUNS, WHO)
def test_written_configuration_is_read_back_equal(run, who):
    config = RunConfig(**run, **who)
    assert again(config) == config


def test_long_key_is_read_back():
    """Around the lengths at which YAML needs the key on a line of its own."""
    for letter, length in product(["x", "é", "\0", "\U000e0001"], (127, 128, 1024, 1025)):
        key = letter * length
        config = with_settings({key: 1, "inside": {key: {"a": 1}}, "list": [{key: 1}, {key: [[]]}]})
        assert again(config) == config, (letter, length)


def test_written_configuration_is_readable(request):
    text = dump_config(load_config(request.config.rootpath / "examples" / "plan.yaml").config)
    assert text.startswith("name: null\ntask: mnist1d\nhost: pointwise-mlp\nslots:\n  early:\n    at: null\n")
    assert "\npolicy:\n  use: schedule\n  settings:\n    plan:\n    - step: 0\n      op: germinate\n" in text
    assert max(map(len, text.splitlines())) <= 120


def test_nothing_is_written_as_an_alias_and_a_value_that_no_file_can_hold_is_refused():
    shared = ["a", ["b", ["c"]]]
    text = dump_config(with_settings({"x": shared, "y": shared}))
    assert "&" not in text
    assert "*" not in text
    problem = problem_of(dump_config, with_settings({"x": object()}))
    assert problem.code == "E111"
    assert "object" in problem.message
