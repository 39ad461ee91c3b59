"""Mutate run directories, and see whether a command takes what is in them for the truth: two seconds a mutation.

    python -m benchmarks.mutated_runs [--count 300] [--seed 0]

One run is interrupted after its first round, and one is finished. Each mutation changes a file of a copy: a bit, a
digit, lines, its length, or what kind of file it is. Then ``resume``, ``runs show``, ``runs list``, ``report``,
``compare`` and the pages of the live server read it. Each must give an error, say that the file changed, or give what
it gives for the whole run. Prints tracebacks, hangs and silent differences, of which there must be none.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from esper_run.cli import main as esper
from esper_watch.web.fragments import LivePage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CONFIGURATION: Final = """
task: {use: stripes, settings: {noise: 0.6}}
host: pointwise-mlp
slots: {early: {blueprints: [conv_light]}}
policy: {use: schedule, settings: {plan: [{step: 0, op: germinate, slot: early, blueprint: conv_light}]}}
environments: 1
rounds: 2
capacity: false
episode: {steps: 3, batches: 2, batch_size: 20}
checkpoints: {every: 1}
plugins: {local: [stops.py]}
"""

PLUGIN: Final = """
import os, signal
from esper_core import hookimpl

@hookimpl
def esper_step_finished(events):
    if os.environ.get("STOP") and events[0].round == 1 and events[0].step == 1:
        signal.raise_signal(signal.SIGTERM)
"""

SECONDS: Final = 60
FILES: Final = ("events.jsonl", "summary.json", "growth.json", "manifest.json", "config.yaml", "latest", "log.txt")
PARTS: Final = ("state.json", "tensors.safetensors", "COMPLETE")
ERROR: Final = re.compile(r"^E\d{3} ", re.MULTILINE)


class Misbehaved(Exception):
    """A command ended in a traceback, or without an error of Esper."""


def call(*arguments: str) -> tuple[int, str, str]:
    """Return status, stdout and stderr of a command."""
    out, err, status = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            esper(list(arguments))
        except SystemExit as end:
            status = int(end.code or 0)
    return status, out.getvalue(), err.getvalue()


@contextmanager
def limited() -> Iterator[None]:
    """Raise TimeoutError if the block takes too long."""

    def hang(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# --- mutations


def edited(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Return the mutation that changes the bytes of a file."""

    def mutate(path: Path) -> None:
        path.write_bytes(change(path.read_bytes()))

    return mutate


def replaced(text: bytes, by: bytes, times: int = 1) -> Callable[[Path], None]:
    """Return the mutation that replaces a text in a file."""
    return edited(lambda data: data.replace(text, by, times))


def other_kind(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Return the mutation that puts something else in the place of a file."""

    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return change


def sparse(path: Path) -> None:
    """Make a file of a terabyte that takes no room."""
    with path.open("wb") as file:
        file.truncate(1 << 40)


def swap_lines(data: bytes, first: int = 1) -> bytes:
    """Swap two lines."""
    lines = data.splitlines(keepends=True)
    if len(lines) > first + 1:
        lines[first : first + 2] = lines[first + 1], lines[first]
    return b"".join(lines)


def nested(path: Path) -> None:
    """Write JSON that is nested deeply."""
    path.write_text("[" * 100_000)


def link(path: Path) -> None:
    """Make a link to another file of the user."""
    path.symlink_to(path.parent / "config.yaml")


KINDS: Final[tuple[Callable[[Path], object], ...]] = (os.mkfifo, Path.mkdir, sparse, nested, link, Path.touch)


def drawn(draw: random.Random, size: int) -> Callable[[Path], None]:
    """Return a random mutation of a file with this size."""
    place, length = draw.randrange(max(1, size)), draw.choice((1, 4, 40, 400))
    bit, digit = 1 << draw.randrange(8), str(draw.randrange(10)).encode()
    noise = draw.randbytes(length)

    def flip(data: bytes) -> bytes:
        at = place % max(1, len(data))
        return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :] if data else noise

    def change_digit(data: bytes) -> bytes:
        digits = [at for at, character in enumerate(data) if chr(character).isdigit()]
        at = digits[place % len(digits)] if digits else 0
        return data[:at] + digit + data[at + 1 :]

    changes: list[Callable[[Path], None]] = [
        *[edited(flip)] * 4,
        *[edited(change_digit)] * 6,
        edited(lambda data: data[:place]),
        edited(lambda data: data[:place] + data[place + length :]),
        edited(lambda data: data[:place] + noise + data[place:]),
        edited(lambda data: data[:place] + data[place : place + length] * 2 + data[place + length :]),
        edited(lambda data: data[:place] + bytes(length) + data[place + length :]),
        edited(lambda data: swap_lines(data, place % max(1, data.count(b"\n")))),
        other_kind(draw.choice(KINDS)),
        Path.unlink,
    ]
    return draw.choice(changes)


def aimed() -> list[tuple[str, Callable[[Path], None]]]:
    """Return the aimed mutations: results, positions and sums that fit somewhere else, and kinds of files."""
    figures = [replaced(b'"test_metric":0.', b'"test_metric":0.9'), replaced(b'"seed":0', b'"seed":1', 3)]
    lines = [edited(swap_lines), edited(lambda data: data + data.splitlines(keepends=True)[-1])]
    results = [replaced(b'"mean": 0.', b'"mean": 0.9'), replaced(b'"verdict": "', b'"verdict": "better')]
    positions = [replaced(b'"bytes": ', b'"bytes": 1'), replaced(b'"study_number": 0', b'"study_number": 1')]
    sums = [replaced(b'"sha256": "', b'"sha256": "0'), edited(lambda data: b"{}")]
    named = [("events.jsonl", change) for change in (*figures, *lines)]
    named += [("summary.json", change) for change in (*results, *positions[:1], *sums)]
    named += [("manifest.json", change) for change in (replaced(b"running", b"done"), replaced(b"done", b"stopped"))]
    named += [("state.json", change) for change in positions] + [("COMPLETE", change) for change in sums]
    named += [(name, other_kind(kind)) for name in ("events.jsonl", "log.txt", "state.json") for kind in KINDS[:4]]
    named += [("growth.json", replaced(b'"seed": 0', b'"seed": 1')), ("summary.json", other_kind(sparse))]
    return [*named, ("config.yaml", replaced(b"rounds: 2", b"rounds: 1")), ("config.yaml", other_kind(sparse))]


# --- what is read


@dataclass
class Campaign:
    """Runs to mutate, what is read of them as long as they are whole, and what was found."""

    folder: Path
    interrupted: Path
    finished: Path
    expected: Any = None
    whole: dict[str, Any] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    @classmethod
    def prepare(cls, folder: Path) -> Campaign:
        """Make both runs in a folder."""
        (folder / "run.yaml").write_text(CONFIGURATION)
        (folder / "stops.py").write_text(PLUGIN)
        for name, stop in (("interrupted", "1"), ("finished", "")):
            os.environ["STOP"] = stop
            call("run", str(folder / "run.yaml"), "--runs-dir", str(folder / name), "--quiet")
        os.environ["STOP"] = ""
        interrupted, finished = (next((folder / name).iterdir()) for name in ("interrupted", "finished"))
        campaign = cls(folder, interrupted, finished)
        campaign.expected = json.loads((finished / "summary.json").read_text())["results"]
        campaign.whole = campaign.read(finished)
        return campaign

    def read(self, run: Path) -> dict[str, Any]:
        """Return what commands and pages show of the results of a run."""
        shown: dict[str, Any] = {}
        for name, arguments in {
            "show": ("runs", "show", str(run), "--json"),
            "list": ("runs", "list", "--json", f"--runs-dir={run.parent}"),
            "compare": ("compare", str(run), "--json"),
            "report": ("report", str(run), "--out", str(self.folder / "page.html")),
        }.items():
            status, out, err = call(*arguments)
            if "Traceback" in err or "bug in Esper" in err or (status and not ERROR.search(err)):
                raise Misbehaved(err)
            if status == 0 and "changed since" not in err:
                shown[name] = self._results(name, out)
        shown["page"] = _told(LivePage(run).html())
        return {name: text for name, text in shown.items() if text is not None}

    def _results(self, name: str, out: str) -> Any:
        if name == "report":
            return _told((self.folder / "page.html").read_text(encoding="utf-8"))
        value = json.loads(out)
        if name == "show":
            return value["summary"] and value["summary"]["results"], value["grown"]
        if name == "list":
            return [entry["arms"] for entry in value if entry["status"] not in ("unreadable", "no run")] or None
        return value["comparisons"], value["arms"]

    def resume(self, run: Path) -> Any:
        """Return the results of the resumed run; None if that is refused."""
        status, _, err = call("resume", str(run), "--quiet")
        if "Traceback" in err or "bug in Esper" in err or (status and not ERROR.search(err)):
            raise Misbehaved(err)
        return None if status else json.loads((run / "summary.json").read_text())["results"]

    def try_one(self, label: str, name: str, mutate: Callable[[Path], None]) -> None:
        """Mutate a file of a copy of each run, and read them."""
        for original in (self.interrupted, self.finished):
            copy = Path(shutil.copytree(original, self.folder / "copies" / original.name))
            try:
                with limited():
                    for path in [copy / name] if name in FILES else sorted(copy.glob(f"checkpoints/*/{name}"))[-1:]:
                        if path.is_file():
                            mutate(path)
                    self._judge(label, original, copy)
            except TimeoutError:
                self.findings.append(f"{label}: hang")
            except Exception as error:
                self.findings.append(f"{label}: {type(error).__name__}: {error}")
            finally:
                shutil.rmtree(copy)

    def _judge(self, label: str, original: Path, copy: Path) -> None:
        if original == self.interrupted:
            results = self.resume(copy)
            outcome = "refused" if results is None else "equal" if results == self.expected else "different"
            self._count(f"resume {outcome}")
            if outcome == "different":
                self.findings.append(f"{label}: resumed to other results")
            return
        shown = self.read(copy)
        for name, text in self.whole.items():
            outcome = "told or refused" if name not in shown else "equal" if shown[name] == text else "different"
            self._count(f"{name} {outcome}")
            if outcome == "different":
                self.findings.append(f"{label}: {name} shows other results")

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


def _told(page: str) -> str | None:
    """Return the findings of a page without what is not a result; None if it says that something is wrong."""
    if any(text in page for text in ("changed since", "E4", "There is no verdict", "not read", "is missing", "cannot")):
        return None
    page = re.sub(r'<section[^>]* id="provenance".*?</section>', "", page.partition("<main")[2], flags=re.DOTALL)
    return re.sub(
        r'data-digest="\w+"|<time.*?</time>|started (just now|[^<]* ago)|\d{4}-\d\d-\d\d[T ][\d:+.Z]+', "", page
    )


def attack(count: int, seed: int, folder: Path) -> Campaign:
    """Run a campaign of random mutations, and of all aimed ones."""
    campaign, draw = Campaign.prepare(folder), random.Random(seed)
    for number, (name, mutate) in enumerate(aimed()):
        campaign.try_one(f"aimed {number}, {name}", name, mutate)
    for number in range(count):
        name = draw.choice((*FILES[:3], *FILES, *PARTS))
        path = campaign.finished / name
        size = path.stat().st_size if path.exists() else 400
        campaign.try_one(f"random {number}, {name}", name, drawn(draw, size))
    return campaign


def main() -> int:
    """Print the figures, and every finding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        campaign = attack(arguments.count, arguments.seed, Path(folder))
    print(f"{len(aimed())} aimed and {arguments.count} random mutations, each of two runs")
    for what, number in sorted(campaign.counts.items()):
        print(f"{number:5}  {what}")
    print(*campaign.findings or ["no finding"], sep="\n")
    return bool(campaign.findings)


if __name__ == "__main__":
    sys.exit(main())
