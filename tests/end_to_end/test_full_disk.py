"""A full or read-only disk gives one message that says how to continue.

The disks are real: small file systems in memory that only the tested command can see.
"""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

UNSHARED = ["unshare", "--map-root-user", "--mount"]
ESPER = shlex.join([sys.executable, "-m", "esper_run"])
STUDY = """
task: {use: tasks/mnist1d, settings: {samples: 200, validation: 60}}
host: {use: tasks/pointwise-mlp, settings: {channels: 4, hidden: 8}}
slots: {early: {blueprints: [pointwise]}}
policy: {use: policies/random}
environments: 2
rounds: 10
episode: {steps: 3, batches: 2}
capacity: false
growth: {gates: "off"}
checkpoints: {every: 3, keep: 1}
"""


def alone(script: str, at: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*UNSHARED, "sh", "-c", script], cwd=at, capture_output=True, text=True, check=False)


@pytest.fixture
def at(tmp_path):
    """A folder with a study, and an empty one to mount a disk on."""
    (tmp_path / "study.yaml").write_text(STUDY, encoding="utf-8")
    (tmp_path / "disk").mkdir()
    if shutil.which("unshare") is None or alone("mount -t tmpfs none disk", tmp_path).returncode:
        pytest.skip("nobody may mount a disk here, so none can be full")
    return tmp_path


def results(answer: str) -> dict[str, object]:
    """Return the results in the last line, which is that of a finished run."""
    parsed: dict[str, object] = json.loads(answer.splitlines()[-1])["results"]
    return parsed


@pytest.mark.parametrize(("kilobytes", "reported"), [(272, False), (320, True)])
def test_a_full_disk_is_reported_once_with_a_hint_and_nothing_is_lost(at, kilobytes, reported):
    """There is room for one checkpoint, with or without a report."""
    script = f"""
        mount -t tmpfs -o size={kilobytes}k none disk
        {ESPER} run study.yaml --runs-dir disk --name full > first 2> said; echo $? > status
        find disk -name "*.part" > left
        ls disk/*/report.html > report 2> /dev/null
        mount -o remount,size=40m disk
        {ESPER} resume disk/* --json
    """
    went_on = alone(script, at)
    assert bool((at / "report").read_text()) == reported
    assert (at / "status").read_text() == "1\n"
    errors = (at / "said").read_text(encoding="utf-8")
    assert errors.count("No space left on device") == 1, errors
    assert "E410 cannot write" in errors
    assert "warning" not in errors
    (command,) = (line.partition("Resume it:")[2].split() for line in errors.splitlines() if "Resume it:" in line)
    assert command[:2] == ["esper", "resume"]
    assert (at / "left").read_text() == "", "nothing half written is left behind"
    uninterrupted = alone(f"{ESPER} run study.yaml --runs-dir whole --json", at)
    assert went_on.returncode == uninterrupted.returncode == 0, went_on.stderr + uninterrupted.stderr
    assert results(went_on.stdout) == results(uninterrupted.stdout)


def test_a_read_only_disk_is_reported_before_training(at):
    tried = alone(f"mount -t tmpfs -o ro none disk; {ESPER} run study.yaml --runs-dir disk/runs", at)
    assert tried.returncode == 1
    first = tried.stderr.splitlines()[0]
    assert first.startswith("E410 cannot write ")
    assert first.endswith("disk/runs: Read-only file system")
    assert tried.stdout == ""
