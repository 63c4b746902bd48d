"""Proves on a real node whether limits of a card's memory hold; ``make gpu-check`` runs it.

`check` asks the questions, over an `Enforcer` of the agent's and over `Tenant`s. A `tenant` is a
process that uses a card; a `setter` sets a limit and is killed. Start with `check.py`.
"""
