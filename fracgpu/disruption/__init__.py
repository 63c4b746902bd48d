"""When a card is hot, which pod to move off it and where to, or why to hold the move back.

`heat` evaluates measurements, `evictability` pods; `planner` decides, and the rebalancer executes.
Start with `planner.py`.
"""
