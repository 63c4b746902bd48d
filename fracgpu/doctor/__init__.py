"""What is wrong with an installation, by what the cluster says of itself, and how to cure it.

A check is a pure function from facts to findings. What could not be read is `Unread`, and a check
that needs it is not made: unknown is never healthy. Start with `checkup.py`, the list of checks.
"""
