"""The fields of Kubernetes' own kinds, from the client library's models.

The models are generated from Kubernetes' OpenAPI document, so they have every field of every kind
in the version that the library is made for. The library is loaded when one is asked for.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

_LIST: Final = re.compile(r"list\[(.+)\]")
_MAP: Final = re.compile(r"dict\(str, (.+)\)")
# Two groups have this kind; the models of all others are called by version and kind.
_SHARED_KINDS: Final = {("", "Event"): "CoreV1Event", ("events.k8s.io", "Event"): "EventsV1Event"}
OBJECT_META: Final = "V1ObjectMeta"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldType:
    """The type of a field.

    Attributes:
        name: a model, or ``str``, ``int``, ``bool``, ``float``, ``datetime``; ``object`` is
            anything.
        of: ``list`` or ``map`` of that, or empty.
    """

    name: str
    of: str = ""

    @property
    def is_model(self) -> bool:
        return self.name[:1].isupper()


def model_of(group: str, version: str, kind: str) -> str | None:
    """Return the name of the model of a kind, or None if the library has none."""
    name = _SHARED_KINDS.get((group, kind), f"{version[:1].upper()}{version[1:]}{kind}")
    return name if hasattr(_models(), name) else None


@cache
def fields_of(model: str) -> Mapping[str, FieldType]:
    """Return the fields of a model by their names in JSON.

    Raises:
        LookupError: there is no such model.
    """
    found = getattr(_models(), model, None)
    if found is None:
        raise LookupError(f"no model is called {model!r}")
    return {
        found.attribute_map[name]: _field_type(text) for name, text in found.openapi_types.items()
    }


def _models() -> Any:
    from kubernetes_asyncio.client import models  # noqa: PLC0415 - a thousand, for those who ask

    return models


def _field_type(text: str) -> FieldType:
    for pattern, of in ((_LIST, "list"), (_MAP, "map")):
        match = pattern.fullmatch(text)
        if match:
            inner = match[1]
            # A list in a map is rare, and nothing in it is looked at.
            simple = inner if re.fullmatch(r"\w+", inner) else "object"
            return FieldType(name=simple, of=of)
    return FieldType(name=text)
