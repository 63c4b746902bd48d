"""Replays a workload on a fleet, to see how much of its cards each placement policy would use.

`workload` is what arrives, `fleet` where it goes, and `policies` are what is compared.
Start with `replay.py`.
"""
