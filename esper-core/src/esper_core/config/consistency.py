"""Which parts of a configuration contradict each other? What no single value shows, said of what was read."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

from esper_core.config.limits import CAPACITY, MAX_EPISODES
from esper_core.config.model import EpisodeConfig, GrowthConfig, RunConfig
from esper_core.leyline.constants import FIRST_LOOK

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from esper_core.config.places import Tree
    from esper_core.leyline import Problem


def contradictions(tree: Tree) -> Iterator[Problem]:
    """Every contradiction in the tree. It need not fit the model: what does not is another's to tell."""
    yield from _who_decides(tree, tree.value)
    yield from _name_of_the_twin(tree, tree.value)
    yield from _name_of_a_control(tree, tree.value)
    yield from _one_folder_for_two(tree, tree.value)
    yield from _too_many(tree, tree.value)
    yield from _rewards_that_do_not_come_out_even(tree, tree.value)
    yield from _gates_without_a_measure(tree, tree.value)
    yield from _gates_without_a_look(tree, tree.value)
    yield from _nursery_beyond_the_bound(tree, tree.value)
    yield from _more_parts_than_examples(tree, tree.value)


def _who_decides(tree: Tree, top: Mapping[str, Any]) -> Iterator[Problem]:
    has_policy, has_arms = top.get("policy") is not None, bool(top.get("arms"))
    if has_policy and has_arms:
        message = 'expected either "policy" or "arms", received both'
        hint = 'policy is short for a single arm. Move it into arms: {a-name: {policy: …}}, or write "policy: null".'
        yield tree.places.problem("E114", ("arms",), message, hint, key=True)
    unsure = () in tree.incomplete or tree.is_refused(("policy",)) or tree.is_refused(("arms",))
    if has_policy or has_arms or unsure or top.get("arms", {}) != {}:
        return
    left = "only the twin would run" if _twin(top) else "nothing would run"
    message = f'expected "policy" or "arms", received neither: {left}'
    hint = (
        'Add "policy: {use: schedule, settings: {plan: []}}" and fill in the plan. '
        'For training without growth alone, write "policy: static" and "twin: false".'
    )
    yield tree.places.problem("E113", (), message, hint)


def _name_of_the_twin(tree: Tree, top: Mapping[str, Any]) -> Iterator[Problem]:
    arms = top.get("arms")
    if isinstance(arms, dict) and "twin" in arms and _twin(top):
        message = 'an arm is named "twin", which is the name of the arm without growth'
        yield tree.places.problem("E114", ("arms", "twin"), message, 'Rename it, or write "twin: false".', key=True)


def _name_of_a_control(tree: Tree, top: Mapping[str, Any]) -> Iterator[Problem]:
    """What an arm grew, trained from the start, is an arm of the results, too."""
    arms = top.get("arms")
    if not isinstance(arms, dict) or top.get("capacity", True) is False:
        return
    controls = {CAPACITY} if len(arms) == 1 else {f"{CAPACITY}-of-{arm}" for arm in arms}
    for arm in arms:
        if arm in controls:
            message = f'an arm is named "{arm}", which is the name of a control'
            hint = 'Rename it, or write "capacity: false".'
            yield tree.places.problem("E114", ("arms", arm), message, hint, key=True)


def _one_folder_for_two(tree: Tree, top: Mapping[str, Any]) -> Iterator[Problem]:
    """Policies that learn write what they learnt into ``save``: of two in one folder the last one would be left."""
    arms = top.get("arms")
    owners: dict[str, str] = {}
    for arm, own in arms.items() if isinstance(arms, dict) else ():
        folder = own
        for key in ("policy", "settings", "save"):
            folder = folder.get(key) if isinstance(folder, dict) else None
        if not isinstance(folder, str):
            continue
        if (first := owners.setdefault(posixpath.normpath(folder), arm)) != arm:
            message = f'the arms "{first}" and "{arm}" save into one folder, received "{folder}" for both'
            path = ("arms", arm, "policy", "settings", "save")
            yield tree.places.problem("E114", path, message, "Give each arm a folder of its own.")


def _gates_without_a_measure(tree: Tree, top: Mapping[str, Any]) -> Iterator[Problem]:
    """A seed that acts on the host is weighed against the twin alone: without one it could never be kept."""
    growth = _growth(top)
    if _said(top, "twin") is not False or growth["gates"] not in ("strict", "permissive"):
        return
    if growth["incubation"] != "branch":
        message = f"with gates {growth['gates']} and no twin no seed that was blended in could show what it is worth"
        hint = 'Let the twin run (twin: true), incubate on a branch (growth.incubation: branch), or write gates: "off".'
        yield tree.places.problem("E114", ("growth", "gates"), message, hint)


def _gates_without_a_look(tree: Tree, top: Mapping[str, Any]) -> Iterator[Problem]:
    """What a newborn seed gains is soon gone, so gates wait before they look: a short episode is over by then."""
    growth, episode = _growth(top), top.get("episode")
    steps = episode.get("steps") if isinstance(episode, dict) else None
    if growth["gates"] in ("strict", "permissive") and type(steps) is int and 1 <= steps <= FIRST_LOOK:
        message = (
            f"a gate looks at a seed from its step {FIRST_LOOK} on, and an episode ends before: with gates "
            f"{growth['gates']} nothing could ever be blended in, received {steps} steps"
        )
        hint = 'Write longer episodes (episode.steps), or gates: "off".'
        yield tree.places.problem("E114", ("episode", "steps"), message, hint)


def _nursery_beyond_the_bound(tree: Tree, top: Mapping[str, Any]) -> Iterator[Problem]:
    """A nursery that a network is not allowed to fill."""
    growth = _growth(top)
    most, several = growth["seeds"], growth["nursery"]
    if type(most) is int and type(several) is int and 1 <= most < several:
        message = f"a network may hold {most} {'seed' if most == 1 else 'seeds'}, received a nursery of {several}"
        hint = f"Write growth.seeds: {several} or more, or a smaller nursery."
        yield tree.places.problem("E114", ("growth", "nursery"), message, hint)


def _more_parts_than_examples(tree: Tree, top: Mapping[str, Any]) -> Iterator[Problem]:
    """A part of a batch without an example would have no loss."""
    compute, episode = top.get("compute"), top.get("episode")
    parts = compute.get("micro_batches") if isinstance(compute, dict) else None
    said = episode if isinstance(episode, dict) else {}
    size = said.get("batch_size", EpisodeConfig().batch_size)
    if type(parts) is int and type(size) is int and 1 <= size < parts:
        message = f"a batch has {size} {'example' if size == 1 else 'examples'}, received {parts} parts"
        hint = f"Write compute.micro_batches: {size} at most, or larger batches (episode.batch_size)."
        yield tree.places.problem("E114", ("compute", "micro_batches"), message, hint)


def _too_many(tree: Tree, top: Mapping[str, Any]) -> Iterator[Problem]:
    rounds, environments = (_count(top, name) for name in ("rounds", "environments"))
    arms = top.get("arms")
    trained = (len(arms) if isinstance(arms, dict) and arms else 1) + _twin(top)
    if rounds is None or environments is None or rounds * environments * trained <= MAX_EPISODES:
        return
    message = (
        f"expected at most {MAX_EPISODES:,} episodes in a run, received {rounds * environments * trained:,}: "
        f"{rounds:,} rounds × {environments:,} environments × {trained} {'arm' if trained == 1 else 'arms'}"
    )
    path = ("rounds",) if rounds > 1 else ("environments",)
    yield tree.places.problem("E114", path, message, "Write fewer rounds, or fewer environments.")


def _rewards_that_do_not_come_out_even(tree: Tree, top: Mapping[str, Any]) -> Iterator[Problem]:
    """Every seed is played under every reward, or their figures could not be held against each other."""
    rewards, environments = top.get("rewards"), _count(top, "environments")
    several = len(rewards) if isinstance(rewards, list | tuple) else 0
    if several == 0 or environments is None or environments % several == 0:
        return
    message = f"each seed is played under each of {several} rewards, received {environments} environments"
    below = environments - environments % several
    fitting = f"{below} or {below + several}" if below else str(several)
    path = ("environments",) if "environments" in top else ("rewards",)
    yield tree.places.problem("E114", path, message, f"Write a multiple of {several}, environments: {fitting}.")


def _count(top: Mapping[str, Any], name: str) -> int | None:
    """The number, or None where it is none, or out of its own range: that is another's to tell."""
    field = RunConfig.model_fields[name]
    value = top.get(name, field.default)
    most = next(item.le for item in field.metadata if hasattr(item, "le"))
    return value if type(value) is int and 1 <= value <= most else None


def _twin(top: Mapping[str, Any]) -> bool:
    return _said(top, "twin") is True


def _said(top: Mapping[str, Any], name: str) -> Any:
    """What a key at the top says, or its default."""
    return top.get(name, RunConfig.model_fields[name].default)


def _growth(top: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is said of growth, and the defaults where nothing is."""
    said = top.get("growth")
    return {**GrowthConfig().model_dump(), **(said if isinstance(said, dict) else {})}
