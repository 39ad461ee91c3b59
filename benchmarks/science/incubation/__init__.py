"""Compare modes of incubation, and prices that gates ask of seeds."""
