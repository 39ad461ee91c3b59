"""A run with a store ends as one without, whatever was uploaded when its machine was lost."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.end_to_end.test_kills import found_in

RUN = """
task: {use: mnist1d, settings: {samples: 400, validation: 100}}
host: pointwise-mlp
slots:
  early: {blueprints: [conv_light, pointwise]}
policy: {use: schedule, settings: {plan: [
  {step: 0, slot: early, op: germinate, blueprint: conv_light},
  {step: 2, slot: early, op: advance},
  {step: 5, slot: early, op: prune}]}}
growth: {gates: "off", incubation: shadow, nursery: 1, embargo: 1}
environments: 2
lanes: 2
rounds: %d
episode: {steps: 6, batches: 2, batch_size: 20}
checkpoints: {every: 1}
store: %s
"""


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, bytes]]:
    """What an empty memory:// holds before each of its changes: bytes by path, without leases."""
    states: list[dict[str, bytes]] = []
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("esper_run.runs.uploads.UPLOAD_SHARE", 1.0)
    open_file, delete = MemoryFileSystem._open, MemoryFileSystem.rm

    def keep() -> None:
        state = {path: file.getvalue() for path, file in MemoryFileSystem.store.items() if "lease" not in path}
        if state not in states[-1:]:
            states.append(state)

    def _open(files: Any, path: str, mode: str = "rb", **settings: Any) -> Any:
        if mode == "wb":
            keep()
        return open_file(files, path, mode, **settings)

    def rm(files: Any, paths: Any, **settings: Any) -> None:
        keep()
        delete(files, paths, **settings)

    monkeypatch.setattr(MemoryFileSystem, "_open", _open)
    monkeypatch.setattr(MemoryFileSystem, "rm", rm)
    return states


def checkpoint_in(state: dict[str, bytes]) -> tuple[str, int] | None:
    """Return the status and the checkpoint of the manifest of a store with one run."""
    manifests = [json.loads(data) for path, data in state.items() if path.endswith("/manifest.json")]
    return (manifests[0]["status"], manifests[0]["checkpoint"]) if manifests else None


@pytest.mark.slow
@pytest.mark.parametrize("resumes", [pytest.param(1, marks=pytest.mark.install), 100])  # CI resumes once
def test_a_run_resumes_from_whatever_was_uploaded(esper, moments, tmp_path, resumes) -> None:
    (tmp_path / "run.yaml").write_text(RUN % (1, "memory://runs"))
    assert esper("run", tmp_path / "run.yaml", "--runs-dir", tmp_path / "whole", "--quiet").status == 0
    uninterrupted = next((tmp_path / "whole").iterdir())
    expected, states, url = found_in(uninterrupted), list(moments), f"memory://runs/{uninterrupted.name}"
    assert checkpoint_in(states[0]) is None
    resumable = [state for state in states if (checkpoint_in(state) or ("done", 0))[0] == "running"]
    for number, state in enumerate([states[0], *resumable[:: max(1, len(resumable) // resumes)], states[-1]]):
        MemoryFileSystem.store.clear()
        for path, data in state.items():
            MemoryFileSystem().pipe_file(path, data)
        # A file that the manifest does not name yet may have been cut off.
        manifest = next((data for path, data in state.items() if path.endswith("/manifest.json")), b"")
        for path in [path for path in state if "/files/" in path and path.rpartition("/")[2].encode() not in manifest]:
            MemoryFileSystem().pipe_file(path, state[path][: len(state[path]) // 2])
        answer = esper("runs", "show", url, "--json")
        if not manifest:
            assert answer.err.startswith("E420 "), answer.err
            continue
        status = json.loads(answer.out)["status"]
        assert (status, state is states[-1]) in (("running", False), ("done", True))
        if status == "running":
            answer = esper("resume", url, "--runs-dir", tmp_path / str(number), "--quiet")
            assert answer.status == 0, answer.err
            assert found_in(tmp_path / str(number) / uninterrupted.name) == expected
            shutil.rmtree(tmp_path / str(number))
    assert number > min(resumes, 2)
    for command in ("report", url, "--out", tmp_path / "page.html"), ("compare", url):
        assert esper(*command).status == 0
    assert "name one of the runs in the store" in esper("watch", "--runs-dir", "memory://runs").err
    listed = json.loads(esper("runs", "list", "--runs-dir", "memory://runs", "--json").out)
    assert [(run["path"], run["status"]) for run in listed] == [(url, "done")]


def test_a_store_of_an_unknown_protocol_is_found_by_a_check(esper, tmp_path) -> None:
    (tmp_path / "run.yaml").write_text(RUN % (1, "s4://runs"))
    assert esper("check", tmp_path / "run.yaml").err.startswith("E434 the store s4://runs cannot be used: Protocol not")


class Bucket:
    """A bucket of an S3 server on this machine, and ``esper`` with access to it."""

    def __init__(self, processes: Any, tmp_path: Path) -> None:
        from moto.server import ThreadedMotoServer

        self.processes, self.url = processes, "s3://bucket/prefix"
        self.server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self.server.start()
        self.port = self.server.get_host_and_port()[1]
        self.env = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
        self.env |= {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}", "AWS_EC2_METADATA_DISABLED": "true"}
        self.env["XDG_CACHE_HOME"] = str(tmp_path / "cache")

    def begin(self, *arguments: str | Path) -> int:
        return self.processes.start(*arguments, **self.env)

    def esper(self, *arguments: str | Path) -> str:
        """Run a command to its end; return what it printed on stdout."""
        self.begin(*arguments)
        assert self.processes.wait() == 0, self.processes.err
        return self.processes.out

    @property
    def objects(self) -> dict[str, bytes]:
        """The content of the bucket."""
        from moto.s3.models import s3_backends

        bucket = s3_backends["123456789012"]["aws"].buckets["bucket"]
        return {name: key.value for name, key in bucket.keys.items()}

    @property
    def uploads(self) -> int:
        """Number of the latest upload of the newest run; 0 without one."""
        numbers = [json.loads(data)["number"] for name, data in self.objects.items() if name.endswith("/manifest.json")]
        return max(numbers, default=0)

    def delete_leases(self) -> None:
        """Let others take over at once the runs whose processes were killed."""
        from moto.s3.models import s3_backends

        bucket = s3_backends["123456789012"]["aws"].buckets["bucket"]
        for name in [name for name in self.objects if name.endswith("/lease.json")]:
            bucket.keys.pop(name)


@pytest.fixture
def bucket(processes, tmp_path) -> Iterator[Bucket]:
    pytest.importorskip("moto.server")
    from moto.s3.models import s3_backends

    s3_backends.reset()
    s3_backends["123456789012"]["aws"].create_bucket("bucket", "us-east-1")
    new_bucket = Bucket(processes, tmp_path)
    yield new_bucket
    new_bucket.server.stop()


on_s3 = [pytest.mark.slow, pytest.mark.library("moto"), pytest.mark.filterwarnings("default::DeprecationWarning")]


@pytest.fixture
def file(tmp_path) -> Path:
    (tmp_path / "run.yaml").write_text(RUN % (8, "s3://bucket/prefix"))
    return tmp_path / "run.yaml"


def whole_run(bucket: Bucket, file: Path) -> Path:
    """Run it without a store."""
    runs = file.parent / "whole"
    bucket.esper("run", file, "--runs-dir", runs, "--quiet", "--set", "store=null")
    return next(runs.iterdir())


class TestOnS3:
    """With a real server, and processes that are killed."""

    pytestmark = on_s3

    def test_a_killed_run_whose_directory_is_lost_resumes_to_identical_results(self, bucket, file, tmp_path) -> None:
        expected, draw, resumed = found_in(whole_run(bucket, file)), random.Random(1), 0
        for number in range(4):
            runs = tmp_path / str(number)
            before = len(bucket.objects)
            engine = ("--engine", "processes" if number % 2 else "threads")
            pid = bucket.begin("run", file, "--runs-dir", runs, "--quiet", *engine)
            bucket.processes.wait_for(lambda before=before: len(bucket.objects) > before)
            time.sleep(draw.uniform(0, 2))
            os.kill(pid, signal.SIGKILL)
            assert bucket.processes.wait() == -signal.SIGKILL
            (lost,) = runs.iterdir()
            shutil.rmtree(runs)
            bucket.begin("resume", f"{bucket.url}/{lost.name}", "--runs-dir", runs, "--quiet", *engine)
            assert bucket.processes.wait() == 1
            assert bucket.processes.err.startswith(("E412 ", "E420 ")), bucket.processes.err
            shutil.rmtree(runs, ignore_errors=True)
            bucket.delete_leases()
            bucket.begin("resume", f"{bucket.url}/{lost.name}", "--runs-dir", runs, "--quiet", *engine)
            if bucket.processes.wait():
                assert bucket.processes.err.startswith("E420 "), "nothing was uploaded"
                continue
            resumed += 1
            assert found_in(runs / lost.name) == expected
            shown = json.loads(bucket.esper("runs", "show", lost.name, "--runs-dir", bucket.url, "--json"))
            assert (shown["status"], shown["path"]) == ("done", f"{bucket.url}/{lost.name}")
        assert resumed >= 2

    def test_an_old_process_that_comes_back_changes_nothing(self, bucket, file, tmp_path) -> None:
        expected = found_in(whole_run(bucket, file))
        pid = bucket.begin("run", file, "--runs-dir", tmp_path / "old", "--quiet")
        bucket.processes.wait_for(lambda: bucket.uploads >= 2)
        os.kill(pid, signal.SIGSTOP)
        bucket.delete_leases()
        (old,) = (tmp_path / "old").iterdir()
        command = ["resume", f"{bucket.url}/{old.name}", "--runs-dir", str(tmp_path / "new"), "--quiet"]
        subprocess.run([sys.executable, "-m", "esper_run", *command], env=os.environ | bucket.env, check=True)
        uploaded = bucket.objects
        os.kill(pid, signal.SIGCONT)
        assert bucket.processes.wait() == 0
        assert "another process has taken over" in bucket.processes.err
        assert {name: bucket.objects[name] for name in uploaded} == uploaded
        for runs in ("old", "new"):
            assert found_in(tmp_path / runs / old.name) == expected
        shutil.rmtree(tmp_path / "new")
        bucket.esper("runs", "show", f"{bucket.url}/{old.name}")
