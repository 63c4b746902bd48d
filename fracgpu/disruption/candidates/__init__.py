"""Whether a pod may be moved, by its own facts and by what guards it, and in which mode.

Nothing in here looks at how busy a card is. Start with `evictability.py`.
"""
