"""Growing a model in the training loops of other libraries, each of which only its own module imports.

accelerate     ``grow``, which makes the Gardener of a loop with an Accelerator
lightning      ``Grow``, a callback of Lightning; ``load_from_checkpoint``
transformers   ``Grow``, a callback of the Trainer; ``from_pretrained``
attachment     the Gardener of a library's loop: when it is called, and how checkpoints carry its state
"""
