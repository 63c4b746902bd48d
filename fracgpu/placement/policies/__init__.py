"""How cards are chosen among those that fit: one file for each strategy that scores single cards.

least-waste scores whole nodes and has a package of its own.
Start with `scoring.py`, the interface.
"""
