"""Answers for people: lines of text, tables, live screens, charts.

`text` has the words, `tables` makes renderables of values, `live` shows them as they change.
Start with `text.py`.
"""
