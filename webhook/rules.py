"""What the administrator decided about admission, and what may come out of it."""

from dataclasses import dataclass, field
from typing import Final

from fracgpu import names
from fracgpu.request.dialects import DialectSettings
from fracgpu.request.grant import ClassRule
from fracgpu.units import Mib
from webhook.admission.patch import Edit

UNPROCESSABLE: Final = 422
UNAVAILABLE: Final = 503

OURS: Final = "fracgpu"
OTHER: Final = "other"
NO_DIALECT: Final = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadKind:
    """A kind whose objects hold pod templates.

    Attributes:
        group: API group, empty for the core.
        templates: paths of the templates, such as ``spec.template``; ``*`` is any key or index.
    """

    group: str
    kind: str
    templates: tuple[str, ...] = ("spec.template",)


BUILT_IN_WORKLOADS: Final = (
    *(
        WorkloadKind(group="apps", kind=kind)
        for kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")
    ),
    WorkloadKind(group="", kind="ReplicationController"),
    WorkloadKind(group="batch", kind="Job"),
    WorkloadKind(group="batch", kind="CronJob", templates=("spec.jobTemplate.spec.template",)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the administrator decided about admission.

    Attributes:
        scheduler_name: the scheduler that pods with a grant get; empty leaves their own.
        agent_users: who may write ``fracgpu.io/wired``.
        card_classes: which card class a share is a share of, and whether pods may wait for one.
        void_others: whether containers without a grant, in pods that ask, are kept from all cards.
        label_reserved_mib: what comes off each card that only node labels speak of.
        excluded_namespaces: where requests are left alone, with a warning.
        dialects: which are on where a namespace says nothing, and what they leave to the cluster.
        workloads: kinds whose pod templates are read, beside the built-in ones.
    """

    scheduler_name: str = names.SCHEDULER_NAME
    agent_users: frozenset[str] = frozenset()
    card_classes: ClassRule = field(default_factory=ClassRule)
    void_others: bool = True
    label_reserved_mib: Mib = Mib(0)
    excluded_namespaces: frozenset[str] = frozenset()
    dialects: DialectSettings = field(default_factory=DialectSettings)
    workloads: tuple[WorkloadKind, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """Yes, with these edits; *granted* says in plain words what was understood."""

    edits: tuple[Edit, ...]
    granted: str
    warnings: tuple[str, ...] = ()
    dialect: str = OURS


@dataclass(frozen=True, slots=True, kw_only=True)
class Untouched:
    """Yes, as it stands: it asks for nothing, or has its grant already."""

    warnings: tuple[str, ...] = ()
    dialect: str = NO_DIALECT


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """No, for a reason that its author can act on; *code* is an HTTP status."""

    message: str
    code: int = UNPROCESSABLE
    reason: str = "Invalid"
    dialect: str = OURS


Outcome = Patch | Untouched | Refusal
