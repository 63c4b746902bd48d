"""Whether and where a pod fits: card by card on one node, or for all nodes at once.

`placement` has the rules, `fit_index` the same rules over the arrays of `node_matrix`; `policies`
choose among cards that fit. Start with `placement.py`.
"""
