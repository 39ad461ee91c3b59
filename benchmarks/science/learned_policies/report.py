"""Tables of the documentation's pages on learned policies, as Markdown.

Each writer takes the content of ``results.json``. Nothing is imported, so that ``docs/generate.py`` can load this file
without the study.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Found = Mapping[str, Any]
    """The content of ``results.json``."""

LABELS: Final[Mapping[str, str]] = {
    "never": "no growth",
    "random": "random actions",
    "best plan, price-blind": "best fixed plan",
    "best plan for the price": "best fixed plan per price",
    "plan that looks once": "plan with one preview",
    "plan by the first step": "tree on the first step",
    "heuristic": "`heuristic`",
    "bandit": "`bandit`",
    "ppo": "`ppo`",
    "oracle": "best possible",
}
"""The names of the policies in the documentation, by those in the results."""

TRAININGS: Final[Mapping[str, str]] = {
    "that learnt on": "imitation, then PPO",
    "three others by the same recipe": "the same, three other trainings",
    "that only imitate the rules": "imitation only",
    "from nothing, averaged": "PPO from scratch",
}

UNSEEN: Final[Mapping[str, str]] = {
    "its description": "by its description",
    "its description: no name is ever told": "trained without names of blueprints",
    "its description: nor are all blueprints there": "trained with blueprints left out at random",
    "a first look": "previews new blueprints first",
    "a first look, at prices up to 20": "previews them at prices up to 20",
}

CELLS: Final[Mapping[str, str]] = {
    "plain, pointwise-mlp": "plain, `pointwise-mlp`",
    "plain, cnn1d that sees no neighbours": "plain, `cnn1d`",
    "shuffled, pointwise-mlp": "permuted, `pointwise-mlp`",
    "shuffled, cnn1d that sees no neighbours": "permuted, `cnn1d`",
    "no deficit: easy riddle, pointwise-mlp": "easy riddle, `pointwise-mlp`",
    "no deficit: plain, wide cnn1d": "plain, `wide-cnn1d`",
}
"""Task and host of each comparison in real runs."""

SUMMARY: Final = ("best plan for the price", "plan that looks once", "heuristic", "bandit", "ppo", "oracle")
PRICE: Final = "40"


def summary(found: Found) -> str:
    """Return the reward of the main policies on the held-out problems, and the advantage of ``ppo``."""
    rows = []
    for name in SUMMARY:
        own = found["table"]["players"][name]
        less = found["table"]["ppo_less"].get(name)
        rows.append((LABELS[name], *_rewards(own), _interval(less) if less else ""))
    return _table(("policy", "price 10", "20", "40", "80", "advantage of `ppo` at 40"), rows)


def rewards(found: Found) -> str:
    """Return the reward of every policy on the held-out problems."""
    rows = []
    for name, own in found["table"]["players"].items():
        head = own[PRICE]
        rows.append((LABELS[name], *_rewards(own), f"{100 * head['regret']:.0f} %", f"{head['seeds_kept']:.2f}"))
    return _table(("policy", "10", "20", "40", "80", "regret at 40", "seeds kept"), rows)


def advantages(found: Found) -> str:
    """Return the advantage of ``ppo`` at the main price: on the table, with other RNG seeds, on fresh problems."""
    rows = []
    for name, label in LABELS.items():
        if name in ("ppo", "random", "best plan, price-blind"):
            continue
        sides = [found["table"]["ppo_less"].get(name)]
        sides += [found[which]["ppo_less"].get(name, {}).get("reward") for which in ("again", "fresh")]
        rows.append((label, *("" if one is None else _interval(one) for one in sides)))
    problems = f"{found['problems']['held_out']} problems"
    head = (problems, f"{found['again']['seeds']} RNG seeds each", f"{found['fresh']['problems']} fresh problems")
    return _table(("`ppo` minus", *head), rows)


def trainings(found: Found) -> str:
    """Return what imitation and PPO contribute."""
    rows = [
        (
            TRAININGS[name],
            f"{own['reward'][PRICE]['mean']:.1f}",
            _interval(own["less_heuristic"]),
            ", ".join(_interval(one) for one in own["by_controller_less_heuristic"]),
        )
        for name, own in found["schooling"].items()
    ]
    return _table(("training", "reward", "minus `heuristic`", "each of three trainings minus `heuristic`"), rows)


def costs(found: Found) -> str:
    """Return the gains and costs of the policies with twenty RNG seeds per problem."""
    rows = [
        (
            LABELS[name],
            _interval(own["points"]),
            *(f"{own[what]:.2f} ×" for what in ("parameters", "flops_over_steps", "seconds")),
        )
        for name in ("best plan for the price", "heuristic", "ppo")
        for own in (found["again"]["players"][name],)
    ]
    return _table(("policy", "accuracy gained", "final parameters", "operations", "seconds"), rows)


def runs(found: Found) -> str:
    """Return the reward in real runs with a hundred RNG seeds: the heuristic and three trainings of ``ppo``."""
    rows = []
    for cell in found["more"]:
        rules, learned = cell["arms"]["heuristic"], cell["arms"]["mean of the three"]
        rewards_ = (_interval(own["reward"], 2) for own in (rules, learned))
        rows.append((CELLS[cell["cell"]], *rewards_, _interval(learned["less_rules"], 2)))
    return _table(("task, host", "`heuristic`", "`ppo`", "difference"), rows)


def step_sizes(found: Found) -> str:
    """Return the accuracy of grown networks and static controls, each with the best of four learning rates."""
    rows = []
    for cell in found["steps"]:
        host = cell["cell"].partition(", ")[2].partition(" ")[0]
        for name, own in cell["arms"].items():
            grown, control = (f"{100 * own[side]['test']:.1f}" for side in ("grown", "from_the_start"))
            rows.append((f"`{host}`", name, grown, control, _interval(own["less_from_the_start"])))
    return _table(("host", "arm", "grown", "static control", "difference"), rows)


def unseen(found: Found) -> str:
    """Return how often an unseen blueprint is chosen where it is the best, and what that earns."""
    rows = []
    for one in found["newcomers"]:
        less = ["" if one is found["newcomers"][0] else _interval(own) for own in one["less_first"].values()]
        rows.append((UNSEEN[one["way"]], f"{100 * one['bought'] / one['episodes']:.0f} %", *less))
    return _table(("policy", "chosen when best", "reward at 10", "20", "40", "80"), rows)


PARTS: Final[Mapping[str, Callable[[Found], str]]] = {
    "learned-summary": summary,
    "learned-rewards": rewards,
    "learned-advantages": advantages,
    "learned-trainings": trainings,
    "learned-costs": costs,
    "learned-runs": runs,
    "learned-step-sizes": step_sizes,
    "learned-unseen": unseen,
}
"""By the names with which the pages mark them."""


def _rewards(by_price: Mapping[str, Any]) -> Iterable[str]:
    return (_minus(f"{own['reward']['mean']:.1f}") for own in by_price.values())


def _interval(found: Mapping[str, float], digits: int = 1) -> str:
    mean, low, high = (_minus(f"{found[key]:.{digits}f}") for key in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"


def _minus(number: str) -> str:
    return number.lstrip("-") if not float(number) else number.replace("-", "−")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
