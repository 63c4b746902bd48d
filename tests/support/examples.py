"""How many examples hypothesis draws of a property."""

from hypothesis import settings


def at_least(count: int) -> int:
    """Return *count*, or as many as the profile says if those are more, as "thorough" does."""
    return max(count, settings().max_examples)
