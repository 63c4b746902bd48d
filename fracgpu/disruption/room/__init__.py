"""Room for a waiting pod: which few pods to move so that it fits, and what proves it.

Start with `search.py`; what it cannot know by itself it asks `prover.py`.
"""
