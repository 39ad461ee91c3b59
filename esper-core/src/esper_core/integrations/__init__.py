"""Growing a model in the training loops of other libraries, each of which only its own module imports.

lightning      ``Grow``, a callback of Lightning
attachment     the Gardener of a library's loop: when it is called, and how checkpoints carry its state
"""
