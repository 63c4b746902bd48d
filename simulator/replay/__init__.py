"""Replays a workload on a fleet, to see how much of its cards each placement policy would use."""
