"""Reads Esper's run directories and shows what grew."""
