"""Is installed what was installed when a run began? Other versions may give other numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from esper_core.runs.provenance import installed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


def changed_packages(manifest: Mapping[str, Any], run: Path) -> Iterator[str]:
    """A warning for each package that the run's numbers hang on, and that has another version now."""
    before = {"torch": manifest["machine"].get("torch"), "esper-core": manifest["machine"].get("esper-core")}
    before |= {plugin["package"]: plugin["version"] for plugin in manifest.get("plugins", [])}
    for package, version in before.items():
        now = installed(package)
        if version is not None and now is not None and now != version:
            yield f"{run.name} began with {package} {version}, and goes on with {now}: its numbers may be others"
