"""Compare the numbers of small runs between two revisions of the project, to the last bit.

    python -m benchmarks.golden BASE [HEAD]

BASE and HEAD are git revisions; HEAD defaults to the current commit. Each revision is cloned and set up once, in the
system's temporary folder, and every golden configuration is run in both. Losses, steps, rewards, stages and growth must
be equal to the bit, intervals and p-values to 1e-9. Exit status 0: all equal.

Besides plain runs it compares a governor rollback, two rewards in turn, PPO with and without memory,
a run that is killed and resumed, one run in threads and in processes, own loops with a Gardener, and a probe.

When a change renames a key of an event, add it to ALIASES; when it renames an option, give the newer revision its own
text in NEWER.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PLAN = """
policy:
  use: schedule
  settings:
    plan:
      - {step: 0, op: germinate, slot: early, blueprint: conv_light, speed: 2}
      - {step: 3, op: advance, slot: early}
      - {step: 6, op: fossilise, slot: early}
"""
STRIPES = "task: stripes\nhost: pointwise-mlp\nslots:\n  early: {blueprints: [conv_light]}\n"
TWO_BLUEPRINTS = "task: stripes\nhost: pointwise-mlp\nslots:\n  early: {blueprints: [conv_light, pointwise]}\n"
MNIST = "task: mnist1d\nhost: pointwise-mlp\nslots:\n  early: {blueprints: [conv_light, pointwise]}\n"
SMALL = "environments: 2\nepisode: {steps: 8, batches: 4, batch_size: 20}\n"
SHADOW = "growth: {incubation: shadow}\n"
UNFUSED = "compute: {fused: false}\n"
"""Once the defaults, and named since, so that older revisions can be compared."""
EASILY_ALARMED = "governor: {surge_sigmas: 0, surge_ratio: 1.0, surge_steps: 1, history_steps: 2, rollbacks: 100}\n"

RUNS = {
    "plan": STRIPES + PLAN + SMALL + SHADOW + "capacity: true\n",
    "branch": STRIPES + PLAN + SMALL + "growth: {incubation: branch}\n",
    "fossil-settings": STRIPES
    + PLAN
    + SMALL
    + "optimizer: {host: {kind: sgd, learning_rate: 0.02}, seed: {learning_rate: 0.001}}\ncapacity: true\n"
    + SHADOW,
    "strict-heuristic": "task: mnist1d\nhost: pointwise-mlp\nslots:\n  early: {blueprints: [pointwise, conv_light]}\n"
    "  late: {blueprints: [mlp]}\npolicy: heuristic\n"
    "growth: {nursery: 2, gates: strict, incubation: shadow, price: 1e-4}\n"
    "environments: 2\nepisode: {steps: 30, batches: 8, batch_size: 100}\n",
    "metric": MNIST + "policy: heuristic\ngrowth: {gates: strict, evidence: metric, price: 1e-6, nursery: 2}\n"
    "environments: 2\nepisode: {steps: 30, batches: 8, batch_size: 50}\n",
    "priced": MNIST + "policy: heuristic\ngrowth: {price: {of: parameters, doubling: 0.001}, average: 4}\n"
    "environments: 2\nepisode: {steps: 24, batches: 8, batch_size: 50}\n",
    "tokens": "task: marked-sum\nhost: token-mlp\nslots:\n  early: {blueprints: [attention, gru_mixer, mlp]}\n"
    "policy: random\nenvironments: 2\nepisode: {steps: 6, batches: 3, batch_size: 20}\n" + SHADOW,
    "rollback": STRIPES + PLAN + EASILY_ALARMED + "environments: 2\n"
    "episode: {steps: 20, batches: 2, batch_size: 10}\noptimizer: {host: {learning_rate: 0.3}}\n" + SHADOW,
    "price": TWO_BLUEPRINTS + "policy: random\nreward: {use: team, settings: {price: 10.0}}\n" + SMALL + SHADOW,
    "ppo": TWO_BLUEPRINTS + "policy: {use: ppo, settings: {memory: false}}\nrounds: 2\n" + SMALL + SHADOW,
    "ppo-with-memory": TWO_BLUEPRINTS + "policy: {use: ppo, settings: {memory: true}}\nrounds: 3\n" + SMALL + SHADOW,
    "processes": STRIPES + PLAN + SMALL + SHADOW + "lanes: 2\nengine: processes\n",
}
RUNS = {name: text + UNFUSED for name, text in RUNS.items()} | {
    "groups": MNIST + "policy: heuristic\nengine: threads\nlanes: 2\nenvironments: 3\n"
    "episode: {steps: 24, batches: 8, batch_size: 50}\ncompute: {fused: true}\n",
}
KILLED = (
    STRIPES
    + PLAN
    + "environments: 2\nepisode: {steps: 24, batches: 30, batch_size: 100}\ncheckpoints: {every: 1}\n"
    + UNFUSED
)
LOOPS = ("gardener", "gardener-resumed", "gardener-tokens", "probe")
"""The cases of ``golden_loops``."""
NEWER: dict[str, str] = {}
ALIASES: dict[str, str] = {}
RENAMED_VALUES: dict[object, str] = {"fossilized": "fossilised"}
"""Values of older revisions, and what they are called now."""
IGNORED = {
    "run",
    "timing",
    "seconds",
    "sections",
    "warnings",
    "v",
    "reason",
    "hint",
    "notes",
    "note",
    "strictness",
}
REMOVED = {"boot_low", "boot_high", "u", "u_p", "cliffs_delta", "p_margin", "host_params", "paired", "effect_size"}
REMOVED |= {"curve", "target"}
"""Figures in the summaries of older revisions, and how seeds were blended in there."""
NEW_IN_OPINIONS = {"lack", "n"}
"""What a gate did not have, which was a note in words."""
ARGUMENTS = {
    "germinate": ("blend", "speed"),
    "prune": ("speed",),
}
"""What the ops of actions read beside slot and blueprint."""
LOOSE = ("ci_", "p", "boot_", "u_p", "cliffs")
RUN_SECONDS = 600

Numbers = dict[str, object]


def set_up(revision: str, home: Path) -> Path:
    """Clone a revision and install it, unless an earlier call has; return the clone."""
    commit = subprocess.run(["git", "rev-parse", revision], capture_output=True, text=True, check=True).stdout.strip()
    clone = home / commit[:12]
    if not (clone / ".golden-ready").exists():
        log = home / "log"
        _shell(["git", "clone", "-q", str(Path.cwd()), str(clone)], home, log)
        _shell(["git", "checkout", "-q", commit], clone, log)
        _shell(["make", ".venv/.ready"], clone, log)
        (clone / ".golden-ready").touch()
    return clone


def numbers(data: object, path: str = "") -> Numbers:
    """Flatten nested data to path -> leaf, without the keys that differ between two identical runs."""
    if isinstance(data, dict):
        if "op" in data:  # an action was its title once, and its other arguments stood beside it
            title = " ".join(str(data[name]) for name in ("op", "slot", "blueprint") if data.get(name))
            beside = path.removesuffix("/action") + "/arguments"
            return {path: title} | {f"{beside}/{name}": data[name] for name in ARGUMENTS.get(data["op"], ())}
        left_out = IGNORED | REMOVED | (NEW_IN_OPINIONS if "finding" in data else set())
        items = [(ALIASES.get(key, key), value) for key, value in data.items() if key not in left_out]
    elif isinstance(data, list):
        items = [(str(place), value) for place, value in enumerate(data)]
    else:
        return {path: RENAMED_VALUES.get(data, data) if isinstance(data, str) else data}
    leaves: Numbers = {}
    for key, value in items:
        leaves |= numbers(value, f"{path}/{key}")
    return leaves


def run_numbers(run: Path) -> Numbers:
    """Read what a run directory holds: results, events and growth."""
    leaves = numbers(json.loads((run / "summary.json").read_text()).get("results"), "results")
    seen: dict[str, int] = {}
    for line in (run / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        kind = str(event.get("type"))
        if kind in {"run-started", "run-finished"}:
            continue
        seen[kind] = seen.get(kind, -1) + 1
        leaves |= numbers(event, f"{kind}/{seen[kind]}")
    growth = run / "growth.json"
    return leaves | (numbers(json.loads(growth.read_text()), "growth") if growth.exists() else {})


class Revision:
    """The command ``esper`` of one revision, run in folders of its own."""

    def __init__(self, clone: Path) -> None:
        self._esper = str(clone / ".venv/bin/esper")
        self._python = str(clone / ".venv/bin/python")

    def plain(self, text: str) -> Numbers:
        """Run a configuration to its end."""
        with tempfile.TemporaryDirectory() as folder:
            return run_numbers(self._run(text, Path(folder)))

    def killed_and_resumed(self, text: str) -> Numbers:
        """Kill a run once it has written some checkpoints, and resume it."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            command = self._command(text, folder)
            process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            deadline = time.monotonic() + RUN_SECONDS
            while process.poll() is None and len(list(folder.glob("runs/*/checkpoints/*/COMPLETE"))) < 2:
                if time.monotonic() > deadline:
                    process.kill()
                    sys.exit("killed-and-resumed: no checkpoint was written in time")
                time.sleep(0.02)
            if process.poll() is not None:
                sys.exit("killed-and-resumed: the run ended before it could be killed")
            process.send_signal(signal.SIGKILL)
            process.wait()
            (run,) = (folder / "runs").iterdir()
            self._call(["resume", str(run), "--quiet"], folder)
            return run_numbers(run)

    def own_loop(self, case: str) -> Numbers:
        """Run one case of ``golden_loops``, as the newer revision has it."""
        with tempfile.TemporaryDirectory() as folder:
            script = Path(__file__).with_name("golden_loops.py")
            return numbers(json.loads(self._call([str(script), case], Path(folder), self._python)))

    def _command(self, text: str, folder: Path) -> list[str]:
        (folder / "run.yaml").write_text(text)
        return [self._esper, "run", str(folder / "run.yaml"), "--quiet", "--runs-dir", str(folder / "runs")]

    def _run(self, text: str, folder: Path) -> Path:
        self._call(self._command(text, folder)[1:], folder)
        (run,) = [candidate for candidate in (folder / "runs").iterdir() if (candidate / "summary.json").exists()]
        return run

    def _call(self, arguments: list[str], folder: Path, program: str | None = None) -> str:
        done = subprocess.run(
            [program or self._esper, *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_SECONDS,
            env={**os.environ, "COLUMNS": "200"},
        )
        if done.returncode:
            sys.exit(f"esper {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout


def compare(name: str, before: Numbers, after: Numbers) -> bool:
    """Print one line for a golden run, and the first keys that differ; return whether all are equal."""
    differing = sorted(key for key in before.keys() | after.keys() if not _same(key, before.get(key), after.get(key)))
    print(
        f"{name:20} {len(before):6} values  {'identical' if not differing else f'{len(differing)} differ'}", flush=True
    )
    for key in differing[:8]:
        print(f"    {key}: {before.get(key, 'absent')!r} -> {after.get(key, 'absent')!r}")
    return not differing


def main() -> int:
    """Compare two revisions, and within the newer one killed against uninterrupted, processes against threads."""
    if not 2 <= len(sys.argv) <= 3:
        print(__doc__)
        return 2
    home = Path(tempfile.gettempdir(), "esper-golden")
    home.mkdir(exist_ok=True)
    base, head = (Revision(set_up(name, home)) for name in (sys.argv[1], *(sys.argv[2:] or ["HEAD"])))
    equal = [compare(name, base.plain(text), head.plain(NEWER.get(name, text))) for name, text in RUNS.items()]
    equal += [compare(case, base.own_loop(case), head.own_loop(case)) for case in LOOPS]
    equal.append(compare("killed-and-resumed", base.plain(KILLED), head.killed_and_resumed(KILLED)))
    threads = RUNS["processes"].replace("engine: processes", "engine: threads")
    equal.append(compare("threads-processes", head.plain(threads), head.plain(RUNS["processes"])))
    return 0 if all(equal) else 1


def _same(key: str, before: object, after: object) -> bool:
    if before == after:
        return True
    if not (isinstance(before, float | int) and isinstance(after, float | int)):
        return False
    loose = key.startswith("results") and key.rsplit("/", 1)[-1].startswith(LOOSE)
    return loose and abs(before - after) <= 1e-9 * max(1.0, abs(before), abs(after))


def _shell(command: list[str], cwd: Path, log: Path) -> None:
    with log.open("ab") as out:
        done = subprocess.run(command, cwd=cwd, stdout=out, stderr=out, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed in {cwd.name} ({done.returncode}); see {log}")


if __name__ == "__main__":
    sys.exit(main())
