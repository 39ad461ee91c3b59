"""What a run costs by its size: ``python -m benchmarks.costs``, about ten minutes on one core.

For 1 to 256 environments with 0 to 8 seeds that incubate in each, a run of a few steps as a process of its own: its
processor time for each step of a network, the peak of its resident memory, and the bytes of events and of its latest
checkpoint. Time and bytes count for one network, so that a figure which rises down a column grows faster than the run.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import yaml

ENVIRONMENTS: Final = (1, 4, 16, 64, 256)
SEEDS: Final = (0, 1, 4, 8)
BLUEPRINTS: Final = (
    "pointwise",
    "conv_light",
    "bottleneck",
    "depthwise_separable",
    "dilated",
    "norm",
    "squeeze_excite",
    "conv_heavy",
)
STEPS: Final = 12
"""Decision steps; a seed germinates in each of the first eight."""


def config_of(environments: int, seeds: int, *, batches: int, fused: str | None) -> dict[str, Any]:
    """Return the configuration of a run in which so many seeds germinate in each network, and none is blended in."""
    slots = {"early": {"at": "stem", "blueprints": list(BLUEPRINTS)}}
    plan = [
        {"step": step, "op": "germinate", "slot": "early", "blueprint": blueprint}
        for step, blueprint in enumerate(BLUEPRINTS[:seeds])
    ]
    return {
        "task": {"use": "mnist1d", "settings": {"samples": 1250, "validation": 200}},
        "host": "pointwise-mlp",
        "slots": slots,
        "policy": {"use": "schedule", "settings": {"plan": plan}},
        "twin": False,
        "environments": environments,
        "episode": {"steps": STEPS, "batches": batches},
        "growth": {"nursery": len(BLUEPRINTS), "auto_advance": False},
        "engine": "threads",
        "checkpoints": {"every": STEPS - 1, "keep": 1},
        "lanes": 1,
        "compute": {} if fused is None else {"fused": fused == "true"},
    }


def measure(environments: int, seeds: int, *, batches: int, fused: str | None) -> tuple[float, float, float, float]:
    """Run, and return processor seconds, resident bytes, and the bytes of events and of the latest checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "costs.yaml"
        config = config_of(environments, seeds, batches=batches, fused=fused)
        file.write_text(yaml.safe_dump(config), encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "esper_run",
            "run",
            str(file),
            "--runs-dir",
            folder,
            "--name",
            "costs",
            "--quiet",
        ]
        with (Path(folder) / "output").open("w", encoding="utf-8") as output:
            child = os.posix_spawn(
                sys.executable,
                command,
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, output.fileno(), stream) for stream in (1, 2)],
            )
        _, status, usage = os.wait4(child, 0)
        if status:
            sys.exit((Path(folder) / "output").read_text(encoding="utf-8"))
        run = next(path.parent for path in Path(folder).glob("*/events.jsonl"))
        checkpoint = max((run / "checkpoints").iterdir())
        stored = sum(path.stat().st_size for path in checkpoint.iterdir())
        seconds = usage.ru_utime + usage.ru_stime
        return seconds, 1024.0 * usage.ru_maxrss, (run / "events.jsonl").stat().st_size, stored


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=int, nargs="+", default=ENVIRONMENTS)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--batches", type=int, default=8, help="batches in a step (default: 8)")
    parser.add_argument("--fused", choices=["true", "false"], help="compute.fused; default: as configured")
    parsed = parser.parse_args()
    begun = measure(1, 0, batches=1, fused=parsed.fused)[0]
    columns = ("networks", "seeds", "ms a step", "MiB", "MiB more", "event bytes", "checkpoint kB")
    print("".join(f"{column:>15}" for column in columns))
    for seeds in parsed.seeds:
        smallest = None
        for environments in parsed.environments:
            costs = measure(environments, seeds, batches=parsed.batches, fused=parsed.fused)
            (seconds, resident, events, stored), steps = costs, environments * STEPS
            mebibytes = resident / 2**20
            smallest = mebibytes if smallest is None else smallest
            spent = 1e3 * (seconds - begun) / steps
            more = (mebibytes - smallest) / environments
            figures = (f"{spent:.1f}", f"{mebibytes:.0f}", f"{more:.2f}", f"{events / steps:,.0f}")
            row = (environments, seeds, *figures, f"{stored / environments / 1e3:.1f}")
            print("".join(f"{figure:>15}" for figure in row), flush=True)


if __name__ == "__main__":
    main()
