"""Leyline: the contracts that every part of Esper and every plugin rely on. Imports no torch and nothing else of Esper.

What is here:
    constants: named thresholds, windows and limits.
    errors: the exception hierarchy, problems with their error codes (a page each in docs/reference/errors), and the
        texts of messages.
    events: the records that a run publishes.
    files: opens files of runs from untrusted sources.
    lifecycle: the transition tables of slots and seeds; actions of policies, and masks of what is possible.
    protocols: what components implement, and what hooks receive.
    signals: what is measured in a step and observed by a policy, and what gates and governor conclude.
    specs: what plugins declare about their components.

What is not here: the hooks themselves (``esper_core.hooks``).

Begin with ``lifecycle`` and ``protocols``. Names are imported when they are first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
