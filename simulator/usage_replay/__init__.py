"""Replays recorded GPU usage, to show what each of several rebalancer policies would have moved.

`recording` reads Prometheus, `windows` keeps what a rebalancer looks back on, and `world` runs one
policy in a closed loop in which load follows the pod. Start with `world.py`.
"""
