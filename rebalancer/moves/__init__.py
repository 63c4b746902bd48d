"""Carries out a move from plan to verification, so that a crash at any point loses nothing.

`store` keeps the Moves in the API server, `observer` reads what the next step depends on, `steps`
decides that step, `executor` advances each Move, and only `side_effects` changes the pod
that is moved. Start with `executor.py`.
"""
