"""Which parts of a configuration contradict each other? What no single value shows, said of what was read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from esper_core.config.limits import MAX_EPISODES
from esper_core.config.model import GrowthConfig, RunConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from esper_core.config.places import Tree
    from esper_core.leyline import Problem


def contradictions(tree: Tree) -> Iterator[Problem]:
    """Every contradiction in the tree. It need not fit the model: what does not is another's to tell."""
    yield from _who_decides(tree, tree.value)
    yield from _name_of_the_twin(tree, tree.value)
    yield from _too_many(tree, tree.value)
    yield from _nursery_in_the_host(tree, tree.value)
    yield from _gates_without_a_measure(tree, tree.value)


def _who_decides(tree: Tree, top: Mapping[str, Any]) -> Iterator[Problem]:
    has_policy, has_arms = top.get("policy") is not None, bool(top.get("arms"))
    if has_policy and has_arms:
        message = 'expected either "policy" or "arms", received both'
        hint = "policy is short for a single arm. Move it into arms: {a-name: {policy: …}}, or delete one of the two."
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


def _nursery_in_the_host(tree: Tree, top: Mapping[str, Any]) -> Iterator[Problem]:
    """Seeds that learn in the host's own step would learn from one another: there is nothing to choose between."""
    growth = top.get("growth")
    if not isinstance(growth, dict):
        return
    way, several = growth.get("incubation"), growth.get("nursery", 1)
    if way in ("straight_through", "live") and isinstance(several, int) and several > 1:
        message = (
            f"with incubation {way} every seed of a nursery would act in the same host, received nursery {several}"
        )
        hint = "Incubate in the shadow or on a branch, or write nursery: 1."
        yield tree.places.problem("E114", ("growth", "nursery"), message, hint)


def _gates_without_a_measure(tree: Tree, top: Mapping[str, Any]) -> Iterator[Problem]:
    """A seed that acts on the host is weighed against the twin alone: without one it could never be kept."""
    growth = top.get("growth")
    if not isinstance(growth, dict) or top.get("twin", True) is not False:
        return
    if growth.get("gates") not in ("strict", "permissive"):
        return
    if growth.get("incubation", GrowthConfig().incubation) != "branch":
        message = f"with gates {growth['gates']} and no twin no seed that was blended in could show what it is worth"
        hint = 'Let the twin run (twin: true), incubate on a branch (growth.incubation: branch), or write gates: "off".'
        yield tree.places.problem("E114", ("growth", "gates"), message, hint)


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


def _count(top: Mapping[str, Any], name: str) -> int | None:
    """The number, or None where it is none, or out of its own range: that is another's to tell."""
    field = RunConfig.model_fields[name]
    value = top.get(name, field.default)
    most = next(item.le for item in field.metadata if hasattr(item, "le"))
    return value if type(value) is int and 1 <= value <= most else None


def _twin(top: Mapping[str, Any]) -> bool:
    return top.get("twin", True) is True
