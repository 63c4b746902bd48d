"""Which dialects are on for a pod: the cluster's setting, or its namespace's label instead."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fracgpu import names
from fracgpu.request.dialects.registry import NAMES
from fracgpu.spelling import did_you_mean

ALL: Final = "all"
NONE: Final = "none"
# A label's value may hold no comma.
SEPARATOR: Final = "."


@dataclass(frozen=True, slots=True, kw_only=True)
class Enabled:
    """The dialects that are on, and what was wrong with how they were turned on."""

    dialects: frozenset[str]
    warnings: tuple[str, ...] = ()


def enabled_dialects(
    namespace_labels: Mapping[str, str], *, cluster: frozenset[str] = frozenset()
) -> Enabled:
    """Say which dialects are on in a namespace.

    The label ``fracgpu.io/dialects`` holds names joined by dots, ``all`` or ``none``, and replaces
    the cluster's setting. A name that does not exist turns nothing on and is warned of: a slip in a
    label must not stop a namespace's pods.
    """
    text = namespace_labels.get(names.DIALECTS_LABEL)
    if text is None:
        return Enabled(dialects=cluster)
    if text == NONE:
        return Enabled(dialects=frozenset())
    if text == ALL:
        return Enabled(dialects=frozenset(NAMES))
    parts = [part for part in text.split(SEPARATOR) if part]
    unknown = [part for part in parts if part not in NAMES]
    return Enabled(
        dialects=frozenset(parts) & frozenset(NAMES),
        warnings=tuple(_unknown(part) for part in unknown),
    )


def _unknown(part: str) -> str:
    hint = did_you_mean(part, NAMES)
    hint = f"; {hint}" if hint else ""
    return (
        f"the namespace's label {names.DIALECTS_LABEL} names '{part}'; want names of "
        f"{', '.join(NAMES)}, joined by dots, or '{ALL}' or '{NONE}'{hint}"
    )
