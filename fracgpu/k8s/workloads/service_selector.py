"""The selector of a Service: to which pods it sends traffic."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from fracgpu.errors import decode_wire


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSelector:
    """A Service; without labels it selects no pod."""

    namespace: str
    name: str
    labels: Mapping[str, str]

    def selects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Report whether the Service sends traffic to a pod with these labels."""
        return (
            namespace == self.namespace
            and bool(self.labels)
            and all(labels.get(key) == value for key, value in self.labels.items())
        )


class _Meta(msgspec.Struct):
    name: str = ""
    namespace: str = ""


class _Spec(msgspec.Struct):
    selector: dict[str, str] | None = None


class _Service(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)


_decoder: Final = msgspec.json.Decoder(_Service)


def read_service_selector(body: bytes) -> ServiceSelector:
    """Parse the selector of a Service from its JSON.

    Raises:
        WireError: *body* is not a Service.
    """
    found = decode_wire(_decoder.decode, body, what="service")
    return ServiceSelector(
        namespace=sys.intern(found.metadata.namespace),
        name=found.metadata.name,
        labels=found.spec.selector or {},
    )
