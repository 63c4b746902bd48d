"""Answers for people: lines of text, tables, live screens, charts.

`text` makes lines, `tables` renderables of rich, and `live` shows both as they change.
Start with `text.py`.
"""
