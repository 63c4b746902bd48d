"""The wiring in which kube-scheduler allocates cards itself, from claims that we make for pods.

Start with `controller.py`, which makes them as `planner.py` says; `cache.py` counts what was
allocated.
"""
