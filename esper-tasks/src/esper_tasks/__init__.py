"""Hosts and data for Esper, all of it offline."""
