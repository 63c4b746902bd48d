"""The administrator's configuration of admission: the key ``admission`` of the ConfigMap.

The key is a YAML mapping in camelCase, parsed strictly into `AdmissionConfig`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from component import config_keys
from component.config_watcher import strict_mapping
from fracgpu import names
from fracgpu.cards.card_class import model_key
from fracgpu.errors import WireError
from fracgpu.request.dialects import DialectSettings, read_dialect_settings
from fracgpu.request.dialects.registry import DIALECT_OPTIONS_KEY, DIALECTS_KEY, dialect_schemas
from fracgpu.request.grant import ClassRule
from fracgpu.spelling import unknown_keys
from fracgpu.units import MAX_MIB, Mib

KEY: Final = config_keys.ADMISSION

_DNS_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)

_KIND: Final = re.compile(r"[A-Z][A-Za-z0-9]{0,62}", re.ASCII)

_PATH: Final = re.compile(r"[A-Za-z0-9_*-]{1,63}(\.[A-Za-z0-9_*-]{1,63}){0,15}", re.ASCII)

_MOST_WORKLOADS: Final = 64

_NOT_BLANK: Final = "[^ ]"

_WHEN_NO_CAPACITY: Final = ("refuse", "wait")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionConfig:
    """The administrator's configuration of admission.

    Attributes:
        scheduler_name: the scheduler set on pods with a grant; empty leaves their own.
        agent_users: who may write ``fracgpu.io/wired``.
        rebalancer_users: who may write ``fracgpu.io/moved-by`` and ``fracgpu.io/move-notice``.
        card_classes: which card class a share is a share of, and whether pods may wait for one.
        void_others: whether containers without a grant, in pods with one, are shown no card.
        label_reserved_mib: MiB subtracted from each card that is known only from node labels.
        excluded_namespaces: namespaces whose requests are ignored, with a warning.
        dialects: those enabled where a namespace says nothing, and their options.
        grant_templates: whether pod templates get a grant too where a namespace says nothing.
        workloads: kinds whose pod templates are checked, besides the built-in ones.
    """

    scheduler_name: str = names.SCHEDULER_NAME
    agent_users: frozenset[str] = frozenset()
    rebalancer_users: frozenset[str] = frozenset()
    card_classes: ClassRule = field(default_factory=ClassRule)
    void_others: bool = True
    label_reserved_mib: Mib = Mib(0)
    excluded_namespaces: frozenset[str] = frozenset()
    dialects: DialectSettings = field(default_factory=DialectSettings)
    grant_templates: bool = False
    workloads: tuple[WorkloadKind, ...] = ()


def parse_admission(text: str, *, base: AdmissionConfig) -> AdmissionConfig:
    """Parse the configuration of admission; keys that are left out keep their value in *base*.

    Raises:
        ValueError: the message lists every mistake: unknown keys, wrong types, invalid values.
    """
    found = strict_mapping(text)
    mistakes = unknown_keys(found, (*_READERS, DIALECTS_KEY, DIALECT_OPTIONS_KEY))
    config = base
    try:
        config = replace(base, dialects=read_dialect_settings(found))
    except WireError as error:
        mistakes.append(str(error))
    for key, value in found.items():
        if key not in _READERS:
            continue
        try:
            config = _READERS[key][0](config, value)
        except ValueError as error:
            mistakes.append(f"{key} is {_shown(value)}; want {error}")
    if mistakes:
        raise ValueError("; ".join(mistakes))
    return config


def _default_model(config: AdmissionConfig, value: object) -> AdmissionConfig:
    globs = _texts(value, wanted="a card model or glob, or a list of them, e.g. 'NVIDIA-A100*'")
    models = tuple(model_key(glob) for glob in globs)
    return _with_classes(config, default_models=models)


def _default_class_mib(config: AdmissionConfig, value: object) -> AdmissionConfig:
    mib = _number(value, low=1, high=MAX_MIB, wanted="the shareable MiB of one card, e.g. 40960")
    return _with_classes(config, default_mib=Mib(mib))


def _when_no_capacity(config: AdmissionConfig, value: object) -> AdmissionConfig:
    if value not in _WHEN_NO_CAPACITY:
        raise ValueError(" or ".join(_WHEN_NO_CAPACITY))
    return _with_classes(config, wait=value == "wait")


def _scheduler_name(config: AdmissionConfig, value: object) -> AdmissionConfig:
    if value != "" and not (isinstance(value, str) and _DNS_LABEL.fullmatch(value)):
        raise ValueError("the name of a scheduler, or '' to leave each pod its own")
    return replace(config, scheduler_name=value)


def _void_others(config: AdmissionConfig, value: object) -> AdmissionConfig:
    return replace(config, void_others=_flag(value))


def _grant_templates(config: AdmissionConfig, value: object) -> AdmissionConfig:
    return replace(config, grant_templates=_flag(value))


def _label_reserved_mib(config: AdmissionConfig, value: object) -> AdmissionConfig:
    mib = _number(value, low=0, high=MAX_MIB, wanted="MiB of each card, e.g. 600")
    return replace(config, label_reserved_mib=Mib(mib))


def _excluded_namespaces(config: AdmissionConfig, value: object) -> AdmissionConfig:
    wanted = "a list of namespaces"
    found = _texts(value, wanted=wanted) if value != [] else ()
    if not all(_DNS_LABEL.fullmatch(text) for text in found):
        raise ValueError(wanted)
    return replace(config, excluded_namespaces=frozenset(found))


def _workloads(config: AdmissionConfig, value: object) -> AdmissionConfig:
    wanted = (
        "a list of {group, kind, templates}, e.g. "
        "{group: kubeflow.org, kind: PyTorchJob, templates: [spec.pytorchReplicaSpecs.*.template]}"
    )
    if not isinstance(value, list) or len(value) > _MOST_WORKLOADS:
        raise ValueError(wanted)
    read = [_workload(entry, wanted=wanted) for entry in value]
    # Those that an earlier version had to be told of are read anyway.
    built_in = {(each.group, each.kind) for each in BUILT_IN_WORKLOADS}
    kinds = [each for each in read if (each.group, each.kind) not in built_in]
    return replace(config, workloads=tuple(kinds))


def _workload(value: object, *, wanted: str) -> WorkloadKind:
    if not isinstance(value, dict) or set(value) != {"group", "kind", "templates"}:
        raise ValueError(wanted)
    group, kind = value["group"], value["kind"]
    templates = _texts(value["templates"], wanted=wanted)
    if not (isinstance(group, str) and isinstance(kind, str) and _KIND.fullmatch(kind)):
        raise ValueError(wanted)
    if group and not _DNS_LABEL.fullmatch(group):
        raise ValueError(wanted)
    if not all(_PATH.fullmatch(path) for path in templates):
        raise ValueError(wanted)
    return WorkloadKind(group=group, kind=kind, templates=templates)


_TEXTS: Final = {
    "anyOf": [
        {"type": "string", "pattern": _NOT_BLANK},
        {"type": "array", "minItems": 1, "items": {"type": "string", "pattern": _NOT_BLANK}},
    ]
}

# What reads each key, and its JSON schema.
_READERS: Final[
    Mapping[str, tuple[Callable[[AdmissionConfig, Any], AdmissionConfig], Mapping[str, Any]]]
] = {
    "defaultModel": (_default_model, _TEXTS),
    "defaultClassMib": (
        _default_class_mib,
        {"type": "integer", "minimum": 1, "maximum": MAX_MIB},
    ),
    "whenNoCapacity": (_when_no_capacity, {"enum": list(_WHEN_NO_CAPACITY)}),
    "schedulerName": (_scheduler_name, {"type": "string", "pattern": f"^({_DNS_LABEL.pattern})?$"}),
    "voidOthers": (_void_others, {"type": "boolean"}),
    "grantTemplates": (_grant_templates, {"type": "boolean"}),
    "labelReservedMib": (
        _label_reserved_mib,
        {"type": "integer", "minimum": 0, "maximum": MAX_MIB},
    ),
    "excludedNamespaces": (
        _excluded_namespaces,
        {"type": "array", "items": {"type": "string", "pattern": f"^{_DNS_LABEL.pattern}$"}},
    ),
    "workloads": (
        _workloads,
        {
            "type": "array",
            "maxItems": _MOST_WORKLOADS,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["group", "kind", "templates"],
                "properties": {
                    "group": {"type": "string", "pattern": f"^({_DNS_LABEL.pattern})?$"},
                    "kind": {"type": "string", "pattern": f"^{_KIND.pattern}$"},
                    "templates": _TEXTS,
                },
            },
        },
    ),
}


def schema() -> dict[str, Any]:
    """Return the JSON schema of what `parse_admission` reads, for the values of the Helm chart."""
    read = {key: dict(accepted) for key, (_, accepted) in _READERS.items()}
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {**read, **dialect_schemas()},
    }


def _with_classes(config: AdmissionConfig, **changes: Any) -> AdmissionConfig:
    classes: ClassRule = replace(config.card_classes, **changes)
    return replace(config, card_classes=classes)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")  # noqa: TRY004 - one error type for every mistake
    return value


def _texts(value: object, *, wanted: str) -> tuple[str, ...]:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not found:
        raise ValueError(wanted)
    if not all(isinstance(text, str) and text.strip() for text in found):
        raise ValueError(wanted)
    return tuple(text.strip() for text in found)


def _number(value: object, *, low: int, high: int, wanted: str) -> int:
    # bool is an int to Python.
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(wanted)
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:119]}…"  # noqa: PLR2004 - about a line


_RAY_TEMPLATES: Final = ("headGroupSpec.template", "workerGroupSpecs.*.template")

# The only list of where pod templates are: `make manifests` writes the CEL of the webhook's entries
# from it. Kubernetes' own kinds first.
BUILT_IN_WORKLOADS: Final = (
    *(
        WorkloadKind(group="apps", kind=kind)
        for kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")
    ),
    WorkloadKind(group="", kind="ReplicationController"),
    WorkloadKind(group="", kind="PodTemplate", templates=("template",)),
    WorkloadKind(group="batch", kind="Job"),
    WorkloadKind(group="batch", kind="CronJob", templates=("spec.jobTemplate.spec.template",)),
    WorkloadKind(group="argoproj.io", kind="Rollout"),
    WorkloadKind(group="batch.volcano.sh", kind="Job", templates=("spec.tasks.*.template",)),
    WorkloadKind(
        group="jobset.x-k8s.io",
        kind="JobSet",
        templates=("spec.replicatedJobs.*.template.spec.template",),
    ),
    WorkloadKind(
        group="leaderworkerset.x-k8s.io",
        kind="LeaderWorkerSet",
        templates=(
            "spec.leaderWorkerTemplate.leaderTemplate",
            "spec.leaderWorkerTemplate.workerTemplate",
        ),
    ),
    *(
        WorkloadKind(
            group="ray.io", kind=kind, templates=tuple(f"{at}.{path}" for path in _RAY_TEMPLATES)
        )
        for kind, at in (
            ("RayCluster", "spec"),
            ("RayJob", "spec.rayClusterSpec"),
            ("RayService", "spec.rayClusterConfig"),
        )
    ),
)
