"""All dialects; a new one is a file in `systems` and a line here."""

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

# A key of two dialects belongs to the first of them that is enabled: ``nvidia.com/gpu`` is HAMi's,
# then NVIDIA's.
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
NAMES: Final = tuple(dialect.name for dialect in DIALECTS)
SCHEDULERS: Final = frozenset(name for dialect in DIALECTS for name in dialect.schedulers)


class _Index:
    """The dialects that own each key: a dictionary for names, a short list for patterns."""

    def __init__(self, *, limits: bool) -> None:
        sets = [
            (dialect, dialect.limits if limits else dialect.annotations) for dialect in DIALECTS
        ]
        self._exact: dict[str, tuple[Dialect, ...]] = {}
        for dialect, owned in sets:
            for key in owned.exact:
                self._exact[key] = (*self._exact.get(key, ()), dialect)
        self._patterns = [
            (dialect, pattern) for dialect, owned in sets for pattern in owned.patterns
        ]

    def owners(self, key: str) -> tuple[Dialect, ...]:
        found = self._exact.get(key)
        if found is not None:
            return found
        return tuple(dialect for dialect, pattern in self._patterns if pattern.fullmatch(key))


_LIMITS: Final = _Index(limits=True)
_ANNOTATIONS: Final = _Index(limits=False)


# Keys longer than any valid key are not cached: a few of them would fill the memory.
_limit_owners: Final = lru_cache(maxsize=1024)(_LIMITS.owners)
_annotation_owners: Final = lru_cache(maxsize=1024)(_ANNOTATIONS.owners)


def limit_owners(key: str) -> tuple[Dialect, ...]:
    """Return the dialects that parse *key* in a container's limits, in the registry's order."""
    return _limit_owners(key) if len(key) <= MAX_KEY_CHARS else ()


def annotation_owners(key: str) -> tuple[Dialect, ...]:
    """Return the dialects that parse *key* in a pod's annotations, in the registry's order."""
    return _annotation_owners(key) if len(key) <= MAX_KEY_CHARS else ()


def is_foreign(key: str) -> bool:
    """Report whether any dialect parses *key*, in limits or annotations."""
    return len(key) <= MAX_KEY_CHARS and _has_owner(key)


@lru_cache(maxsize=1024)
def _has_owner(key: str) -> bool:
    return bool(_limit_owners(key) or _annotation_owners(key))


_FAMILIES: Final = tuple(prefix for dialect in DIALECTS for prefix in dialect.family)


def is_of_family(key: str) -> bool:
    """Report whether *key* has the prefix of any system here, even if no dialect parses it."""
    return key.startswith(_FAMILIES)
