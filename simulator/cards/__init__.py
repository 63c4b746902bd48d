"""Cards that exist only in a file, behind the same interface as real ones.

`simulated_cards` derives load from the `processes` that the simulated kubelet starts; `models` has
the nodes of the demo. Start with `simulated_cards.py`.
"""
