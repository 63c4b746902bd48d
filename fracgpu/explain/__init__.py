"""Why a pod waits, or where it runs, and what would make it fit.

Explanations come from the scheduler's own placement code, so that they cannot differ from it.
Start with `explanation.py`.
"""
