"""Requests in the keys of other systems: parsed strictly and translated into our own keys.

Other packages import only the names below; `systems` has one file for each product.
Start with `dialect.py`, then `translate.py`.
"""

from fracgpu.request.dialects.authors import in_authors_words
from fracgpu.request.dialects.dialect import MemoryUnit, Options, PodForDialects
from fracgpu.request.dialects.registry import (
    NAMES,
    DialectSettings,
    EnabledDialects,
    enabled_dialects,
    read_dialect_settings,
)
from fracgpu.request.dialects.translate import (
    Translation,
    translate_request,
)

__all__ = [
    "NAMES",
    "DialectSettings",
    "EnabledDialects",
    "MemoryUnit",
    "Options",
    "PodForDialects",
    "Translation",
    "enabled_dialects",
    "in_authors_words",
    "read_dialect_settings",
    "translate_request",
]
