"""Benchmarks of the product; nothing in here runs in production.

Each module with ``figures()`` is a benchmark; ``python -m benchmarks NAME`` runs one, and
`fixtures` has what they measure with. Start with `figure.py`.
"""
