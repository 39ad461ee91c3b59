"""Check which packages import which, by rules that are made from the packages themselves.

    python .ci/layers.py

Each distribution says in its pyproject.toml on which floor it is, and how its own modules are layered:

    [tool.esper]
    floor = 3
    layers = ["command | integrations", "probes", "gardener"]

The rules: imports go down the floors only, and packages of one floor are independent; inside a package they go down its
layers, and in no circle; of the core, others import the faces alone, never a module behind one; plugins import leyline
and the root alone.
"""

from __future__ import annotations

import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from importlinter.cli import lint_imports

ROOT: Final = Path(__file__).resolve().parents[1]
CORE: Final = "esper_core"
OPEN: Final = ("leyline", "settings")
"""Modules of the core that others import as they are."""

PLUGINS: Final = ("esper_blueprints", "esper_policies", "esper_rewards", "esper_tasks")
"""Packages that are written as a third party writes a plugin."""


@dataclass(frozen=True)
class Member:
    """A distribution: its package, its floor, what it is for, and the layers of its modules from the top down."""

    package: str
    floor: int
    use: str
    layers: tuple[str, ...]


def members() -> list[Member]:
    """Return the distributions, the lowest floor first."""
    every = []
    for file in sorted(ROOT.glob("esper-*/pyproject.toml")):
        project = tomllib.loads(file.read_text(encoding="utf-8"))
        declared: dict[str, Any] = project["tool"]["esper"]
        package = project["project"]["name"].replace("-", "_")
        every.append(Member(package, declared["floor"], declared["use"], tuple(declared.get("layers", ()))))
    return sorted(every, key=lambda member: (member.floor, member.package))


def floors() -> list[str]:
    """Return the floors from the top down, each with its independent packages: ``esper_grow | esper_scale``."""
    by_floor: dict[int, list[str]] = {}
    for member in members():
        by_floor.setdefault(member.floor, []).append(member.package)
    return [" | ".join(by_floor[floor]) for floor in sorted(by_floor, reverse=True)]


def contracts() -> list[dict[str, Any]]:
    """Return the rules as import-linter takes them."""
    packages = [member.package for member in members()]
    above = [package for package in packages if package != CORE]
    core = ROOT / "esper-core" / "src" / CORE
    faces = sorted(path.parent.name for path in core.glob("*/__init__.py") if path.parent.name not in OPEN)
    rules: list[dict[str, Any]] = [
        {"name": "Imports go down the floors only", "type": "layers", "layers": floors()},
        {
            "name": "Of the core, others import faces alone",
            "type": "forbidden",
            "source_modules": above,
            "forbidden_modules": [f"{CORE}.{face}.*" for face in faces],
            "allow_indirect_imports": True,
        },
        {
            "name": "Plugins import leyline and the root of the core alone",
            "type": "forbidden",
            "source_modules": [package for package in packages if package in PLUGINS],
            "forbidden_modules": [f"{CORE}.{face}" for face in (*faces, "settings")],
            "allow_indirect_imports": True,
        },
        {"name": "No package has a circle of imports", "type": "acyclic_siblings", "ancestors": packages},
    ]
    return rules + [
        {
            "name": f"An import inside {member.package} goes down only",
            "type": "layers",
            "containers": [member.package],
            "exhaustive": True,
            "layers": list(member.layers),
        }
        for member in members()
        if member.layers
    ]


def configuration() -> str:
    """Return the rules as a configuration file of import-linter."""

    def value(setting: Any) -> str:
        if isinstance(setting, bool):
            return str(setting).lower()
        if isinstance(setting, list):
            return "[" + ", ".join(f'"{entry}"' for entry in setting) + "]"
        return f'"{setting}"'

    lines = ["[tool.importlinter]", f"root_packages = {value([member.package for member in members()])}"]
    lines += ["exclude_type_checking_imports = false"]
    for contract in contracts():
        lines += ["", "[[tool.importlinter.contracts]]", *(f"{key} = {value(part)}" for key, part in contract.items())]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Check the rules; print what breaks them."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "pyproject.toml")
        file.write_text(configuration(), encoding="utf-8")
        return lint_imports(config_filename=str(file))


if __name__ == "__main__":
    sys.exit(main())
