"""Contradictions between the options of a configuration, of which each is valid by itself."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from esper_run.config.model import CAPACITY, MAX_EPISODES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from esper_core.leyline.errors import Problem
    from esper_run.config.model import RunConfig
    from esper_run.config.values import Node


def contradictions(config: RunConfig, root: Node) -> Iterator[Problem]:
    """Yield a problem for every contradiction between the options of a configuration; ``root`` has their places."""
    for check in (_arms, _folders, _size, _nursery, _micro_batches):
        yield from check(config, root)


def _arms(config: RunConfig, root: Node) -> Iterator[Problem]:
    """Check that either policy or arms is given, and that arms have distinct names that are not reserved."""
    if config.policy is not None and config.arms:
        message = 'expected either "policy" or "arms", received both'
        hint = 'policy is short for a single arm. Move it into arms: {NAME: {policy: …}}, or write "policy: null".'
        yield root.problem("E114", ("arms",), message, hint, key=True)
    if config.policy is None and not config.arms:
        left = "only the twin would run" if config.twin else "nothing would run"
        hint = (
            'Add "policy: {use: schedule, settings: {plan: []}}" and fill in the plan. '
            'For training without growth, write "policy: static" and "twin: false".'
        )
        yield root.problem("E113", (), f'expected "policy" or "arms", received neither: {left}', hint)
    if config.twin and "twin" in config.arms:
        message = 'an arm is named "twin", which is the name of the arm without growth'
        yield root.problem("E114", ("arms", "twin"), message, 'Rename it, or write "twin: false".', key=True)
    controls = {CAPACITY} if len(config.arms) == 1 else {f"{CAPACITY}-of-{arm}" for arm in config.arms}
    for arm in config.arms:
        if config.capacity and arm in controls:
            message = f'an arm is named "{arm}", which is the name of a control'
            yield root.problem("E114", ("arms", arm), message, 'Rename it, or write "capacity: false".', key=True)


def _folders(config: RunConfig, root: Node) -> Iterator[Problem]:
    """Check that learning policies save to different folders; in a shared one only the last would be left."""
    owners: dict[str, str] = {}
    for arm, arm_config in config.arms.items():
        folder = arm_config.policy.settings.get("save")
        if isinstance(folder, str) and (first := owners.setdefault(posixpath.normpath(folder), arm)) != arm:
            message = f'the arms "{first}" and "{arm}" save to the same folder, received "{folder}" for both'
            path = ("arms", arm, "policy", "settings", "save")
            yield root.problem("E114", path, message, "Give each arm a folder of its own.")


def _size(config: RunConfig, root: Node) -> Iterator[Problem]:
    """Check that a run has a finite number of episodes."""
    arms = max(1, len(config.arms)) + config.twin
    episodes = config.rounds * config.environments * arms
    if episodes > MAX_EPISODES:
        message = f"expected at most {MAX_EPISODES:,} episodes (rounds × environments × arms), received {episodes:,}"
        path = ("rounds",) if config.rounds > 1 else ("environments",)
        yield root.problem("E114", path, message, "Use fewer rounds or fewer environments.")


def _nursery(config: RunConfig, root: Node) -> Iterator[Problem]:
    """Check that a nursery is within the limit on seeds."""
    growth = config.growth
    if growth.seeds is not None and growth.seeds < growth.nursery and "nursery" in growth.model_fields_set:
        message = f"growth.nursery is larger than growth.seeds ({growth.seeds}), received {growth.nursery}"
        hint = f"Use growth.seeds: {growth.nursery} or more, or a smaller nursery."
        yield root.problem("E114", ("growth", "nursery"), message, hint)


def _micro_batches(config: RunConfig, root: Node) -> Iterator[Problem]:
    """Check that each part of a batch has an example."""
    parts, size = config.compute.micro_batches, config.episode.batch_size
    if size < parts:
        message = f"compute.micro_batches is larger than episode.batch_size ({size}), received {parts}"
        hint = f"Use compute.micro_batches: {size} at most, or larger batches."
        yield root.problem("E114", ("compute", "micro_batches"), message, hint)
