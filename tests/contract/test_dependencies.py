"""Each member declares what it imports, and nothing else; the members' versions move together."""

import importlib.metadata
import re
import sys
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from esper_core import __version__
from tests.contract.conftest import imports

ROOT = Path(__file__).parents[2]
MEMBERS = sorted(path.parent.name for path in ROOT.glob("esper-*/pyproject.toml"))
DISTRIBUTIONS = importlib.metadata.packages_distributions()

# What comes with another distribution, which pins its version.
PART_OF = {"pydantic-core": "pydantic"}

# What is declared beyond the imports, with the reason.
NOT_IMPORTED_ITSELF = {
    **{
        ("esper-study", f"esper-{kind}"): "growbench's configurations name its components"
        for kind in ("blueprints", "policies", "rewards", "tasks")
    },
    **{("esper-grow", name): "torch.onnx imports it when a network is exported" for name in ("onnx", "onnxscript")},
    ("esper-scale", "s3fs"): "fsspec imports it for s3://",
    **{
        ("esper-run", f"esper-{kind}"): "the components that a run has by default"
        for kind in ("blueprints", "policies", "rewards", "tasks")
    },
    **{("esper-run", f"esper-{name}"): "an extra of it" for name in ("scale", "watch")},
    **{("esper-grow", f"esper-{kind}"): "what a Gardener has by default" for kind in ("blueprints", "policies")},
    ("esper-tasks", "scikit-learn"): "imported by name when the task digits is built",
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


def project(member: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / member / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def requirements(member: str) -> list[str]:
    metadata = project(member)
    return [*metadata["dependencies"], *chain(*metadata.get("optional-dependencies", {}).values())]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("member", MEMBERS)
def test_a_member_declares_what_it_imports_and_nothing_else(member: str) -> None:
    spared = {name for (importer, name) in NOT_IMPORTED_ITSELF if importer == member}
    assert imported(member) - declared(member) == set()
    assert declared(member) - imported(member) - spared == set()


@pytest.mark.parametrize("member", MEMBERS)
def test_members_have_one_version_and_license_and_require_each_other_in_it(member: str) -> None:
    assert project(member)["version"] == __version__
    members = [requirement for requirement in requirements(member) if requirement.startswith("esper-")]
    assert {requirement.partition("==")[2] for requirement in members} <= {__version__}
    assert (ROOT / member / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
