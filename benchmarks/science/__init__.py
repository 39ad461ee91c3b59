"""Measure claims about growing networks: each script measures one and prints it with its uncertainty."""
