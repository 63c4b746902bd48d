"""Replays recorded GPU usage against rebalancer policies: what would each have moved?

`recording` reads Prometheus, `windows` keeps what a rebalancer looks back on, and `world` runs one
policy in a closed loop in which load follows the pod. Start with `world.py`.
"""
