"""Every decision of FracGPU, as pure functions: no I/O, no clock, no log.

Packages from the ground up: k8s, cards, request, state, placement, then disruption and explain.
Start with `request/language.py` (what a pod asks for) and `placement/placement.py` (what it gets).
"""
