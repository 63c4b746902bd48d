"""Requests in other systems' words: read strictly, turned into ours, or answered with a hint.

What is offered here is all that others import; `systems` has one file for each product.
Start with `dialect.py`, then `translate.py`.
"""

from fracgpu.request.dialects.authors import in_authors_words
from fracgpu.request.dialects.dialect import MemoryUnit, Options, PodPieces
from fracgpu.request.dialects.enablement import (
    DialectSettings,
    Enabled,
    enabled_dialects,
    read_dialect_settings,
)
from fracgpu.request.dialects.registry import NAMES
from fracgpu.request.dialects.translate import Understood, understand

__all__ = [
    "NAMES",
    "DialectSettings",
    "Enabled",
    "MemoryUnit",
    "Options",
    "PodPieces",
    "Understood",
    "enabled_dialects",
    "in_authors_words",
    "read_dialect_settings",
    "understand",
]
