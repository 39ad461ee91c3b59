"""The gallery: run its examples, draw its figures, and write its texts.

    python docs/gallery.py              draw the figures from the results in docs/gallery/
    python docs/gallery.py --run        run the examples first: about ten minutes
    python docs/gallery.py --run lora   run one of them
    python docs/gallery.py --photos     photograph the live page, a probe and a plan, with Chromium
    python docs/gallery.py --adapters   run the tutorial on adapters first: some minutes; it needs what that installs

``docs/generate.py`` takes the texts from ``page``. A result has the metric of each network and step, the seeds of the
first networks, and what the run found, in words. ``default-run.txt`` is what the first one prints at its end.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from runpy import run_path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from esper_core.leyline import Reason, SeedSignals, Signals, SlotSignals, SlotState, Stage
from esper_core.leyline.events import StageChanged, StepFinished
from esper_core.telemetry import decode, encode
from esper_grow.probes.results import html_of
from esper_run import cli
from esper_run.cli.output import print_results
from esper_run.formats import plain
from esper_watch import read_history
from esper_watch.formats import format_value, short_name
from esper_watch.headline import facts
from esper_watch.history import History, is_control
from esper_watch.report import read_report
from esper_watch.sections import Report

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from esper_watch.history import SeedLife

DOCS: Final = Path(__file__).parent
growing_picture = run_path(str(DOCS / "drawings.py"))["growing_picture"]
RESULTS: Final = DOCS / "gallery"
PICTURES: Final = DOCS / "pictures"
PRINTED: Final = RESULTS / "default-run.txt"

TUTORIAL: Final = DOCS / "guides" / "where-should-lora-go.md"

SHARE: Final = 35
"""Percent of the default run after which its page is photographed."""

NETWORKS: Final = 3
"""Networks whose seeds are stored."""


class Example(NamedTuple):
    """An example: its title, the command that runs it, and what to see."""

    title: str
    command: str
    text: str


EXAMPLES: Final[Mapping[str, Example]] = {
    "sequence": Example(
        "A signal",
        "esper run plugins.yaml",
        "The default run. A host that sees each position by itself tries three blocks, and keeps the convolution.",
    ),
    "images": Example(
        "Images",
        "esper run examples/images.yaml --set environments=8",
        "A schedule grows a convolution in one arm, and a block in another that combines no neighbours.",
    ),
    "bytes": Example(
        "Text",
        "esper run examples/bytes.yaml --set environments=8",
        "A small transformer predicts the next byte. One arm grows an MLP, another one a recurrent block.",
    ),
    "own-model": Example(
        "A model and a loop of your own",
        "python examples/own_model.py",
        "A probe finds what the model lacks; a Gardener grows it while your loop trains.",
    ),
    "lora": Example(
        "LoRA on a frozen transformer",
        "python examples/lora.py",
        "A frozen model learns another task by an adapter that a probe chose. `export` merges it into the weights.",
    ),
    "nothing": Example(
        "Nothing grows",
        "esper run examples/no-deficit.yaml",
        "A host that lacks next to nothing. What a block gains is not worth its operations; all seeds are pruned.",
    ),
}


# --- results


def result_of(run: Path) -> dict[str, Any]:
    """Return what the gallery stores of a run."""
    history = read_history(run)
    assert history.started is not None
    arms = [arm for arm in history.arms if not arm.startswith("capacity")]
    drawn = {(arm, seed) for arm in arms for seed in history.environments(0, arm)[:NETWORKS]}
    lives = [life for life in history.seeds if (life.arm, life.seed) in drawn]
    episodes = [episode for episode in history.episodes if episode.arm in arms]
    report = read_report(run, history)
    return {
        "found": list(_found(report, history)),
        "config": f"growth: {{incubation: {report.incubation}}}",
        "started": json.loads(encode(replace(history.started, run="", arms=tuple(arms), choices={}))),
        "slots": {arm: history.slots[arm] for arm in arms},
        "metrics": {
            arm: {
                str(seed): [_rounded(value) for value in course.values()]
                for seed, course in history.courses(0, arm, 10**6).items()
            }
            for arm in arms
        },
        "changes": [
            json.loads(encode(replace(change, reason=Reason(change.reason.cause))))
            for life in lives
            for change in life.changes
        ],
        "alphas": [
            [life.arm, life.seed, life.slot, life.blueprint, look.step, _stage(life, look.step), round(look.alpha, 3)]
            for life in lives
            for look in life.looks
        ],
        "episodes": [json.loads(encode(replace(episode, grown=(), closing={}))) for episode in episodes],
    }


def _found(report: Report, history: History) -> Iterator[str]:
    gains = [text for name, text in facts(report) if name == "Gain"]
    yield from gains
    if not gains:  # a Gardener has no twin
        for arm in history.arms:
            first, *_, last = history.mean_metric(arm)
            metrics = (format_value(history.metric, value) for value in (first, last))
            yield f"{arm}: validation {history.metric.name} {', then '.join(metrics)}"
    kept = [short_name(life.blueprint) for life in history.seeds if life.kept and not is_control(life.arm)]
    counts = ", ".join(f"{kept.count(name)} × {name}" for name in dict.fromkeys(kept))
    yield f"kept: {counts or 'nothing'}"


def _stage(life: SeedLife, step: int) -> Stage | None:
    """Return the stage during ``step``, or None before germination. A change takes effect in the next step."""
    stage = None
    for change in life.changes:
        if change.step < step or (change.step == step and change.now is Stage.GERMINATED):
            stage = change.now
    return stage


def _rounded(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def history_of(result: Mapping[str, Any]) -> History:
    """Return the history that a result stores."""
    history = History()
    history.add(decode(json.dumps(result["started"])))
    changes = [event for change in result["changes"] if isinstance(event := decode(json.dumps(change)), StageChanged)]
    alphas: dict[tuple[str, int, int], list[tuple[str, SeedSignals]]] = {}
    for arm, seed, slot, blueprint, step, stage, alpha in result["alphas"]:
        signals = SeedSignals(blueprint, Stage(stage), alpha, 0)
        alphas.setdefault((arm, seed, step), []).append((slot, signals))
    last = max(len(course) for courses in result["metrics"].values() for course in courses.values())
    for step in range(last):
        for change in changes:
            if change.step == step:
                history.add(change)
        for arm, courses in result["metrics"].items():
            for name, course in courses.items():
                if step < len(course):
                    history.add(_step(result, arm, int(name), step, alphas.get((arm, int(name), step), [])))
    for episode in result["episodes"]:
        history.add(decode(json.dumps(episode)))
    history.status = "done"
    return history


def _step(
    result: Mapping[str, Any], arm: str, seed: int, step: int, living: Sequence[tuple[str, SeedSignals]]
) -> StepFinished:
    metric = result["metrics"][arm][str(seed)][step]
    slots = tuple(
        SlotSignals(name, SlotState.FREE, 0, tuple(signals for place, signals in living if place == name))
        for name in result["slots"][arm]
    )
    value = math.nan if metric is None else metric
    return StepFinished(
        round=0, arm=arm, seed=seed, step=step, signals=Signals(step, math.nan, math.nan, value, 0, 0, slots)
    )


def load(name: str) -> dict[str, Any]:
    """Return the stored result of an example."""
    stored: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return stored


def store(name: str, result: Mapping[str, Any]) -> None:
    """Store a result, a line for each record."""
    parts = []
    for key, value in result.items():
        if isinstance(value, list):
            lines = ",\n".join(json.dumps(record, ensure_ascii=False) for record in value)
            parts.append(f'"{key}": [\n{lines}\n]')
        else:
            parts.append(f'"{key}": {json.dumps(value, ensure_ascii=False)}')
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


# --- runs, figures and texts


def run(example: Example, folder: Path) -> Path:
    """Run an example below ``folder``, and return its run directory."""
    program, *words = example.command.split()
    if program == "python":
        run_path(str(DOCS.parent / words[0]))["main"](run_dir=str(folder))
    else:
        command, file, *options = words
        arguments = [command, str(DOCS.parent / file), *options, "--quiet", "--runs-dir", str(folder)]
        cli.main(arguments, standalone_mode=False)
    (directory,) = folder.iterdir()
    return directory


def printed_results(run: Path) -> str:
    """Return the results that ``esper run`` prints at its end."""
    results = json.loads((run / "summary.json").read_text(encoding="utf-8"))["results"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        print_results(results)
    return "\n".join(line.rstrip() for line in printed.getvalue().strip("\n").splitlines()) + "\n"


def pictures(results: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the figures by their file names, and the animated one of the first page."""
    drawn = {}
    for name, result in results.items():
        report = Report(history_of(result), None, "", result["config"], has_checkpoint=False)
        drawn[f"gallery-{name}.svg"] = growing_picture(report, animated=False)
        if name == "sequence":
            drawn["growing.svg"] = growing_picture(report)
    return drawn


def page() -> str:
    """Return the text of every example with its figure, its command, and what it found."""
    parts = []
    for name, example in EXAMPLES.items():
        findings = "\n".join(f"- {plain(text)}" for text in load(name)["found"])
        figure = f"![A network of this run, and its learning curves](pictures/gallery-{name}.svg)"
        parts.append(
            f"## {example.title}\n\n{example.text}\n\n```sh\n{example.command}\n```\n\n{figure}\n\n{findings}\n"
        )
    return "\n" + "\n".join([*parts, adapters_text()]) + "\n"


def adapters_text() -> str:
    """Return the text of the tutorial on adapters, with its picture and what it found."""
    stored = load("adapters")
    findings = "".join(f"- {text}\n" for text in (stored["plan"]["reason"], stored["printed"]))
    picture = "![The layers of an encoder, and the places of a plan](pictures/plan.png)"
    return f"""## Where LoRA goes

The layers of a sentence encoder, coloured by what an adapter brings there; numbers are those of the plan. The
[tutorial](guides/where-should-lora-go.md) measures it, trains what is planned, and saves it.

{picture}

{findings}"""


def run_tutorial() -> None:
    """Run the tutorial on adapters, and store its plan, and what it prints at its end."""
    blocks = re.findall(r"```python\n(.*?)```", TUTORIAL.read_text(encoding="utf-8"), re.DOTALL)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tutorial.py").write_text("\n".join([*blocks, 'plan.save("plan.json")\n']), encoding="utf-8")
        command = [sys.executable, "tutorial.py"]
        printed = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
        plan = json.loads((Path(folder) / "plan.json").read_text(encoding="utf-8"))
    store("adapters", {"plan": plan, "printed": printed.strip().splitlines()[-1]})


# --- photographs


def photograph(url: str, file: str, width: int, height: int) -> None:
    """Take a picture of a page with Chromium."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome") or "chromium"
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={width},{height}"]
    subprocess.run(
        [chromium, *options, f"--screenshot={PICTURES / file}", url],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip


def photograph_run() -> None:
    """Take a picture of the live page of the default run while it trains."""
    with tempfile.TemporaryDirectory() as folder:
        esper = [sys.executable, "-m", "esper_run"]
        command = [*esper, "run", "plugins.yaml", "--runs-dir", folder]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=DOCS.parent) as process:
            assert process.stderr is not None
            shares = (re.search(r": (\d+) %", line) for line in process.stderr)
            next(share for share in shares if share and int(share[1]) >= SHARE)
            watch = [*esper, "watch", "--runs-dir", folder]
            with subprocess.Popen(watch, stderr=subprocess.PIPE, text=True) as server:
                assert server.stderr is not None
                photograph(
                    next(line.strip() for line in server.stderr if line.startswith("http")), "live-page.png", 900, 1000
                )
                server.terminate()
            process.terminate()


def photograph_probe() -> None:
    """Take a picture of the page of a probe."""
    probed = run_path(str(DOCS.parent / "examples" / "own_model.py"))["probed"]().to_dict()
    photograph_page(html_of("probe-page", probed), "probe.png", 920, 420)


def photograph_plan() -> None:
    """Take a picture of the page of the plan that the tutorial on adapters made."""
    photograph_page(html_of("plan-page", load("adapters")["plan"]), "plan.png", 920, 560)


def photograph_page(page: str | None, picture: str, width: int, height: int) -> None:
    """Take a picture of HTML."""
    assert page is not None
    with tempfile.NamedTemporaryFile("w", suffix=".html", encoding="utf-8") as file:
        file.write(page)
        file.flush()
        photograph(f"file://{file.name}", picture, width, height)


def main(arguments: Sequence[str]) -> None:
    """Run the examples or take the photographs if asked to, and draw all figures."""
    if "--photos" in arguments:
        photograph_run()
        photograph_probe()
    if "--adapters" in arguments:
        run_tutorial()
    if "--photos" in arguments or "--adapters" in arguments:
        photograph_plan()
    if "--run" in arguments:
        names = [name for name in EXAMPLES if name in arguments] or list(EXAMPLES)
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                directory = run(EXAMPLES[name], Path(folder))
                store(name, result_of(directory))
                if name == "sequence":
                    PRINTED.write_text(printed_results(directory), encoding="utf-8")
    for file, drawing in pictures({name: load(name) for name in EXAMPLES}).items():
        (PICTURES / file).write_text(drawing, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
