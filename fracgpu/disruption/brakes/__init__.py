"""What keeps moves few: budgets and circuit breakers, derived from past moves.

The planner asks them before it begins a move. Start with `budgets.py`.
"""
