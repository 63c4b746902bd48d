"""Why a pod waits, or runs where it runs, and what would help.

The same placement that decides is asked again, so that an explanation cannot differ from it.
Start with `explanation.py`.
"""
