"""Which parts of a configuration contradict each other? What no single value shows, said of what was read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from esper_core.config.places import Tree
    from esper_core.leyline import Problem


def contradictions(tree: Tree) -> Iterator[Problem]:
    """Every contradiction in the tree. It need not fit the model: what does not is another's to tell."""
    yield from _who_decides(tree, tree.value)
    yield from _name_of_the_twin(tree, tree.value)


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
    hint = 'Add "policy: heuristic". For training without growth alone, write "policy: static" and "twin: false".'
    yield tree.places.problem("E113", (), message, hint)


def _name_of_the_twin(tree: Tree, top: Mapping[str, Any]) -> Iterator[Problem]:
    arms = top.get("arms")
    if isinstance(arms, dict) and "twin" in arms and _twin(top):
        message = 'an arm is named "twin", which is the name of the arm without growth'
        yield tree.places.problem("E114", ("arms", "twin"), message, 'Rename it, or write "twin: false".', key=True)


def _twin(top: Mapping[str, Any]) -> bool:
    return top.get("twin", True) is True
