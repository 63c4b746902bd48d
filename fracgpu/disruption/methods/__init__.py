"""The reasons for which pods are moved: one file each, and a row in `registry.py`.

A method looks at the disruption state and answers with a move, or with why it holds still.
Start with `method.py`, the interface, then `hot_card.py`.
"""
