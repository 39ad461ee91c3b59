"""What else is to be known of a run? Where the time went, what the governor did, what plugins say, where it is from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from esper_watch.report.figure import WIDTH, bar, drawing, figure, note, section, swatches, table
from esper_watch.report.markup import Element, element
from esper_watch.report.wording import LONGEST, count, finite, plainly, seconds

if TYPE_CHECKING:
    from esper_watch.report.record import Record

REGIONS = 8
"""Regions with a colour of their own; the smaller ones share the last."""

MOST_ACTS = 200

MEANT: Final = {"shadow": "seeds learning in isolation"}
"""What a region is, where its name does not say it."""


def timing(record: Record) -> Element | None:
    """Where the time went."""
    told = {} if record.summary is None else record.summary["timing"]
    known = {_region(str(name)): finite(value) for name, value in told.items() if name != "total"}
    spent = {name: value for name, value in known.items() if value is not None and 0 <= value < LONGEST}
    total = finite(told.get("total"))
    if total is None or not 0 < total < LONGEST:
        total = sum(spent.values())
    if not spent or total <= 0:
        return None
    ordered = sorted(spent.items(), key=lambda one: -one[1])
    x, parts = 0.0, list[Element]()
    for number, (name, value) in enumerate(ordered):
        width = WIDTH * value / total
        text = f"{name}: {seconds(value)}, {100 * value / total:.1f} %"
        if width >= 0.5:
            parts.append(bar(x, 4, width, 30, text, f"region-{min(number, REGIONS - 1)}"))
        x += width
    largest = ", ".join(f"{name} {100 * value / total:.0f} %" for name, value in ordered[:3])
    svg = drawing("Where the time went", f"{largest}.", parts, height=38)
    named = [
        (f"{name} {100 * value / total:.0f} %", f"region-{number}") for number, (name, value) in enumerate(ordered[:4])
    ]
    rows = [(name, seconds(value), f"{100 * value / total:.1f} %") for name, value in ordered]
    return section(
        "time",
        "Where the time went",
        figure(svg, f"{seconds(total)} in all.", swatches(named)),
        element("details", element("summary", "The figures"), table(("region", "time", "share"), rows, numbers=(1, 2))),
    )


def _region(name: str) -> str:
    return f"{name} ({MEANT[name]})" if name in MEANT else name


def governor(record: Record) -> Element | None:
    """What the governor did, and the seeds that went wrong."""
    rows = [
        (f"{one.arm} {one.seed}", str(one.step + 1), one.act, one.reason or one.verdict)
        for one in record.governed[:MOST_ACTS]
    ]
    lost = [
        (f"{one.arm} {one.seed}", str(one.step + 1), f"{plainly(one.blueprint)} in {one.slot}", one.what, one.package)
        for one in record.lost[:MOST_ACTS]
    ]
    warned = [f"{count(number, 'warning')} in {arm}" for arm, number in sorted(record.warned.items())]
    if not (rows or lost or warned or record.rounds):
        return None
    if not (rows or lost or warned):
        return section(
            "governor", "Governor and mishaps", element("p", "Nothing had to be mended: no step was unhealthy.")
        )
    return section(
        "governor",
        "Governor and mishaps",
        element("p", f"The governor gave {', '.join(warned)}.") if warned else None,
        table(("network", "step", "act", "why"), rows, numbers=(1,)) if rows else None,
        element("h3", "Seeds that were lost") if lost else None,
        table(("network", "step", "seed", "what it did", "package"), lost, numbers=(1,)) if lost else None,
        _more(len(record.governed) + len(record.lost) - len(rows) - len(lost)),
    )


def _more(left: int) -> Element | None:
    return note(f"… and {left:,} more, in events.jsonl.") if left else None


def learning(record: Record) -> Element | None:
    """What policies that learn said of their latest update."""
    latest = {one.arm: one for one in record.updates}
    if not latest:
        return None
    rows = [
        (arm, str(one.round), name, f"{value:.4g}")
        for arm, one in latest.items()
        for name, value in one.figures.items()
    ]
    return section(
        "learning",
        "What the policies learnt",
        element("p", f"{count(len(record.updates), 'update')}; the figures of the latest."),
        table(("arm", "round", "figure", "value"), rows, numbers=(1, 3)),
    )


def of_plugins(record: Record) -> list[Element]:
    """Sections that plugins add: their words, as they are."""
    known = None if record.summary is None else record.summary.get("sections")
    told = known if isinstance(known, list) else []
    return [
        section(
            f"plugin-{number}",
            str(own.get("title", "")),
            note(f"Said by plugin {own.get('plugin', '')}."),
            element("pre", str(own.get("text", "")), tabindex=0),
        )
        for number, own in enumerate(told)
        if isinstance(own, dict)
    ]


def provenance(record: Record) -> Element:
    """Where the figures are from: what was run, with what, on what."""
    told, machine = record.manifest, record.manifest.get("machine")
    rows = [
        ("run", record.name),
        ("status", record.status if not record.reason else f"{record.status}: {record.reason}"),
    ]
    rows += [(name, str(told[name])) for name in ("started", "finished") if told.get(name)]
    if isinstance(argv := told.get("argv"), list) and argv:
        rows.append(("command", " ".join(["esper", *map(str, argv[1:])])))
    rows += [(str(name), str(value)) for name, value in machine.items()] if isinstance(machine, dict) else []
    if isinstance(seeds := told.get("seeds"), dict):
        rows.append(("seeds of the networks", f"{seeds.get('count', '?')}, from {seeds.get('first', '?')} on"))
    git = told.get("git")
    rows += [(f"git {name}", str(value)) for name, value in git.items()] if isinstance(git, dict) else []
    rows += [("events left out", text) for text in record.left_out]
    known = told.get("plugins")
    plugins = [one for one in (known if isinstance(known, list) else []) if isinstance(one, dict)]
    installed = [
        (str(one.get("id")), f"{one.get('package')} {one.get('version')}", str(one.get("sha256") or "")[:12])
        for one in plugins
    ]
    return section(
        "provenance",
        "Where this is from",
        table(("", ""), rows, class_="facts"),
        element(
            "details", element("summary", "Plugins"), table(("plugin", "package", "sha256"), installed, class_="facts")
        ),
        element("details", element("summary", "Configuration"), element("pre", record.config, tabindex=0))
        if record.config
        else None,
        note(f"The same numbers again:  esper run runs/{record.name}  (the run's folder), or the configuration above."),
    )
