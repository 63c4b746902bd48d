"""Every dialect, one row each; a new one is a file beside this and a row here."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from fracgpu.request.bounds import MAX_KEY_CHARS
from fracgpu.request.dialects.dialect import Dialect
from fracgpu.request.dialects.systems.aws import AWS
from fracgpu.request.dialects.systems.elastic import ELASTIC
from fracgpu.request.dialects.systems.gpushare import GPUSHARE
from fracgpu.request.dialects.systems.hami import HAMI
from fracgpu.request.dialects.systems.kai import KAI
from fracgpu.request.dialects.systems.koordinator import KOORDINATOR
from fracgpu.request.dialects.systems.nos import NOS
from fracgpu.request.dialects.systems.nvidia import NVIDIA
from fracgpu.request.dialects.systems.tencent import QGPU, VCUDA
from fracgpu.request.dialects.systems.tensor_fusion import TENSOR_FUSION
from fracgpu.request.dialects.systems.vgpu_manager import VGPU_MANAGER
from fracgpu.request.dialects.systems.volcano import CCE, VOLCANO

# A key of two rows belongs to the first of them that is on: ``nvidia.com/gpu`` is HAMi's, then
# NVIDIA's.
DIALECTS: Final[tuple[Dialect, ...]] = (
    GPUSHARE,
    HAMI,
    KAI,
    VCUDA,
    QGPU,
    ELASTIC,
    NOS,
    VOLCANO,
    CCE,
    VGPU_MANAGER,
    TENSOR_FUSION,
    KOORDINATOR,
    AWS,
    NVIDIA,
)
NAMES: Final = tuple(it.name for it in DIALECTS)
SCHEDULERS: Final = frozenset(name for it in DIALECTS for name in it.schedulers)


class _Index:
    """Which rows own a key: a look-up for names, a short walk for patterns."""

    def __init__(self, *, limits: bool) -> None:
        sets = [(it, it.limits if limits else it.annotations) for it in DIALECTS]
        self._exact: dict[str, tuple[Dialect, ...]] = {}
        for dialect, owned in sets:
            for key in owned.exact:
                self._exact[key] = (*self._exact.get(key, ()), dialect)
        self._patterns = [(it, pattern) for it, owned in sets for pattern in owned.patterns]

    def owners(self, key: str) -> tuple[Dialect, ...]:
        found = self._exact.get(key)
        if found is not None:
            return found
        return tuple(it for it, pattern in self._patterns if pattern.fullmatch(key))


_LIMITS: Final = _Index(limits=True)
_ANNOTATIONS: Final = _Index(limits=False)


# Keys that no object can have are not worth remembering: a few would fill the memory.
_limit_owners: Final = lru_cache(maxsize=1024)(_LIMITS.owners)
_annotation_owners: Final = lru_cache(maxsize=1024)(_ANNOTATIONS.owners)


def limit_owners(key: str) -> tuple[Dialect, ...]:
    """Give the dialects that read *key* in a container's limits, in the table's order."""
    return _limit_owners(key) if len(key) <= MAX_KEY_CHARS else ()


def annotation_owners(key: str) -> tuple[Dialect, ...]:
    """Give the dialects that read *key* among a pod's annotations, in the table's order."""
    return _annotation_owners(key) if len(key) <= MAX_KEY_CHARS else ()


def is_foreign(key: str) -> bool:
    """Tell whether any dialect has a word for *key*, in whatever place."""
    return bool(limit_owners(key) or annotation_owners(key))


def is_of_family(key: str) -> bool:
    """Tell whether *key* begins like those of any system here, known to us or not."""
    return any(key.startswith(it.family) for it in DIALECTS)


def by_name(names: Iterable[str]) -> tuple[Dialect, ...]:
    """Give the rows of *names*, in the table's order."""
    wanted = frozenset(names)
    return tuple(it for it in DIALECTS if it.name in wanted)
