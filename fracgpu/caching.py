"""A cache for what is read of what users write, whose memory they cannot fill."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Final, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

_MOST_CHARS: Final = 2_000
_ITEM_CHARS: Final = 64  # that an item of a collection counts as: a label, a container


def cached(*, entries: int) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Return a decorator like `functools.lru_cache` for functions of texts and of tuples.

    The replicas of a controller are alike, and few of their fields are long. A pod may have a
    megabyte of labels or tolerations all the same, and its entry would outlive it: what has more
    than some 2,000 characters is computed each time.
    """

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        remembered = lru_cache(maxsize=entries)(function)

        @wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            chars = sum(map(_chars, args)) + sum(map(_chars, kwargs.values()))
            if chars > _MOST_CHARS:
                return function(*args, **kwargs)
            return remembered(*args, **kwargs)  # type: ignore[arg-type]  # they have to be hashable

        return call

    return decorate


def _chars(argument: object) -> int:
    if isinstance(argument, (str, bytes)):
        return len(argument)
    return _ITEM_CHARS * (len(argument) if isinstance(argument, (tuple, frozenset)) else 1)
