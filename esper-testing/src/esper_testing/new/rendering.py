"""Which files does a new plugin have? Templates, with what is particular to a kind filled in."""

from __future__ import annotations

import re
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Final

from esper_testing.new.kinds import KINDS

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from esper_testing.new.naming import Names


REQUIREMENTS: Final = {"pydantic": "pydantic>=2.9,<3", "torch": "torch>=2.6"}

# Where a template's file goes. The rest of a kind's folder goes into the package under its own name.
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
_SUFFIX: Final = ".in"


def render(kind: str, names: Names, core_version: str) -> dict[str, str]:
    """The text of each file of a new package, by its path in the package's folder.

    kind: one of KINDS. core_version: the esper-core that the package is to be written for.
    """
    own = KINDS[kind]
    values = _values(kind, names, core_version)
    templates = files("esper_testing.new") / "templates"
    usage = (templates / kind / f"usage.md{_SUFFIX}").read_text(encoding="utf-8")
    values["usage"] = Template(usage).substitute(values).rstrip()
    written = {f"src/{names.package}/py.typed": ""}
    for part in ("common", kind):
        for template in _templates(templates / part):
            place = _PLACES[template.name.removesuffix(_SUFFIX)].format(package=names.package, module=own.module)
            written[place] = Template(template.read_text(encoding="utf-8")).substitute(values)
    return dict(sorted(written.items()))


def core_range(version: str) -> str:
    """The versions of esper-core that a package written for ``version`` takes: up to the next that may break it.

    >>> core_range("0.1.3"), core_range("1.4.0"), core_range("0.2.0.dev1")
    ('>=0.1,<0.2', '>=1.4,<2', '>=0.2.0.dev1,<0.3')
    """
    match = re.match(r"(?P<major>\d+)\.(?P<minor>\d+)(?P<rest>[^+]*)", version)
    if match is None:
        msg = f"a version begins with two numbers, such as 0.1. Received: {version}"
        raise ValueError(msg)
    major, minor = int(match["major"]), int(match["minor"])
    released = re.fullmatch(r"(\.\d+)*(\.post\d+)?", match["rest"])
    lowest = f"{major}.{minor}" if released else match[0]
    return f">={lowest},<{major + 1}" if major else f">={lowest},<0.{minor + 1}"


def _templates(folder: Traversable) -> list[Traversable]:
    found = [entry for entry in folder.iterdir() if entry.name.endswith(_SUFFIX) and entry.name != f"usage.md{_SUFFIX}"]
    return sorted(found, key=lambda entry: entry.name)


def _values(kind: str, names: Names, core_version: str) -> dict[str, str]:
    own = KINDS[kind]
    core = core_range(core_version)
    spec = f"{kind.capitalize()}Spec"
    requires = [f"esper-core{core}", *(REQUIREMENTS[name] for name in own.requires)]
    settings = f'settings="{names.package}.settings:{own.factory}Settings"'
    arguments = [f'summary="{own.summary}"', *(own.declares or (settings,))]
    return {
        "component": own.component,
        "core_range": core,
        "dependencies": "\n".join(f'    "{requirement}",' for requirement in requires),
        "distribution": names.distribution,
        "factory": own.factory,
        "imported": ", ".join(sorted([spec, "PluginInfo"])),
        "kind": kind,
        "module": own.module,
        "package": names.package,
        "plugin": names.plugin,
        "plural": own.plural,
        "spec": spec,
        "spec_arguments": "\n".join(f"            {argument}," for argument in arguments),
        "summary": own.summary,
    }
