"""Conformance checks, fixtures and fakes for authors of Esper plugins."""
