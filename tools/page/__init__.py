"""Looks at the scheduler's page with a real browser: for screenshots, tests and benchmarks.

Start with `chromium.py`; ``python -m tools.page`` takes the screenshots of the documents.
"""
