"""The reasons for which pods are moved: one file each.

A method looks at the disruption state and answers with a move, or with why it holds still.
Start with `hot_card.py`.
"""
