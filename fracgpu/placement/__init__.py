"""Whether and where a pod fits: card by card on one node, or for all nodes in one sweep.

`placement` is the rule, `fit_index` the same rule over `node_matrix`; `policies` choose among
cards. Start with `placement.py`.
"""
