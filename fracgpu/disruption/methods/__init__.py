"""The reasons for which pods are moved: one file each, and a row of `METHODS` in `planner.py`.

A method turns the disruption state into a move, or into the reason to hold it back.
Start with `method.py`, the interface, then `hot_card.py`.
"""
