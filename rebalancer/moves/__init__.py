"""One move from plan to proof, so that a crash at any point loses nothing.

`record` has its phases, `store` keeps the records in a ConfigMap, `executor` takes each a step
further, and `evictor` is the only door out. Start with `executor.py`.
"""
