"""The wiring in which kube-scheduler allocates cards itself, from claims that we make for pods.

`controller.py` makes them, as `planner.py` says; `cache.py` counts what was allocated.
"""
