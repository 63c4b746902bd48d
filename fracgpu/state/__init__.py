"""Who holds what of which card: read from pods and nodes, folded, frozen for a decision.

`ledger` folds observations and assumptions, `snapshot` is what a decision sees of it.
Start with `allocation.py`, then `ledger.py`.
"""
