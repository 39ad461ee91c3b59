"""Which way of incubating should be the default, and what should a gate ask of a seed? An experiment that answers."""
