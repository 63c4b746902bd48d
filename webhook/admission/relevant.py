"""What the rules of admission read of a pod; nothing else can make a difference to a decision."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, TypeVar

from fracgpu import names
from fracgpu.request.bounds import MAX_KEY_CHARS
from fracgpu.request.dialects import READ_LABELS, reads_key
from webhook.admission import limit_range
from webhook.admission.pod import NO_META, Container, Pod, PodMeta, PodSpec, Resources

_T = TypeVar("_T")


def relevant_parts(pod: Pod) -> Pod:
    """Return a pod within all bounds with only what some rule reads.

    The rules get nothing else, so two pods of which this is equal are decided alike. It has no
    names of the pod, of annotations, labels and resources only those with a key that some rule
    knows, and of the environment only the variable that chooses cards. A rule about another key
    finds it on no pod at all until the key is added here.
    """
    meta, spec = pod.metadata, pod.spec
    init = spec.init_containers
    return Pod(
        spec=PodSpec(
            containers=[_relevant_of(container) for container in spec.containers],
            init_containers=None if init is None else [_relevant_of(each) for each in init],
            scheduler_name=spec.scheduler_name,
            node_name=spec.node_name,
            node_selector=spec.node_selector,
            os=spec.os,
            affinity=spec.affinity,
        ),
        metadata=NO_META
        if meta is NO_META
        else PodMeta(annotations=_read(meta.annotations), labels=_read_labels(meta.labels)),
    )


def relevant_labels(namespace_labels: Mapping[str, str]) -> Mapping[str, str]:
    """Return the labels of a namespace that some rule reads."""
    return _read_labels(namespace_labels) or {}


def _relevant_of(container: Container) -> Container:
    resources, env = container.resources, container.env
    return Container(
        name=container.name,
        restart_policy=container.restart_policy,
        resources=None
        if resources is None
        else Resources(limits=_read(resources.limits), requests=_read(resources.requests)),
        env=None
        if env is None
        else [variable for variable in env if variable.name in names.ENV_CARDS_AND_LIMITS],
    )


def _read(found: Mapping[str, _T] | None) -> dict[str, _T] | None:
    if found is None:
        return None
    # Longer keys are not cached: a few of them would fill the memory.
    return {
        key: value
        for key, value in found.items()
        if (_known(key) if len(key) <= MAX_KEY_CHARS else _known.__wrapped__(key))
    }


def _read_labels(found: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return what is read of labels, of which a hostile pod may have tens of thousands."""
    if found is None:
        return None
    return {
        key: found[key]
        for key in found
        if key.startswith(READ_LABELS) or key[: len(names.PREFIX)].lower() == names.PREFIX
    }


_OTHERS: Final = frozenset({limit_range.ANNOTATION})


@lru_cache(maxsize=1024)
def _known(key: str) -> bool:
    return key.lower().startswith(names.PREFIX) or key in _OTHERS or reads_key(key)
