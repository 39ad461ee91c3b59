"""A Ray cluster of this machine, on 127.0.0.1: runs configurations on it, and removes nodes while they run.

Jobs come as lines of JSON on stdin; for each, a line of JSON with the run directory and its warnings goes to stdout.

    file:    the configuration
    runs:    the folder of run directories
    nodes:   how many nodes of one CPU the cluster has, beside its head without a CPU
    kill:    numbers of the events at which a node with a worker is removed
    delay:   seconds after such an event, so that a request is under way
    sets:    overrides of the configuration
"""

import json
import os
import sys
import threading
from typing import Any

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # so that 127.0.0.1 is not resolved to another address
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

from ray._private import state
from ray.cluster_utils import Cluster

import esper_run
from esper_core import EsperError

HERE = {"node_ip_address": "127.0.0.1"}


class Killer:
    """A listener that removes nodes."""

    def __init__(self, cluster: Any, at: list[int], delay: float) -> None:
        self.cluster, self.at, self.delay, self.heard = cluster, at, delay, 0

    def hear(self, event: object) -> None:
        self.heard += 1
        if self.heard in self.at:
            threading.Timer(self.delay, self.kill).start() if self.delay else self.kill()

    def kill(self) -> None:
        used = {actor["Address"]["NodeID"] for actor in state.actors().values() if actor["State"] == "ALIVE"}
        victim = next(node for node in self.cluster.worker_nodes if node.node_id in used)
        self.cluster.remove_node(victim, allow_graceful=False)

    def settle(self) -> None:
        pass


def serve() -> None:
    cluster = Cluster(initialize_head=True, head_node_args={**HERE, "num_cpus": 0, "include_dashboard": False})
    answers, sys.stdout = sys.stdout, sys.stderr
    try:
        for line in sys.stdin:
            job = json.loads(line)
            while len(cluster.worker_nodes) < job["nodes"]:
                cluster.add_node(**HERE, num_cpus=1)
            while len(cluster.worker_nodes) > job["nodes"]:
                cluster.remove_node(next(iter(cluster.worker_nodes)))
            killer = Killer(cluster, job.get("kill", []), job.get("delay", 0.0))
            sets = ["engine=ray", f"engine.settings.address={cluster.address}", *job.get("sets", ())]
            try:
                outcome = esper_run.run(job["file"], runs_dir=job["runs"], overrides=sets, listeners=[killer])
                answer = {"run": str(outcome.path), "warnings": outcome.warnings, "events": killer.heard}
            except EsperError as error:
                answer = {"error": str(error)}
            print(json.dumps(answer), file=answers, flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    serve()
