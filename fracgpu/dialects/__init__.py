"""Requests in other systems' words: read strictly, turned into ours, or answered with a hint."""

from fracgpu.dialects.authors import in_authors_words
from fracgpu.dialects.bridge import Understood, understand
from fracgpu.dialects.model import MemoryUnit, Options, PodPieces
from fracgpu.dialects.settings import DialectSettings, read_dialect_settings
from fracgpu.dialects.switch import Enabled, enabled_dialects
from fracgpu.dialects.table import NAMES

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
