"""Moves pods off hot cards: reads Prometheus, decides with the core, acts through one door."""
