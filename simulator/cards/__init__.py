"""Cards that exist only in a file, behind the same interface as real ones.

`simulated_cards` measures load by the `processes` that the simulated kubelet starts; `models` has
the machine park of the demo. Start with `simulated_cards.py`.
"""
