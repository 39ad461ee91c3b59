"""The actor of a Ray cluster, called in this process: it passes on requests, and ends a worker that hangs."""

import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from torch import Tensor

from esper_core import __version__
from esper_core.growth import FaultBook
from esper_core.leyline.errors import ClusterError, Problem
from esper_core.trainer.environment import Recipe
from esper_core.trainer.pool import Pool
from esper_run.watchdog import can_fork
from esper_scale.engines import ray
from esper_scale.engines.breadcrumbs import Breadcrumb
from esper_scale.engines.nodes import NodeRecord
from esper_scale.engines.protocol import Order, Request
from esper_scale.engines.ray import RayEngine, ShardActor
from tests.support.core_worlds import NoisyHost, make_recipe
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(not can_fork(), reason="processes are forked on Linux, without an accelerator")
ORDER = Order(("grown", "twin"), 2, range(0, 2), "twin")


class SlowHost(NoisyHost):
    def forward(self, inputs: Tensor) -> Tensor:
        Path("in forward").touch()
        time.sleep(600)
        return super().forward(inputs)


@pytest.fixture
def actor() -> Iterator[ShardActor]:
    shard_actor = ShardActor()
    yield shard_actor
    shard_actor.end()


def request(method: str, *arguments: object) -> Request:
    return Request(method, arguments, FaultBook().state_dict())


class KnownRun:
    """A portable run that is built into a recipe of this process."""

    def __init__(self, recipe: Recipe | BaseException) -> None:
        self.recipe = recipe

    def load(self) -> tuple[None, None]:
        return None, None

    def describe(self, plugins: None) -> NodeRecord:
        return NodeRecord("here")

    def build(self, *loaded: None) -> Recipe:
        if isinstance(self.recipe, BaseException):
            raise self.recipe
        return self.recipe


def prepare(
    actor: ShardActor, monkeypatch: pytest.MonkeyPatch, recipe: Recipe | BaseException
) -> tuple[NodeRecord | None, BaseException | None]:
    monkeypatch.setattr(ray, "_import_ray", lambda: SimpleNamespace(get=lambda references: references))
    return actor.prepare(__version__, [KnownRun(recipe), None])


def test_actor_passes_on_what_a_shard_replies(actor, monkeypatch):
    assert prepare(actor, monkeypatch, make_recipe()) == (NodeRecord("here"), None)
    pool = Pool(make_recipe(), ["grown", "twin"], 2, twin="twin")
    pool.reset(0, 0)
    pool.train(0)
    pool.evaluate(0)
    for _study in range(2):  # the actor is used again
        assert actor.start(ORDER).error is None
        replies = [actor.exchange(request(*call)) for call in (("reset", 0, 0), ("train", 0), ("evaluate", 0))]
        assert [reply.error for reply in replies] == [None] * 3
        pool.synchronise(0)
        assert [status.signals for status in actor.exchange(request("synchronise", 0)).statuses] == pool.latest
        actor.end()
        assert actor.exchange(request("masks")) is None


def test_worker_that_hangs_is_ended_beside_the_request(actor, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare(actor, monkeypatch, make_recipe(host=SlowHost))
    actor.start(ORDER)
    replies: list[object] = ["none"]
    asking = threading.Thread(target=lambda: replies.append(actor.exchange(request("reset", 0, 0))))
    asking.start()
    until(Path("in forward").exists)
    end = actor.end()
    asking.join(timeout=60)
    assert replies == ["none", None]
    assert end.how == "did not reply"
    assert " in forward\n" in end.trace
    assert end.breadcrumb == Breadcrumb(0, 'the host, arm "grown", RNG seed 0')


def test_errors_of_an_actor_are_returned_with_what_is_installed(actor, monkeypatch):
    error = ClusterError(Problem("E404", "no data"))
    assert prepare(actor, monkeypatch, error) == (NodeRecord("here"), error)
    record, error = actor.prepare("0.0.0", [])
    assert (set(record.packages), error) == ({"esper-core"}, None)


def ray_engine(**more: object) -> RayEngine:
    return RayEngine(SimpleNamespace(), {}, NodeRecord(), **{"address": None, "wait_seconds": 300, **more}, most=2)


def test_missing_ray_and_an_address_where_nothing_listens_are_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ClusterError, match="E404 engine: ray needs Ray, which cannot be imported"):
        ray_engine()
    monkeypatch.setitem(sys.modules, "ray.exceptions", ModuleType("ray.exceptions"))
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    for spelling in (address, f"ray://{address}"):
        with pytest.raises(ClusterError, match=f"cluster at {spelling}: nothing listens there"):
            ray_engine(address=spelling)
