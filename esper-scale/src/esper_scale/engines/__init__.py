"""Engines: the environments of a run in several workers, and what happens when one of them is lost.

- ``protocol``: the records that cross, and what an engine has to provide
- ``worker_pool``: the run's side, behind the interface of a pool
- ``supervision``: replaces a worker that crashes, hangs or disappears
- ``breadcrumbs``: whose code a worker runs, for the run to read after the worker is lost
- ``shard``: the worker's side, which holds environments and answers requests
- ``processes``: workers that are forked from the run
- ``ray``: workers on the machines of a Ray cluster
- ``nodes``: what is installed on these machines
- ``portable``: what a worker on another machine builds the recipe of a run from
- ``sessions``: opens an engine for a run, with how many workers
- ``plugin``: the engines as a run finds them, and the settings of ``ray``
"""
