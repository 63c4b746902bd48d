"""Replays a workload on a fleet, to compare how much of its cards placement policies allocate.

`workload` has the pods that arrive, `fleet` the nodes, and `policies` what is compared.
Start with `replay.py`.
"""
