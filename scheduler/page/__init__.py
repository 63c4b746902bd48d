"""The page for people without Grafana: cards, pods, moves and waiting pods, live and read-only.

Start with `documents.py`, what a browser gets, then `board.py`, which keeps it up to date.
"""
