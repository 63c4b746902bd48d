"""Carries out a move from plan to verification, so that a crash at any point loses nothing.

`record` has its phases, `store` keeps the records as Moves in the API server, `steps` decides what
comes next, `executor` advances each record, and only `evictor` requests evictions. Start with
`executor.py`.
"""
