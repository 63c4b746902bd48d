"""Which nodes kube-scheduler would take for a pod: its filters, for all nodes at once.

Preferences are not here: they rank nodes and never refuse one.
Start with `constraints.py`, what a pod asks for, then `node_filters.py`.
"""
