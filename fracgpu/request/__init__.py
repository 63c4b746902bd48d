"""What a pod asks for: our annotations and limits, and what other products' keys mean in them.

`language` reads, `grant` turns shares of a card into MiB, `dialects` translates for others.
Start with `need.py`, the values, then `language.py`.
"""
