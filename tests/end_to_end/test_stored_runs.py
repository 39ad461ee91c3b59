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
policy:
  use: schedule
  settings:
    plan:
      - {step: 0, slot: early, op: germinate, blueprint: conv_light}
      - {step: 2, slot: early, op: advance}
      - {step: 5, slot: early, op: prune}
growth: {incubation: shadow, nursery: 1, embargo: 1}
environments: 2
lanes: 2
rounds: %d
episode: {steps: 6, batches: 2, batch_size: 20}
checkpoints: {every: 1}
store: %s
"""


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Any, bytes | None]]:
    """Every change of an empty memory://: a path and the bytes written there, or paths that were deleted and None."""
    changes: list[tuple[Any, bytes | None]] = []
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("esper_scale.stores.uploads.UPLOAD_SHARE", 1.0)
    write, delete = MemoryFileSystem.pipe_file, MemoryFileSystem.rm

    def pipe_file(files: Any, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        write(files, path, value, mode)
        changes.append((path, value))

    def rm(files: Any, paths: Any, **_: Any) -> None:
        delete(files, paths)
        changes.append((paths, None))

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", pipe_file)
    monkeypatch.setattr(MemoryFileSystem, "rm", rm)
    return changes


def repeat(writes: list[tuple[Any, bytes | None]]) -> None:
    """Bring memory:// to the state after these changes."""
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    for path, data in [*writes]:
        MemoryFileSystem().rm(path) if data is None else MemoryFileSystem().pipe_file(path, data)


@pytest.mark.parametrize("resumes", [1, pytest.param(100, marks=pytest.mark.slow)])
def test_a_run_resumes_from_whatever_was_uploaded(esper, writes, tmp_path, resumes) -> None:
    (tmp_path / "run.yaml").write_text(RUN % (1, "memory://runs"))
    assert esper("run", tmp_path / "run.yaml", "--runs-dir", tmp_path / "whole", "--quiet").status == 0
    uninterrupted = next((tmp_path / "whole").iterdir())
    expected, uploads, url = found_in(uninterrupted), list(writes), f"memory://runs/{uninterrupted.name}"
    manifests = [number for number, (path, data) in enumerate(uploads) if data and "/manifests/" in path]
    resumed = 0
    for moment in (
        range(len(uploads)) if resumes > 1 else [0, manifests[0] + 1, manifests[1], manifests[1] + 1, len(uploads)]
    ):
        repeat(uploads[:moment])
        if (half := uploads[moment : moment + 1]) and half[0][1]:
            MemoryFileSystem().pipe_file(half[0][0], half[0][1][: len(half[0][1]) // 2])
        answer = esper("runs", "show", url, "--json")
        if moment <= manifests[1]:
            assert answer.err.startswith(("E420 ", "E435 ")), answer.err
            continue
        status = json.loads(answer.out)["status"]
        assert status == ("done" if moment > manifests[-1] else "running")
        if status == "running":
            runs = tmp_path / str(moment)
            answer = esper("resume", url, "--runs-dir", runs, "--quiet")
            assert answer.status == 0, answer.err
            assert found_in(runs / uninterrupted.name) == expected
            shutil.rmtree(runs)
            resumed += 1
    assert min(resumes, 2) <= resumed
    for command in ("watch", url), ("report", url, "--out", tmp_path / "page.html"), ("compare", url):
        assert esper(*command).status == 0
    assert "name one of the runs in the store" in esper("watch", "--web", "--runs-dir", "memory://runs").err
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

    def manifests(self) -> list[str]:
        return sorted(name for name in self.objects if "/manifests/" in name)


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
            before = len(bucket.manifests())
            engine = ("--engine", "processes" if number % 2 else "threads")
            pid = bucket.begin("run", file, "--runs-dir", runs, "--quiet", *engine)
            bucket.processes.wait_for(lambda before=before: len(bucket.manifests()) > before)
            time.sleep(draw.uniform(0, 2))
            os.kill(pid, signal.SIGKILL)
            assert bucket.processes.wait() == -signal.SIGKILL
            (lost,) = runs.iterdir()
            shutil.rmtree(runs)
            bucket.begin("resume", f"{bucket.url}/{lost.name}", "--runs-dir", runs, "--quiet", *engine)
            if bucket.processes.wait():
                assert bucket.processes.err.startswith("E420 "), "nothing was uploaded"
                continue
            resumed += 1
            assert found_in(runs / lost.name) == expected
            shown = json.loads(bucket.esper("runs", "show", lost.name, "--runs-dir", bucket.url, "--json"))
            assert (shown["status"], shown["path"]) == ("done", f"{bucket.url}/{lost.name}")
        assert resumed >= 2

    @pytest.mark.library("ray")
    def test_a_job_on_ray_whose_driver_is_lost_is_repeated_from_the_store(self, bucket, file, tmp_path) -> None:
        pytest.importorskip("ray")
        expected = found_in(whole_run(bucket, file))
        env = os.environ | bucket.env | {"RAY_USAGE_STATS_ENABLED": "0"}
        words = [sys.executable, "-m", "esper_run", "run", str(file), "--engine", "ray", "--quiet"]
        driver = subprocess.Popen([*words, "--runs-dir", tmp_path / "lost"], env=env, start_new_session=True)
        try:
            deadline = time.monotonic() + 120
            while len(bucket.manifests()) <= 2:
                assert driver.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)  # with the local Ray that it started
            driver.wait()
        (lost,) = (tmp_path / "lost").iterdir()
        words[3:5] = ["resume", f"{bucket.url}/{lost.name}"]
        subprocess.run([*words, "--runs-dir", tmp_path / "new"], env=env, check=True, capture_output=True)
        assert found_in(tmp_path / "new" / lost.name) == expected

    def test_an_old_process_that_comes_back_changes_nothing(self, bucket, file, tmp_path) -> None:
        expected = found_in(whole_run(bucket, file))
        pid = bucket.begin("run", file, "--runs-dir", tmp_path / "old", "--quiet")
        bucket.processes.wait_for(lambda: len(bucket.manifests()) > 2)
        os.kill(pid, signal.SIGSTOP)
        (old,) = (tmp_path / "old").iterdir()
        command = ["resume", f"{bucket.url}/{old.name}", "--runs-dir", str(tmp_path / "new"), "--quiet"]
        subprocess.run([sys.executable, "-m", "esper_run", *command], env=os.environ | bucket.env, check=True)
        uploaded = bucket.objects
        os.kill(pid, signal.SIGCONT)
        assert bucket.processes.wait() == 0
        assert "E436 another process has resumed the run" in bucket.processes.err
        manifests = [name for name in uploaded if "/manifests/" in name]
        assert {name: bucket.objects[name] for name in manifests} == {name: uploaded[name] for name in manifests}
        for runs in ("old", "new"):
            assert found_in(tmp_path / runs / old.name) == expected
        shutil.rmtree(tmp_path / "new")
        bucket.esper("runs", "show", f"{bucket.url}/{old.name}")
