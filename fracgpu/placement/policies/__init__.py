"""How one card is chosen among those that fit: one file for each strategy that scores cards.

least-waste judges whole nodes and has a room of its own.
Start with `scoring.py`, the interface.
"""
