"""What a pod asks for: our annotations and limits, and the keys of other products.

`language` parses requests, `grant` turns shares of a card into MiB, and `dialects` translates the
keys of other products.
Start with `need.py`, the values, then `language.py`.
"""
