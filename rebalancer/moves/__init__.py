"""Carries out a move from plan to verification, so that a crash at any point loses nothing.

`record` has its phases, `store` keeps the records as Moves in the API server, `observer` reads what
the next step depends on, `steps` decides that step, `executor` advances each record, and only
`side_effects` changes the pod that is moved. Start with `executor.py`.
"""
