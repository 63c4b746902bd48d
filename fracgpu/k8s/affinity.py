"""A pod's affinity as JSON, decoded once for those who read its terms and its preferences."""

from typing import Final

import msgspec

from fracgpu.caching import cached
from fracgpu.k8s.selectors import LabelSelectorJson

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


class NodeExpressionJson(msgspec.Struct, frozen=True):
    """One requirement on a node: on a label, or on a field."""

    key: str
    operator: str
    values: tuple[str, ...] | None = None


class NodeTermJson(msgspec.Struct, frozen=True, rename="camel"):
    """The requirements of one term, on labels and on fields."""

    match_expressions: tuple[NodeExpressionJson, ...] | None = None
    match_fields: tuple[NodeExpressionJson, ...] | None = None


class NodeSelectorJson(msgspec.Struct, frozen=True, rename="camel"):
    """A ``NodeSelector``: of a pod's affinity, or of a persistent volume."""

    node_selector_terms: tuple[NodeTermJson, ...] | None = None


class PodTermJson(msgspec.Struct, frozen=True, rename="camel"):
    """A ``PodAffinityTerm``."""

    topology_key: str = ""
    label_selector: LabelSelectorJson | None = None
    namespaces: tuple[str, ...] | None = None
    namespace_selector: LabelSelectorJson | None = None


class _Preferred(msgspec.Struct, frozen=True):
    """A weighted term, of which only the presence matters."""


class NodeAffinityJson(msgspec.Struct, frozen=True):
    """``nodeAffinity``."""

    required: NodeSelectorJson | None = msgspec.field(default=None, name=_REQUIRED)
    preferred: tuple[_Preferred, ...] | None = msgspec.field(default=None, name=_PREFERRED)


class PodAffinityJson(msgspec.Struct, frozen=True):
    """``podAffinity`` or ``podAntiAffinity``."""

    required: tuple[PodTermJson, ...] | None = msgspec.field(default=None, name=_REQUIRED)
    preferred: tuple[_Preferred, ...] | None = msgspec.field(default=None, name=_PREFERRED)


class AffinityJson(msgspec.Struct, frozen=True, rename="camel"):
    """``spec.affinity`` of a pod."""

    node_affinity: NodeAffinityJson | None = None
    pod_affinity: PodAffinityJson | None = None
    pod_anti_affinity: PodAffinityJson | None = None

    @property
    def prefers(self) -> bool:
        """Whether a term of it only ranks nodes."""
        kinds = (self.node_affinity, self.pod_affinity, self.pod_anti_affinity)
        return any(kind is not None and bool(kind.preferred) for kind in kinds)


_NONE: Final = AffinityJson()
_decoder: Final = msgspec.json.Decoder(AffinityJson | None)


@cached(entries=1024)
def read_affinity(body: bytes) -> AffinityJson:
    """Return the affinity that *body* holds; one without terms if it is empty or ``null``.

    Raises:
        ValueError: it is no affinity.
        RecursionError: it is nested too deeply.
    """
    return (_decoder.decode(body) if body else None) or _NONE
