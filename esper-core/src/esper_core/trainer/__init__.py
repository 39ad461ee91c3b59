"""The trainer: trains networks in environments while they grow.

Begin reading with ``loop``. What is here, from top to bottom:

- ``loop``: the training loop of a study, in reading order
- ``study_position``: position of a study, and its checkpoint state
- ``rollouts``: rewards of episodes, and rollouts for learners
- ``study``: what a study is made of: pool, arms, rewards
- ``roster``: the interface of whatever holds environments
- ``pool``: the environments of this process, and each phase of a step for all of them
- ``groups``: which of them are trained as one program
- ``group_steps``: a decision step of a group
- ``lanes``: threads and CUDA streams
- ``environment``: one host in training, on the data of a task
- ``growing_network``: one growing network, given batches and losses
- ``measurements``: losses and gains, read once a step; what an episode costs in operations
- ``forward``: precision, micro-batches, memory layout, compilation
- ``batches``: order of batches, resident and streamed data
- ``event_records``: records of what happened, and the events built from them

What is not here: slots, seeds and optimizers (``growth``), snapshots and rollbacks (``governor``), and how a study is
built from a configuration (``esper_run.app.compose``).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
