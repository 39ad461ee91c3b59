"""Write the parts of these pages, and of the README, that come from the code; with ``--check`` only compare.

The parts are between ``<!-- from the code: NAME -->`` and ``<!-- end -->``. ``answers``, which this calls, writes the
output of the examples on the error pages, and ``figures`` names figures of the prose that have no source.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import textwrap
import tomllib
from dataclasses import Field, fields
from importlib import import_module
from pathlib import Path
from runpy import run_path
from typing import TYPE_CHECKING, Any, get_args, get_origin

import click
from pydantic import BaseModel

from esper_core.hooks import spec as hooks
from esper_core.leyline import events, lifecycle, signals
from esper_core.settings import Use
from esper_policies import observations
from esper_run import cli
from esper_run.cli.main import external_commands
from esper_run.config.errors import Entry, entry_at
from esper_run.config.model import RunConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from enum import Enum

DOCS = Path(__file__).parent

FIRST_PAGE: Mapping[str, tuple[str, ...]] = {
    "RunConfig": (
        *("name", "task", "host", "slots", "policy", "arms", "reward", "twin"),
        *("seed", "environments", "rounds", "episode", "optimizer", "growth", "device"),
    ),
    "Use": ("use", "settings"),
    "SlotConfig": ("at", "blueprints"),
    "ArmConfig": ("policy",),
    "EpisodeConfig": ("steps", "batches", "batch_size"),
    "OptimizersConfig": ("host", "seed"),
    "OptimizerConfig": ("kind", "learning_rate", "weight_decay"),
    "GrowthConfig": ("incubation", "gates", "price", "nursery", "parameters"),
}
"""Options by the model that has them which the reference lists first. All others are advanced."""
ROOT = DOCS.parent
MARKED = re.compile(r"(?P<open><!-- from the code: (?P<name>[a-z-]+) -->\n).*?(?P<close><!-- end -->)", re.DOTALL)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; bars inside cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def one_line(text: str | None) -> str:
    """Return a docstring's text as one line, its double backquotes as Markdown's single ones."""
    return " ".join((text or "").split()).replace("``", "`")


def listed(label: str, text: str) -> str:
    """Return an item of a list: what it is about, and its text if there is one."""
    return f"- {label}: {text}\n" if text else f"- {label}\n"


def section(title: str, text: str | None, body: str) -> str:
    """Return a part of a page below its own heading."""
    return f"## {title}\n\n{one_line(text)}\n\n{body}"


# --- reference/configuration.md


def configuration() -> str:
    """Return every section of the configuration with its keys: first the basic options, then the advanced ones."""
    basic, advanced = [], []
    for model, places in sections().items():
        title, first = title_of(model.__name__), FIRST_PAGE.get(model.__name__, ())
        keys = {
            key: listed(
                f"`{key}` ({'; '.join(filter(None, (kind(entry), default_of(model, key))))})", field.description or ""
            )
            for key, field in model.model_fields.items()
            if (entry := entry_at((key,), model)) is not None
        }
        extra = [line for key, line in keys.items() if key not in first]
        location = f"In the file: {', '.join(f'`{place}`' for place in places)}.\n\n" if any(places) else ""
        if first:
            basic.append(section(title, model.__doc__, location + "".join(keys[key] for key in keys if key in first)))
        if extra:
            heading = f"{title}: advanced options" if first else title
            above = f"## {heading}\n\n" if first else section(heading, model.__doc__, location)
            advanced.append(above + "".join(extra))
    return "\n".join([*basic, *advanced])


def title_of(model: str) -> str:
    """Return the heading of a model's section."""
    return model.removesuffix("Config")


def sections() -> dict[type[BaseModel], list[str]]:
    """Return the configuration's models in reading order, each with its places in the file."""
    met: dict[type[BaseModel], list[str]] = {RunConfig: [""]}
    waiting: list[tuple[type[BaseModel], str]] = [(RunConfig, "")]
    for model, place in waiting:
        for key, field in model.model_fields.items():
            for inner, step in models_in(field.annotation):
                path = f"{place}.{key}{step}".removeprefix(".")
                met.setdefault(inner, []).append(path)
                waiting.append((inner, path))
    return met


def models_in(annotation: Any) -> Iterator[tuple[type[BaseModel], str]]:
    """Yield the models in a type annotation, each with the path from the key to it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, ""
    origin = get_origin(annotation)
    step = ".NAME" if origin is dict else "[i]" if origin in (list, tuple) else ""
    for argument in get_args(annotation):
        for model, suffix in models_in(argument):
            yield model, step + suffix


def kind(entry: Entry) -> str:
    """Return what values a key accepts, with links to the sections."""
    if entry.section is not None:
        text = f"[{title_of(entry.section.__name__)}](#{title_of(entry.section.__name__).lower()})"
    elif entry.is_list and (element := entry.below(0)) is not None:
        text = re.sub(r"^an? (\w+)$", r"\1s", kind(element))
        text = f"list of {text}"
    elif entry.is_mapping and (element := entry.below("name")) is not None:
        text = f"names, each with {kind(element)}"
    elif entry.choices:
        spelled = [str(choice).lower() if isinstance(choice, bool) else choice for choice in entry.choices]
        text = " or ".join(f"`{choice}`" for choice in spelled)
    else:
        return plain_type(type_text(entry))
    return f"{text} or `null`" if entry.is_nullable else text


BOUNDS = {
    **{"ge": "≥", "gt": ">", "le": "≤", "lt": "<", "multiple_of": "multiple of"},
    **{"min_length": "length ≥", "max_length": "length ≤"},
}


def type_text(entry: Entry) -> str:
    """Describe a type with its bounds or its choices."""
    if entry.described:
        text = entry.described
    elif entry.choices:
        text = " | ".join(str(choice) for choice in entry.choices)
    elif entry.section is not None:
        text = "component" if entry.is_use else "mapping"
    else:
        names = {bool: "true | false", int: "integer", float: "number", str: "text"}
        text = "list" if entry.is_list else "mapping" if entry.is_mapping else names.get(entry.kind, "any value")
        bounds: dict[str, Any] = {}
        for constraint in entry.constraints:
            bounds |= {name: bound for name in BOUNDS if (bound := getattr(constraint, name, None)) is not None}
        text += "".join(f", {sign} {number_text(bounds[name])}" for name, sign in BOUNDS.items() if name in bounds)
    return f"{text}, or null" if entry.is_nullable else text


def number_text(value: Any) -> str:
    """Return a number as bounds show it."""
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def plain_type(text: str) -> str:
    """Return a type as prose: a range for two bounds, and no bounds that only exclude mistakes.

    >>> plain_type("integer, ≥ 1, ≤ 100,000")
    'integer, 1–100,000'
    """
    text = re.sub(r" of 1 to \d+ characters|, ≤ 1e\+30", "", text).replace("true | false", "boolean")
    return re.sub(r"≥ ([\d.]+), ≤ ([\d,.]*\d)", r"\1–\2", text)


def default_of(model: type[BaseModel], key: str) -> str:
    """Return a key's default as in YAML, or that it is required; nothing for a section, which has its own keys."""
    field = model.model_fields[key]
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Use):
        return f"default `{value.use}`"
    if isinstance(value, BaseModel):
        return ""
    return f"default `{json.dumps(value)}`"


# --- reference/events.md

WHERE = ("round", "arm", "seed", "step")
"""Fields that say where an event happened, explained at the top of the page."""


def event_records() -> str:
    """Return every event with its fields, then the records inside them."""
    parts = []
    inside = (
        signals.Reason,
        signals.Opinion,
        lifecycle.Action,
        signals.Signals,
        signals.SlotSignals,
        signals.SeedSignals,
    )
    for record in (*get_args(events.Event), *inside):
        title = str(next((field.default for field in fields(record) if field.name == "type"), record.__name__))
        docs = field_docs(record)
        record_fields = [field for field in fields(record) if field.name not in ("type", "v")]
        location_fields = WHERE if title != record.__name__ else ()
        plain = [
            f"`{field.name}`" if field.name in location_fields else typed(field)
            for field in record_fields
            if field.name not in docs
        ]
        lines = [listed(typed(field), docs[field.name]) for field in record_fields if field.name in docs]
        before = f"{', '.join(plain)}, and:\n\n" if plain else ""
        fact = before if lines else f"{', '.join(plain)}.\n"
        parts.append(section(title, record.__doc__, fact + "".join(lines)))
    return "\n".join(parts)


def typed(field: Field[Any]) -> str:
    """Return a field as in its source."""
    return f"`{field.name}: {field.type}`"


def field_docs(record: type[Any]) -> dict[str, str]:
    """Return the docstrings below a record's fields in its source."""
    body = ast.parse(inspect.getsource(record)).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                docs[name] = one_line(words)
    return docs


# --- concepts/lifecycle.md


def slot_table() -> str:
    """Return the state machine of slots as a table."""
    return transitions("slot", lifecycle.SLOT_TABLE)


def seed_table() -> str:
    """Return the state machine of seeds as a table."""
    return transitions("seed", lifecycle.SEED_TABLE)


def transitions(heading: str, machine: Mapping[tuple[Any, Any], Enum]) -> str:
    """Format a transition table; states that an event takes to the same state share a row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for (state, event), after in machine.items():
        rows.setdefault((str(event.value), str(after.value)), []).append(str(state.value))
    return table((heading, "event", "then"), [(", ".join(states), *ends) for ends, states in rows.items()])


# --- reference/hooks.md


def hook_specs() -> str:
    """Return what holds for all hooks, then every hook with its exact arguments and its text."""
    parts = [(inspect.getdoc(hooks) or "").split("\n\n", 2)[2].replace("``", "`") + "\n"]
    for name, hook in vars(hooks).items():
        if not name.startswith("esper_"):
            continue
        parameters = ", ".join(inspect.signature(hook).parameters)
        text, *examples = re.split(r"\n\n(?= *(?:@hookimpl|class ))", inspect.getdoc(hook) or "", maxsplit=1)
        code = "".join(f"\n```python\n{textwrap.dedent(example)}\n```\n" for example in examples)
        parts.append(f"### {name}({parameters})\n\n{text.replace('``', '`')}\n{code}")
    return "\n".join(parts)


# --- reference/cli.md


def commands() -> str:
    """Return every command of the members with its arguments and options, from its own help.

    Options that several commands have come first. ``--json``, which every listing has, is explained in the prose.
    """
    contexts = [
        context
        for context in command_contexts(click.Context(cli.main, info_name="esper"))
        if not is_inner_group(context)
    ]
    rows = [row for context in contexts for row in option_rows(context)]
    shared = dict.fromkeys(row for row in rows if rows.count(row) > 1)
    above = "## Options of several commands\n\n" + "".join(listed(*row) for row in shared)
    return "\n".join([above, *(command_page(context, shared) for context in contexts)])


def is_inner_group(context: click.Context) -> bool:
    """Return whether the command only groups others, below ``esper`` itself."""
    return isinstance(context.command, click.Group) and context.parent is not None


def option_rows(context: click.Context) -> list[tuple[str, str]]:
    """Return the options of a command with their texts, without ``--help`` and ``--json``.

    Ranges stand in parentheses: two pairs of brackets are a link in Markdown.
    """
    records = [parameter.get_help_record(context) for parameter in context.command.get_params(context)]
    return [
        (f"`{record[0]}`", re.sub(r"(?<= )\[([^]]+)\]", r"(\1)", one_line(record[1])))
        for record in records
        if record and record[1] and not re.search(r"--(?:help|json)\b", record[0])
    ]


def command_contexts(context: click.Context) -> Iterator[click.Context]:
    """Yield ``context`` and those of the commands below it, without commands of other packages."""
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            announced_as = ".".join([*context.command_path.split()[1:], name])
            inner = None if announced_as in OTHERS_COMMANDS else context.command.get_command(context, name)
            if inner is not None:
                yield from command_contexts(click.Context(inner, info_name=name, parent=context))


def command_page(context: click.Context, shared: Mapping[tuple[str, str], None]) -> str:
    """Return one command: usage, text, its own options, and which of the ``shared`` ones it has."""
    usage = " ".join([context.command_path, *context.command.collect_usage_pieces(context)])
    paragraphs = [fenced(text) for text in inspect.cleandoc(context.command.help or "").split("\n\n")]
    rows = option_rows(context)
    items = [listed(*row) for row in rows if row not in shared]
    if also := [f"`{option.strip('`').split()[0]}`" for option, text in rows if (option, text) in shared]:
        items.append(f"- also {', '.join(also)}\n")
    page = "\n\n".join([f"## {context.command_path}", f"```text\n{usage}\n```", *paragraphs]) + "\n"
    return page + ("\n" + "".join(items) if items else "")


def fenced(paragraph: str) -> str:
    """Return a paragraph whose lines click preserves as a block that Markdown preserves, too."""
    return f"```text\n{paragraph[2:]}\n```" if paragraph.startswith("\b\n") else paragraph


def announced(group: str) -> set[str]:
    """Return the entry points of a group that the members declare."""
    texts = [path.read_text(encoding="utf-8") for path in ROOT.glob("esper-*/pyproject.toml")]
    points = [tomllib.loads(text)["project"].get("entry-points", {}) for text in texts]
    return {name for groups in points for name in groups.get(group, {})}


# --- reference/observations.md


def observation_fields() -> str:
    """Return the fields of an observation."""
    docs = field_docs(signals.Observation)
    return "".join(listed(typed(field), docs.get(field.name, "")) for field in fields(signals.Observation))


def columns() -> str:
    """Return the columns of each kind of row, in their order; those of one choice are grouped."""
    meanings_of = run_path(str(DOCS / "columns.py"))
    parts = [f"Version {observations.SCHEMA} of the columns. None goes beyond ±{observations.LIMIT:g}.\n"]
    for title, names, meanings in (
        ("Of the whole", observations.GLOBAL_COLUMNS, meanings_of["OF_THE_WHOLE"]),
        ("Of a slot", observations.SLOT_COLUMNS, meanings_of["OF_A_SLOT"]),
        ("Of a candidate", observations.CANDIDATE_COLUMNS, meanings_of["OF_A_CANDIDATE"]),
    ):
        together: dict[str, list[str]] = {}
        for name in names:
            column = name.removesuffix("?")
            group = (
                column
                if column in meanings
                else next(prefix for prefix in meanings if prefix[-1] == "_" and column.startswith(prefix))
            )
            together.setdefault(group, []).append(name)
        rows = [(" ".join(f"`{name}`" for name in members), meanings[group]) for group, members in together.items()]
        assert list(together) == list(meanings), "a meaning without a column, or out of order"
        parts.append(f"### {title}\n\n{table(('columns', ''), rows)}")
    return "\n".join(parts)


OTHERS_COMMANDS = set(external_commands()) - announced("esper.commands")

STUDY = ROOT / "benchmarks" / "headline" / "results"
"""The study's figures, which its page shows."""

WRITERS: dict[str, Callable[[], str]] = {
    "columns": columns,
    "commands": commands,
    "layers": run_path(str(DOCS / "floors.py"))["layer_lines"],
    "configuration": configuration,
    "events": event_records,
    "hooks": hook_specs,
    "observation": observation_fields,
    "seed-table": seed_table,
    "slot-table": slot_table,
    **run_path(str(DOCS / "studies.py"))["PARTS"],
}


def written(text: str) -> str:
    """Return ``text`` with every marked part replaced by what the code generates now."""

    def anew(part: re.Match[str]) -> str:
        return f"{part['open']}\n{WRITERS[part['name']]()}\n{part['close']}"

    return MARKED.sub(anew, text)


def main(arguments: Sequence[str]) -> int:
    """Write what is out of date; with ``--check`` only name it."""
    stale = []
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        if (now := written(text)) != text:
            stale.append(page.relative_to(ROOT).as_posix())
            if "--check" not in arguments:
                page.write_text(now, encoding="utf-8")
    floors = run_path(str(DOCS / "floors.py"))
    if floors["PICTURE"].read_text(encoding="utf-8") != (picture_of_floors := floors["picture"]()):
        stale.append(floors["PICTURE"].relative_to(ROOT).as_posix())
        if "--check" not in arguments:
            floors["PICTURE"].write_text(picture_of_floors, encoding="utf-8")
    for drawn in sorted(STUDY.glob("*.svg")):
        picture = DOCS / "pictures" / f"study-{drawn.name}"
        if not picture.exists() or picture.read_bytes() != drawn.read_bytes():
            stale.append(picture.relative_to(ROOT).as_posix())
            if "--check" not in arguments:
                picture.write_bytes(drawn.read_bytes())
    if stale and "--check" in arguments:
        sys.stderr.write(f"out of date, `make docs` writes them: {', '.join(stale)}\n")
        return 1
    return 0


if __name__ == "__main__":
    answers, figures = import_module("answers"), import_module("figures")  # beside this one
    sys.exit(main(sys.argv[1:]) | answers.main(sys.argv[1:]) | figures.main())
