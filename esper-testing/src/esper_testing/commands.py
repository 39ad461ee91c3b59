"""The commands ``check`` and ``new``: of ``python -m esper_testing``, and of ``esper`` where esper-run is installed.

``check`` runs the conformance checks of a plugin and prints a table or JSON. ``new`` writes a new plugin package from
the jinja2 templates of this package; it needs no network.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import click

from esper_core.leyline.errors import ConfigError, Problem, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from esper_testing.checks import CheckResult


NOT_CONFORMING: Final = 3
COUNTED: Final = ("passed", "failed", "skipped")


@click.command()
@click.argument("plugin")
@click.option("--json", "as_json", is_flag=True, help="Print a list of {component, check, status, message} as JSON.")
@click.option("--all", "every", is_flag=True, help="Show every check, not only those that failed.")
@click.pass_context
def check(context: click.Context, plugin: str, *, as_json: bool, every: bool) -> None:
    """Run the conformance checks of an installed plugin, or of a one-file plugin.

    \b
    python -m esper_testing check my-plugin        status 3 if a check failed
    esper plugins check my-plugin                  the same, of esper-run
    python -m esper_testing check blueprints/conv  one component
    python -m esper_testing check my_plugin.py     a one-file plugin
    python -m esper_testing check my-plugin --json

    A component whose settings have no defaults is skipped: check it in Python, with settings. A policy is checked with
    1, 2, 3 and 7 slots.
    """
    import torch

    from esper_testing.checks import run_checks
    from esper_testing.components import component_checks, components_of

    local = [Path(plugin)] if plugin.endswith(".py") else []
    if local:
        plugin = local[0].stem.replace("_", "-")
    components = components_of(plugin, local)
    results: list[CheckResult] = []
    torch.set_num_threads(1)  # what is checked is too small for more
    for component in components:
        click.echo(f"checking {printable(component.id)} …", err=True)
        results += run_checks(component_checks(component))
    if as_json:
        click.echo(json.dumps([asdict(result) for result in results]))
    else:
        _show(plugin, results, every=every)
    context.exit(0 if all(result.ok for result in results) else NOT_CONFORMING)


def _show(plugin: str, results: Sequence[CheckResult], *, every: bool) -> None:
    if not results:
        click.echo(f"{printable(plugin)} has no components to check.")
        return
    rows = [["component", *COUNTED]]
    for component in dict.fromkeys(result.component for result in results):
        component_results = [result for result in results if result.component == component]
        rows.append(
            [component, *(str(sum(result.status == status for result in component_results)) for status in COUNTED)]
        )
    _print_rows(rows)
    shown = [result for result in results if every or not result.ok]
    if shown:
        click.echo()
        _print_rows([(result.status, result.component, result.check, result.message) for result in shown])
    failed = sum(not result.ok for result in results)
    click.echo(f"\n{len(results)} checks, {failed} failed." if failed else f"\n{len(results)} checks, none failed.")


def _print_rows(rows: Iterable[Sequence[str]]) -> None:
    """Print aligned columns, two spaces apart."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    for row in cells:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@dataclass(frozen=True, slots=True)
class Kind:
    """What differs between the packages that ``new`` writes for each kind of component.

    Attributes:
        plural: names the hook that registers components of this kind.
        component: name of the template's component; its module and its class are named after it.
        summary: describes the component in one sentence.
        requires: requirements of the package besides esper-core.
        declares: arguments of the component's spec besides the summary; by default the model of its settings.
    """

    plural: str
    component: str
    summary: str
    requires: tuple[str, ...]
    declares: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        """The component's module: ``steps_csv`` for ``steps-csv``."""
        return self.component.replace("-", "_")

    @property
    def factory(self) -> str:
        """The component's class: ``StepsCsv`` for ``steps-csv``."""
        return "".join(word.capitalize() for word in self.component.split("-"))


_PYDANTIC: Final = "pydantic>=2.9,<3"
_TORCH: Final = "torch>=2.6"
KINDS: Final[Mapping[str, Kind]] = {
    "blueprint": Kind(
        "blueprints",
        "maxout",
        "The larger of two linear maps of each feature, as a residual.",
        (_TORCH,),
        (
            'accepts=("vector", "tokens")',
            "starts_as_identity=True",
        ),
    ),
    "reward": Kind("rewards", "thrifty", "Gain over the twin, less a price for each doubling in size.", (_PYDANTIC,)),
    "policy": Kind("policies", "patient", "Germinates wherever it can, waits, and keeps every seed.", (_PYDANTIC,)),
    "task": Kind("tasks", "chirps", "Tells whether a tone in noise rises or falls.", (_PYDANTIC, _TORCH)),
    "sink": Kind("sinks", "steps-csv", "Writes one line for each step to steps.csv.", (_PYDANTIC,)),
}
"""The kinds with a template. Components of templates have names that no component of the project has."""

PREFIX: Final = "esper-"
LONGEST: Final = 48
"""Maximal length of a plugin's id in characters."""

FIRST_PARTY: Final = frozenset(
    {
        *("blueprints", "core", "esper", "grow", "policies", "rewards", "run"),
        *("scale", "tasks", "testing", "watch"),
    }
)
"""Names of the project's own plugins and packages."""

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_PLACES: Final = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "gitignore": ".gitignore",
    "ci.yml": ".github/workflows/ci.yml",
    "__init__.py": "src/{package}/__init__.py",
    "plugin.py": "src/{package}/plugin.py",
    "settings.py": "src/{package}/settings.py",
    "component.py": "src/{package}/{module}.py",
    "test_plugin.py": "tests/test_plugin.py",
}
"""Where the file of each template goes. ``usage.md`` becomes a part of README.md."""


@click.command()
@click.argument("kind", type=click.Choice(list(KINDS)), metavar="|".join(KINDS))
@click.argument("name")
@click.option("--into", type=click.Path(path_type=Path), default=Path(), help="Folder to write into. [default: here]")
@click.option("--json", "as_json", is_flag=True, help="Print {folder, package, plugin, component, files} as JSON.")
def new(kind: str, name: str, into: Path, *, as_json: bool) -> None:
    """Write a package with a working plugin: one component, its tests, a README and a CI workflow.

    \b
    python -m esper_testing new blueprint my-blocks  writes esper-my-blocks/
    esper new blueprint my-blocks                    the same, of esper-run
    cd esper-my-blocks
    pip install --editable ".[test]"
    pytest
    """
    from esper_core import __version__

    plugin = plugin_id(name)
    folder = into / f"{PREFIX}{plugin}"
    files = render(kind, plugin, __version__)
    write_package(folder, files)
    component = f"{plugin}/{KINDS[kind].component}"
    if as_json:
        written = {"folder": str(folder), "package": folder.name, "plugin": plugin}
        click.echo(json.dumps({**written, "component": component, "files": list(files)}))
        return
    click.echo(f"Wrote {folder}, a package with the {kind} {component}.\n")
    steps = [
        f"cd {folder}",
        'pip install --editable ".[test]"',
        "pytest",
        f"python -m esper_testing check {plugin}",
    ]
    click.echo("\n".join(f"  {step}" for step in steps))


def plugin_id(typed: str) -> str:
    """Return the id of a plugin that the user calls ``typed``, with or without the prefix ``esper-``.

    >>> plugin_id("my-blocks"), plugin_id("esper-my-blocks")
    ('my-blocks', 'my-blocks')

    Raises:
        ConfigError: the name is invalid (E501).
    """
    plugin = typed.removeprefix(PREFIX)
    reason = None
    if plugin in FIRST_PARTY:
        reason = "it is reserved for Esper itself"
    elif len(plugin) > LONGEST:
        reason = f"it has {len(plugin)} characters"
    elif not _NAME.fullmatch(plugin):
        reason = "it contains characters that are not allowed" if plugin else "it is empty"
    if reason:
        shown = typed if len(typed) <= 60 else f"{typed[:60]}…"
        shown = f'"{shown}"' if shown.isprintable() else ascii(shown)
        hint = (
            f"Use lower-case letters and digits, joined by single hyphens, beginning with a letter, at most {LONGEST} "
            "characters, for example my-blocks."
        )
        raise ConfigError(Problem("E501", f"invalid plugin name: {reason}. Received: {shown}", hint=hint))
    return plugin


def render(kind: str, plugin: str, core_version: str) -> dict[str, str]:
    """Return the text of each file of a new package, by its path in the package's folder.

    ``plugin`` is the plugin's id. ``core_version`` is the version of esper-core that the package is written for.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    distribution = f"{PREFIX}{plugin}"
    package = distribution.replace("-", "_")
    template, core, spec = KINDS[kind], core_range(core_version), f"{kind.capitalize()}Spec"
    settings = f'settings="{package}.settings:{template.factory}Settings"'
    values = {
        "component": template.component,
        "core_range": core,
        "distribution": distribution,
        "factory": template.factory,
        "kind": kind,
        "module": template.module,
        "package": package,
        "plugin": plugin,
        "plural": template.plural,
        "requirements": [f"esper-core{core}", *template.requires],
        "spec": spec,
        "spec_arguments": [f'summary="{template.summary}"', *(template.declares or (settings,))],
        "summary": template.summary,
    }
    loader = PackageLoader("esper_testing", "templates")
    environment = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True)
    files = {f"src/{package}/py.typed": ""}
    for path in loader.list_templates():
        folder, _, name = path.removesuffix(".jinja").partition("/")
        if folder in ("common", kind) and name in _PLACES:
            place = _PLACES[name].format(package=package, module=template.module)
            files[place] = environment.get_template(path).render(values)
    return dict(sorted(files.items()))


def core_range(version: str) -> str:
    """Return the versions of esper-core that a package written for ``version`` accepts.

    >>> core_range("0.1.3"), core_range("1.4.0"), core_range("0.2.0.dev1")
    ('>=0.1,<0.2', '>=1.4,<2', '>=0.2.0.dev1,<0.3')
    """
    from packaging.version import Version

    parsed = Version(version)
    lowest = parsed.public if parsed.is_prerelease else f"{parsed.major}.{parsed.minor}"
    return f">={lowest},<{parsed.major + 1}" if parsed.major else f">={lowest},<0.{parsed.minor + 1}"


def write_package(folder: Path, files: Mapping[str, str]) -> None:
    """Create ``folder`` with ``files``, texts by path, or leave nothing: it is written next to its place and renamed.

    Raises:
        ConfigError: the folder exists (E502), its parent does not (E503), or the system refuses (E504).
    """
    into, elsewhere = folder.parent, "Choose another name, or another folder:  --into FOLDER"
    if not into.is_dir():
        message = f'the folder to write into does not exist. Received: "{into}"'
        raise ConfigError(Problem("E503", message, hint=f'Create it first:  mkdir -p "{into}"'))
    if os.path.lexists(folder):
        raise ConfigError(Problem("E502", f'"{folder}" exists already and is not overwritten', hint=elsewhere))
    try:
        with TemporaryDirectory(prefix=".esper-new-", dir=into) as beside:
            staged = Path(beside, folder.name)
            for name, text in files.items():
                file = staged / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8", newline="\n")
            staged.rename(folder)
    except OSError as error:
        message = f'"{folder}" cannot be written: {error.strerror or error}; nothing was left there'
        raise ConfigError(Problem("E504", message, hint=elsewhere)) from error
