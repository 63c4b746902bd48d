"""The reasons for which pods are moved: one file each, and a row in `registry.py`.

A method turns the disruption state into a move, or into the reason to hold it back.
Start with `method.py`, the interface, then `hot_card.py`.
"""
