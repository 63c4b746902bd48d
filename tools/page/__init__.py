"""Looks at the scheduler's page with a real browser: for screenshots and tests.

Start with `chromium.py`; ``python -m tools.page`` takes the screenshots of the documents.
"""
