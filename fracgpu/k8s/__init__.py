"""Kubernetes' own types and rules: pods, quantities, selectors, node affinity, budgets.

Nothing here knows FracGPU's keys; it would hold for any scheduler.
Start with `container.py` and `node_affinity.py`.
"""
