"""A plugin of pytest that forgets what cached functions have answered before the tests begin.

mutmut runs all tests once without a mutant, and each mutant in a fork of that process: an answer
that is kept from there would hide the mutant of what is cached.
"""

import functools
import gc


def pytest_sessionstart() -> None:
    """Empty the caches of all functions that are there."""
    for found in gc.get_objects():
        if isinstance(found, functools._lru_cache_wrapper):  # noqa: SLF001 - the type has no other name
            found.cache_clear()
