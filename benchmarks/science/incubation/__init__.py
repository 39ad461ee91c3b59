"""Compare ways of incubating, and what a gate should ask of a seed."""
