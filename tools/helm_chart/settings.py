"""What a value of the chart is: its type, its default and the fields that it fills."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

Schema = Mapping[str, Any]


class _Taken:
    def __repr__(self) -> str:
        return "TAKEN"


# The default is what deploy/ has at the value's first place.
TAKEN: Final = _Taken()


@dataclass(frozen=True, slots=True)
class TakenOr:
    """The default is what deploy/ has at the value's first place, or *empty*."""

    empty: Any


STRING: Final[Schema] = {"type": "string"}
BOOLEAN: Final[Schema] = {"type": "boolean"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
MAP: Final[Schema] = {"type": "object"}
STRINGS_BY_NAME: Final[Schema] = {"type": "object", "additionalProperties": {"type": "string"}}
POD_LABELS: Final[Schema] = {
    **STRINGS_BY_NAME,
    # Services and policies select our pods by this label.
    "propertyNames": {"not": {"const": "app.kubernetes.io/name"}},
}
OBJECTS: Final[Schema] = {"type": "array", "items": {"type": "object"}}
STRINGS: Final[Schema] = {"type": "array", "items": {"type": "string"}}
PATH: Final[Schema] = {"type": "string", "pattern": "^(/.*)?$"}
QUANTITIES: Final[Schema] = {
    "type": "object",
    "additionalProperties": {"type": ["string", "number"]},
}
RESOURCES: Final[Schema] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "requests": QUANTITIES,
        "limits": QUANTITIES,
        "claims": {"type": "array", "items": {"type": "object"}},
    },
}
NAME: Final[Schema] = {"type": "string", "minLength": 1}


def one_of(*words: str) -> Schema:
    """Return the schema of a word out of several."""
    return {"type": "string", "enum": list(words)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A field that a value fills.

    Attributes:
        kind: of the object.
        name: of the object.
        path: as :mod:`tools.helm_chart.places` reads it.
    """

    kind: str
    name: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One value of the chart.

    Attributes:
        key: e.g. ``webhook.replicas``.
        doc: what it is, for ``values.yaml``.
        schema: its JSON schema.
        default: as in ``values.yaml``; if it is empty, deploy/'s field stays unless users set it.
        places: the fields it fills; none if the templates use it in another way.
    """

    key: str
    doc: str
    schema: Schema
    default: Any = TAKEN
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A workload whose pods users adapt to their cluster."""

    key: str
    kind: str
    name: str
    container: str
    doc: str
    replicated: bool = False

    def place(self, path: str) -> Place:
        """Return a field of its object."""
        return Place(kind=self.kind, name=self.name, path=path)

    def of_pod(self, field: str) -> Place:
        """Return a field of its pods' spec."""
        return self.place(f"spec.template.spec.{field}")

    def of_container(self, field: str) -> Place:
        """Return a field of its container."""
        return self.of_pod(f"containers[{self.container}].{field}")


COMPONENTS: Final = (
    Component(
        key="webhook",
        kind="Deployment",
        name="fracgpu-webhook",
        container="webhook",
        doc="The admission webhook.",
        replicated=True,
    ),
    Component(
        key="certs",
        kind="Deployment",
        name="fracgpu-certs",
        container="certs",
        doc="Issues the certificates, or distributes those of cert-manager.",
    ),
    Component(
        key="scheduler",
        kind="Deployment",
        name="fracgpu-scheduler",
        container="extender",
        doc="The scheduler extender, and kube-scheduler beside it.",
        replicated=True,
    ),
    Component(
        key="deviceplugin",
        kind="DaemonSet",
        name="fracgpu-deviceplugin",
        container="deviceplugin",
        doc="The node agent.",
    ),
    Component(
        key="rebalancer",
        kind="Deployment",
        name="fracgpu-rebalancer",
        container="rebalancer",
        doc="The rebalancer.",
        replicated=True,
    ),
    Component(
        key="schedulerFiles",
        kind="DaemonSet",
        name="fracgpu-kube-scheduler-files",
        container="files",
        doc="Brings the cluster's own kube-scheduler its files (scheduler.mode: prepare, cluster).",
    ),
)


def settings_of(component: Component) -> list[Setting]:
    """Return the values that every component has; those that deploy/ sets have its default."""
    key, pod = component.key, component.of_pod
    found = [
        Setting(
            key=f"{key}.resources",
            doc="Requests and limits of its container.",
            schema=RESOURCES,
            places=(component.of_container("resources"),),
        ),
        Setting(
            key=f"{key}.nodeSelector",
            doc="Labels of the nodes that may run it.",
            schema=STRINGS_BY_NAME,
            default=TakenOr({}),
            places=(pod("nodeSelector"),),
        ),
        Setting(
            key=f"{key}.tolerations",
            doc="Taints that its pods tolerate.",
            schema=OBJECTS,
            default=TakenOr([]),
            places=(pod("tolerations"),),
        ),
        Setting(
            key=f"{key}.affinity",
            doc="Affinity of its pods.",
            schema=MAP,
            default=TakenOr({}),
            places=(pod("affinity"),),
        ),
        Setting(
            key=f"{key}.priorityClassName",
            doc="Priority class of its pods.",
            schema=STRING,
            default=TakenOr(""),
            places=(pod("priorityClassName"),),
        ),
        *(
            Setting(
                key=f"{key}.{probe}",
                doc="Probe of its container.",
                schema=MAP,
                default=TakenOr({}),
                places=(component.of_container(probe),),
            )
            for probe in ("startupProbe", "livenessProbe", "readinessProbe")
        ),
        Setting(
            key=f"{key}.podAnnotations",
            doc="More annotations of its pods.",
            schema=STRINGS_BY_NAME,
            default={},
        ),
        Setting(
            key=f"{key}.podLabels",
            doc="More labels of its pods.",
            schema=POD_LABELS,
            default={},
        ),
        Setting(
            key=f"{key}.extraArgs",
            doc="More flags: fracgpu run ROLE --help lists them.",
            schema=STRINGS,
            default=[],
        ),
        Setting(
            key=f"{key}.extraEnv",
            doc="More environment variables of its container.",
            schema=OBJECTS,
            default=[],
        ),
    ]
    if component.replicated:
        found.insert(
            0,
            Setting(
                key=f"{key}.replicas",
                doc="Replicas.",
                schema=COUNT,
                places=(component.place("spec.replicas"),),
            ),
        )
    return found
