"""When a card is hot, which pod to move off it, where to, and why rather not.

`heat` judges measurements, `evictability` pods, `planner` decides; executing is the rebalancer's.
Start with `planner.py`.
"""
