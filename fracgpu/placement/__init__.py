"""Whether and where a pod fits: card by card on one node, or for all nodes at once.

`fit` has the rules, over arrays of cards; `placement` chooses among the cards that fit, by one of
`policies`. Start with `fit.py`.
"""
