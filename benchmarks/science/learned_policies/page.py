"""Write the figures as tables in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from benchmarks.science.learned_policies.costs import SECONDS, SPENT
from benchmarks.science.learned_policies.evaluation import interval
from benchmarks.science.learned_policies.players import HEADLINE, PRICES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


COLUMNS: Final = (
    "accuracy on test",
    "parameters in the end",
    "over the steps",
    "operations in the end",
    "over the steps",
)
"""Of what episodes bring and take, but for seconds."""


def page(found: Mapping[str, Any]) -> str:
    """Return the whole page."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    table, problems = found["table"], found["problems"]
    yield f"<!-- written by python -m benchmarks.science.learned_policies, {found['date']}, torch {found['torch']} -->"
    yield ""
    yield f"## On the table: {problems['held_out']} problems that nobody had seen"
    yield ""
    yield f"Everybody learnt, or was tuned, on {problems['learnt_on']} others. Reward at each price, mean over"
    yield f"problems; at a price of {HEADLINE:g} with an interval of 95 % over problems."
    yield ""
    prices = " | ".join(f"{price:g}" for price in PRICES)
    yield f"| player | {prices} | interval at {HEADLINE:g} | regret | seeds kept | on test |"
    yield f"|---|{'--:|' * len(PRICES)}---|--:|--:|---|"
    for name, own in table["players"].items():
        means = " | ".join(f"{own[f'{price:g}']['reward']['mean']:.1f}" for price in PRICES)
        head = own[f"{HEADLINE:g}"]
        regret = "" if head["regret"] is None else f"{100 * head['regret']:.0f} %"
        kept, test = f"{head['seeds_kept']:.2f}", both(head["on_test"])
        yield f"| {name} | {means} | {span(head['reward'])} | {regret} | {kept} | {test} |"
    yield from _spent(table["players"])
    yield ""
    yield f"`ppo` less each of the others, problem by problem, at a price of {HEADLINE:g}:"
    yield ""
    yield "| less | reward | on the test split | shown |"
    yield "|---|--:|--:|---|"
    for name, own in table["ppo_less"].items():
        yield f"| {name} | {both(own)} | {both(table['ppo_less_on_test'][name])} | {verdict(own)} |"
    yield ""
    yield "`ppo` less the heuristic at each price:"
    yield from _verdicts("price", table["ppo_less_heuristic"])
    yield ""
    yield f"Who looks without having learnt, less who does not look, at a price of {HEADLINE:g}:"
    yield from _verdicts("", table["looks_less"])
    yield ""
    yield (
        "By controller of `ppo`: " + ", ".join(f"{one:.1f}" for one in table["by_controller"]) + "; less the heuristic:"
    )
    yield ", ".join(both(one) for one in table["by_controller_less_heuristic"]) + "."
    home = found["at_home"]
    each = ", ".join(f"{100 * one:.0f} %" for one in home["ppo"]["by_controller"])
    yield ""
    yield f"On the {found['problems']['learnt_on']} problems that they learnt on, or were tuned on, at the same price,"
    yield f"regret is {100 * home['ppo']['regret']:.0f} % for `ppo` (by controller {each}), and"
    yield f"{100 * home['heuristic']['regret']:.0f} % for the heuristic."
    yield from _parts_of_it(found["schooling"])
    yield from _again(found["again"])
    yield from _fresh(found["fresh"])
    yield ""
    yield "## A blueprint that was never seen"
    yield ""
    yield from _newcomers(found["newcomers"], found["look_at_home"])
    if found["live"]:
        yield ""
        yield "## In runs of the engine"
        for cell in found["live"]:
            yield from _cell(cell)
    if found["more"]:
        yield from _more(found["more"])
    if found["careful"]:
        yield from _careful(found["careful"])
    if found["steps"]:
        yield from _steps(found["steps"])


def _spent(players: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield f"What it brings at a price of {HEADLINE:g}, over the host alone, and what it takes, as multiples of the"
    yield "host alone; means over problems. Seeds that are looked at are trained, too, whatever becomes of them, beside"
    yield "a copy of the host; of that the operations are counted, its parameters are not. There are no seconds:"
    yield "nothing is trained where a table is played; they stand below, where it is from many seeds."
    yield ""
    yield f"| player | {' | '.join(COLUMNS)} |"
    yield f"|---|{'--:|' * len(COLUMNS)}"
    for name, by_price in players.items():
        own = by_price[f"{HEADLINE:g}"]
        yield f"| {name} | {both(own['points'])} | {' | '.join(f'{own[what]:.3f} ×' for what in SPENT)} |"


def _newcomers(newcomers: Sequence[Mapping[str, Any]], at_home: Mapping[str, Any]) -> Iterator[str]:
    each = " / ".join(f"{price:g}" for price in PRICES)
    yield f"A case is a problem at a price ({each}); three controllers play each. Rewards are over all problems."
    yield ""
    yield "| trained without | decides by | cases where it is the best buy | bought then | by price | reward by price |"
    yield "|---|---|--:|--:|--:|--:|"
    for one in newcomers:
        share = f"{100 * one['bought'] / one['episodes']:.0f} % of {one['episodes']}" if one["episodes"] else ""
        by_price = " / ".join(f"{some} of {due}" for some, due in one["by_price"].values())
        reward = " / ".join(f"{own['mean']:.1f}" for own in one["reward"].values())
        name = one["blueprint"].rpartition("/")[2]
        yield f"| `{name}` | {one['way']} | {one['cases_where_it_is_best']} | {share} | {by_price} | {reward} |"
    yield ""
    yield "What each of these ways is worth beside the first of them, by price:"
    yield ""
    yield f"| decides by | {' | '.join(f'{price:g}' for price in PRICES)} |"
    yield f"|---|{'--:|' * len(PRICES)}"
    for one in newcomers[1:]:
        yield f"| {one['way']} | {' | '.join(both(own) for own in one['less_first'].values())} |"
    for blueprint, worth in at_home.items():
        each = ", ".join(f"{price}: {both(own)}" for price, own in worth.items())
        yield ""
        yield f"What a first look at `{blueprint.rpartition('/')[2]}` is worth on the problems that were learnt on, by"
        yield f"which it was bounded, by price: {each}."


def _careful(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    cells = list(found[0]["controls"])
    episodes = next(iter(found[0]["controls"].values()))[0]["reward"]["n"]
    yield ""
    yield "### Would more caution help where nothing should grow?"
    yield ""
    yield "Gardeners that blend in only where that is at least so likely: on the problems that they learnt on, where"
    yield f"growing pays, and on each control; the three controllers, {episodes} episodes each, at a price of"
    yield f"{HEADLINE:g}. In brackets the seeds that were kept in these."
    yield ""
    yield f"| blends in where it is | on the problems learnt on | less the first row | {' | '.join(cells)} |"
    yield f"|---|--:|--:|{'---|' * len(cells)}"
    for own in found:
        how = f"{own['sure']:g} likely" if own["sure"] else "likeliest"
        each = [
            ", ".join(f"{one['reward']['mean']:+.1f} ({one['kept']})" for one in own["controls"][cell])
            for cell in cells
        ]
        less = both(own["at_home_less"], 2) if own["sure"] else ""
        yield f"| {how} | {both(own['at_home'])} | {less} | {' | '.join(each)} |"


def _parts_of_it(schooling: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield "### What of it is imitation?"
    yield ""
    first = next(iter(schooling))
    prices = " | ".join(f"{price:g}" for price in PRICES)
    less = [f"less the heuristic at {HEADLINE:g}", "less the first row", "less the first row, on test"]
    yield f"| gardeners | {prices} | {' | '.join(less)} | by controller | less the heuristic |"
    yield f"|---|{'--:|' * (len(PRICES) + len(less))}---|---|"
    for name, own in schooling.items():
        means = " | ".join(f"{own['reward'][f'{price:g}']['mean']:.1f}" for price in PRICES)
        beside = " | ".join("" if name == first else both(own[what]) for what in ("less_first", "less_first_on_test"))
        each = ", ".join(f"{one:.1f}" for one in own["by_controller"])
        beyond = ", ".join(both(one) for one in own["by_controller_less_heuristic"])
        yield f"| {name} | {means} | {both(own['less_heuristic'])} | {beside} | {each} | {beyond} |"


def _again(again: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield f"### The same {again['problems']} problems, each from {again['seeds']} other seeds"
    yield ""
    yield "On the table each plan was trained once. Here what everybody does is trained anew, from seeds of which none"
    yield f"is the table's. At a price of {HEADLINE:g}, means over seeds and controllers, intervals over problems."
    yield from _from_many_seeds(again)


def _fresh(fresh: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield f"### {fresh['problems']} other problems, each from {fresh['seeds']} seeds"
    yield ""
    yield f"They are in no table: what somebody does there is trained. At a price of {HEADLINE:g}, means over seeds and"
    yield "controllers, intervals over problems."
    yield from _from_many_seeds(fresh)


def _from_many_seeds(fresh: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    columns = ["reward", "on test", "less the heuristic", "`ppo` less this one", "on test", "seeds kept"]
    yield f"| player | {' | '.join(columns)} | by controller |"
    yield f"|---|{'--:|' * len(columns)}---|"
    for name, own in fresh["players"].items():
        less = fresh["ppo_less"].get(name)
        beyond = ["", ""] if less is None else [both(less["reward"]), both(less["on_test"])]
        each = ", ".join(f"{one:.1f}" for one in own["by_controller"])
        cells = [both(own["reward"]), both(own["on_test"]), both(own["less_heuristic"]), *beyond]
        yield f"| {name} | {' | '.join(cells)} | {own['seeds_kept']:.2f} | {each} |"
    yield ""
    yield "By controller of `ppo` less the heuristic: " + ", ".join(
        both(one) for one in fresh["by_controller_less_heuristic"]
    )
    yield from _took(fresh["players"])
    found, deviation = fresh["problem_by_problem"], fresh["deviation"]
    yield ""
    better, worse, same = (found[what] for what in ("better", "worse", "same_from_each_seed"))
    yield f"By the seeds of one problem alone, `ppo` is better than the heuristic in {better} problems,"
    yield f"worse in {worse}, and does the same from each seed in {same}. The deviation of their difference is"
    yield f"{deviation['of_one_seed']:.1f} points from seed to seed of a problem, and {deviation['of_problems']:.1f}"
    yield f"from problem to problem, of means of {fresh['seeds']} seeds."


def _took(players: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield "What it brings, over the host alone, and what it takes, as multiples of the host alone; seconds are those"
    yield "that a processor worked on the steps of an episode, without its twin:"
    yield ""
    yield f"| player | {' | '.join([*COLUMNS, 'seconds'])} |"
    yield f"|---|{'--:|' * (len(COLUMNS) + 1)}"
    for name, own in players.items():
        yield f"| {name} | {both(own['points'])} | {' | '.join(f'{own[what]:.3f} ×' for what in (*SPENT, SECONDS))} |"


def _verdicts(what: str, differences: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield ""
    yield f"| {what} | reward | shown |"
    yield "|---|--:|---|"
    for name, own in differences.items():
        yield f"| {name} | {both(own)} | {verdict(own)} |"


def _steps(cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield ""
    yield "### Grown and trained from the start, each by the best of four sizes of steps"
    yield ""
    yield "On plain digits. Accuracy on the test split in points, of the seeds that everybody is judged on; in brackets"
    yield "the size of steps, which was chosen on others: for each arm, for what it grew at that size, put in from the"
    yield "start, and for the twin."
    yield ""
    columns = ["grown", "from the start", "twin", "grown less from the start", "both at the table's size"]
    yield f"| host | arm | {' | '.join(columns)} | less the twin |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|"
    for cell in cells:
        host = cell["cell"].partition(", ")[2]
        for name, own in cell["arms"].items():
            sides = [own["grown"], own.get("from_the_start"), cell["twin"]]
            scores = ["" if one is None else f"{100 * one['test']:.1f} ({one['size']:g})" for one in sides]
            less = [both(own[what]) if what in own else "" for what in ("less_from_the_start", "untuned", "less_twin")]
            yield f"| {host} | {name} | {' | '.join([*scores, *less])} |"


def _more(cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    seeds = cells[0]["seeds"]
    yield ""
    yield f"### The rules and the gardeners from {seeds} further seeds"
    yield ""
    yield f"Reward on validation at a price of {HEADLINE:g}; accuracy on the test split in points; of {seeds} seeds of"
    yield "each cell that nobody had. Kept: seeds in all of these episodes."
    yield ""
    yield "| cell | arm | reward | less the heuristic | accuracy over the twin | less the heuristic | kept |"
    yield "|---|---|--:|--:|--:|--:|--:|"
    for cell in cells:
        for name, own in cell["arms"].items():
            less = [both(own[what], 2) if what in own else "" for what in ("less_rules", "points_less_rules")]
            kept = "" if own["kept"] is None else str(own["kept"])
            told = [both(own["reward"], 2), less[0], both(own["over_twin"]), less[1], kept]
            yield f"| {cell['cell']} | {name} | {' | '.join(told)} |"


def _cell(cell: Mapping[str, Any]) -> Iterator[str]:
    arms = cell["arms"]
    twin = _by_seed(arms["twin"], "test")
    yield ""
    yield f"### {cell['cell']}"
    yield ""
    yield f"{len(twin)} seeds. Accuracy on the test split in points; reward on validation, at a price of {HEADLINE:g};"
    yield "seconds of two episodes with their twins, on one core."
    yield ""
    seconds = {name: f"{value:.1f}" for name, value in cell["seconds_of_two"].items()}
    columns = ["accuracy", "over the twin", "over its static capacity", "reward"]
    yield f"| arm | {' | '.join([*columns, 'parameters', 'parameter-steps', 'FLOPs', 'kept', 'seconds'])} |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    for name, own in arms.items():
        if name.startswith("capacity"):
            continue
        test = _by_seed(own, "test")
        control = _by_seed(arms.get(f"capacity-of-{name}", []), "test")
        over_twin = both(_difference(test, twin)) if name != "twin" else ""
        over_own = both(_difference(test, control)) if control else ""
        rewards = [one["reward"] for one in own if one["reward"] is not None]
        reward = both(interval(rewards)) if rewards and name != "twin" else ""
        kept = sum(len(one["grown"]) for one in own) / len(own)
        yield (
            f"| {name} | {100 * _mean(test.values()):.1f} | {over_twin} | {over_own} | {reward} "
            f"| {_mean_of(own, 'parameters')} | {_mean_of(own, 'parameter_steps')} | {_mean_of(own, 'flops')} "
            f"| {kept:.2f} | {seconds.get(name, '')} |"
        )


def span(interval: Mapping[str, Any], digits: int = 1) -> str:
    """Return the bounds of an interval."""
    return "" if interval["low"] is None else f"{interval['low']:.{digits}f} to {interval['high']:.{digits}f}"


def both(interval: Mapping[str, Any], digits: int = 1) -> str:
    """Return the mean with the bounds of its interval."""
    return f"{interval['mean']:+.{digits}f}" + (f" ({span(interval, digits)})" if interval["low"] is not None else "")


def verdict(interval: Mapping[str, Any]) -> str:
    """Return the verdict of an interval."""
    if interval["low"] is None or interval["low"] <= 0.0 <= interval["high"]:
        return "no difference shown"
    return "better" if interval["mean"] > 0 else "worse"


def _by_seed(episodes: Sequence[Mapping[str, Any]], what: str) -> dict[int, float]:
    return {one["seed"]: one[what] for one in episodes}


def _difference(one: Mapping[int, float], other: Mapping[int, float]) -> dict[str, Any]:
    return interval([100 * (one[seed] - other[seed]) for seed in one if seed in other])


def _mean_of(episodes: Sequence[Mapping[str, Any]], what: str) -> str:
    known = [float(one[what]) for one in episodes if one[what] is not None]
    return f"{_mean(known):,.0f}" if len(known) == len(episodes) else "unknown"


def _mean(values: Iterable[float]) -> float:
    own = list(values)
    return sum(own) / len(own)
