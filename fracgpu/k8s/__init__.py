"""Kubernetes' own shapes and rules, without one key of ours: pods, quantities, node affinity.

What is here would be true in any scheduler.
Start with `container.py` and `node_affinity.py`.
"""
