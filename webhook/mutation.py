"""From a pod to the edits that write its grant down, or to the reason of a refusal; pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fracgpu import names
from fracgpu.card import CardClass
from fracgpu.container import ContainerSpec
from fracgpu.errors import RequestError
from fracgpu.grant import Grant, describe, grant
from fracgpu.request import PodRequest, read_request
from fracgpu.views import container_specs
from webhook.affinity import node_edits, requirements
from webhook.review import Container, Edit, Pod

_DEFAULT_SCHEDULERS: Final = ("", "default-scheduler")
_UNPROCESSABLE: Final = 422
_UNAVAILABLE: Final = 503

# What a pod asks is settled when it is created; how it may be moved is not.
_FIXED_KEYS: Final = tuple(key for key in names.REQUEST_KEYS if key != names.REBALANCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the administrator decided about admission.

    Attributes:
        scheduler_name: the scheduler that pods with a grant get; empty leaves their own.
        agent_users: who may write ``fracgpu.io/wired``.
    """

    scheduler_name: str = names.SCHEDULER_NAME
    agent_users: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """Yes, with these edits; *granted* says in plain words what was understood."""

    edits: tuple[Edit, ...]
    granted: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Untouched:
    """Yes, as it stands: the pod asks for nothing, or has its grant already."""

    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """No, for a reason that its author can act on; *code* is an HTTP status."""

    message: str
    code: int = _UNPROCESSABLE
    reason: str = "Invalid"


Outcome = Patch | Untouched | Refusal

NOT_READ_YET: Final = Refusal(
    message="the FracGPU webhook has not read the cluster's cards yet; try again in a few seconds",
    code=_UNAVAILABLE,
    reason="ServiceUnavailable",
)


def judge_new(pod: Pod, classes: Sequence[CardClass] | None, *, rules: Rules) -> Outcome:
    """Judge a pod that is about to be created.

    Judging the result again, by the same classes, leaves it untouched.

    Args:
        pod: as the API server shows it to us.
        classes: the cluster's card classes, the most free first; None while they are unknown.
        rules: the administrator's.
    """
    try:
        _refuse_reserved_keys(pod)
        request = read_request(pod.annotations, specs(pod))
        if request is None:
            _refuse_granted(pod, "")
            return Untouched()
        _refuse_node_name(pod)
        if classes is None:
            return NOT_READ_YET
        granted = _grant(request, classes, said=pod.annotations.get(names.GRANTED))
        text = describe(granted)
        _refuse_granted(pod, text)
    except RequestError as error:
        return Refusal(message=str(error))
    edits = (
        *_annotation_edits(pod, text),
        *_resource_edits(pod, granted),
        *node_edits(pod.spec.affinity, requirements(granted)),
        *_scheduler_edits(pod, rules),
    )
    warnings = _warnings(pod, rules)
    if not edits:
        return Untouched(warnings=warnings)
    return Patch(edits=edits, granted=text, warnings=warnings)


def judge_change(old: Pod, new: Pod, *, user: str, rules: Rules) -> Outcome:
    """Judge an update of a stored pod; it needs no knowledge of the cluster.

    The assignment comes with the Binding, which is another resource, so nobody may touch it here.
    """
    try:
        for key in (names.ASSIGNMENT, names.GRANTED):
            _refuse_change(old, new, key, wanted="no change: only FracGPU writes it")
        if user not in rules.agent_users:
            wanted = "no change: only the node agent writes it"
            _refuse_change(old, new, names.WIRED, wanted=wanted)
        for key in _FIXED_KEYS:
            wanted = "no change: what a pod asks is settled when it is created"
            _refuse_change(old, new, key, wanted=wanted, hint="create a new pod")
        if _ours(old.annotations) != _ours(new.annotations):
            read_request(new.annotations, specs(new))
    except RequestError as error:
        return Refusal(message=str(error))
    return Untouched()


def specs(pod: Pod) -> tuple[ContainerSpec, ...]:
    """Give the pod's containers as the core sees them."""
    return container_specs(
        [
            (it.name, it.restart_policy, _amounts(it, "limits"), _amounts(it, "requests"))
            for it in pod.spec.init_containers or ()
        ],
        [(it.name, _amounts(it, "limits"), _amounts(it, "requests")) for it in pod.spec.containers],
    )


def _grant(request: PodRequest, classes: Sequence[CardClass], *, said: str | None) -> Grant:
    """Grant as before where a grant is written already, else from the most free class.

    Between two looks at one pod another class may have become the most free one.
    """
    if said is not None:
        for card_class in classes:
            try:
                again = grant(request, [card_class])
            except RequestError:
                continue
            if describe(again) == said:
                return again
    return grant(request, classes)


def _refuse_reserved_keys(pod: Pod) -> None:
    for key in (names.ASSIGNMENT, names.WIRED):
        if key in pod.annotations:
            raise RequestError(
                field=key,
                found=pod.annotations[key],
                wanted="no such annotation: only FracGPU writes it, after the pod is created",
                hint="leave it out",
            )


def _refuse_granted(pod: Pod, text: str) -> None:
    said = pod.annotations.get(names.GRANTED)
    if said is not None and said != text:
        raise RequestError(
            field=names.GRANTED,
            found=said,
            wanted=f"{text!r}, which the webhook writes" if text else "no such annotation",
            hint="leave it out",
        )


def _refuse_node_name(pod: Pod) -> None:
    if pod.spec.node_name:
        raise RequestError(
            field="spec.nodeName",
            found=pod.spec.node_name,
            wanted="none: a pod with a share of a card has its node and card chosen together",
            hint="use a nodeSelector or node affinity",
        )


def _refuse_change(old: Pod, new: Pod, key: str, *, wanted: str, hint: str = "") -> None:
    before, after = old.annotations.get(key), new.annotations.get(key)
    if before != after:
        found = "removed" if after is None else after
        raise RequestError(field=key, found=found, wanted=wanted, hint=hint)


def _ours(annotations: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in annotations.items() if key.startswith(names.PREFIX)}


def _annotation_edits(pod: Pod, text: str) -> list[Edit]:
    if names.GRANTED in pod.annotations:
        return []
    if pod.metadata.annotations is None:
        return [Edit(path="/metadata/annotations", value={names.GRANTED: text})]
    return [Edit(path=f"/metadata/annotations/{_escape(names.GRANTED)}", value=text)]


def _resource_edits(pod: Pod, granted: Grant) -> list[Edit]:
    needs = {it.name: it for it in granted.need.containers}
    edits = []
    for where, containers in (
        ("initContainers", pod.spec.init_containers or ()),
        ("containers", pod.spec.containers),
    ):
        for index, container in enumerate(containers):
            if container.name in needs:
                need = needs[container.name]
                amounts = {names.GPU_MEM: str(need.total_mib), names.GPU_SLOT: str(need.cards)}
                edits += _amount_edits(f"/spec/{where}/{index}/resources", container, amounts)
    return edits


def _amount_edits(path: str, container: Container, amounts: Mapping[str, str]) -> list[Edit]:
    """Write *amounts* where they are absent; where they are present the grant agreed with them."""
    resources = container.resources
    if resources is None:
        return [Edit(path=path, value={"limits": dict(amounts), "requests": dict(amounts)})]
    edits = []
    for which, present in (("limits", resources.limits), ("requests", resources.requests)):
        if present is None:
            edits.append(Edit(path=f"{path}/{which}", value=dict(amounts)))
            continue
        edits += [
            Edit(path=f"{path}/{which}/{_escape(key)}", value=amount)
            for key, amount in amounts.items()
            if key not in present
        ]
    return edits


def _scheduler_edits(pod: Pod, rules: Rules) -> list[Edit]:
    if not rules.scheduler_name or pod.spec.scheduler_name == rules.scheduler_name:
        return []
    if pod.spec.scheduler_name not in _DEFAULT_SCHEDULERS:
        return []
    return [Edit(path="/spec/schedulerName", value=rules.scheduler_name)]


def _warnings(pod: Pod, rules: Rules) -> tuple[str, ...]:
    mine = (*_DEFAULT_SCHEDULERS, rules.scheduler_name)
    if not rules.scheduler_name or pod.spec.scheduler_name in mine:
        return ()
    return (
        f"spec.schedulerName is {pod.spec.scheduler_name!r}, which was left as it is: the pod gets "
        f"its card only if that scheduler asks FracGPU's extender, as {rules.scheduler_name} does",
    )


def _amounts(container: Container, which: str) -> dict[str, str]:
    resources = container.resources
    amounts = resources and (resources.limits if which == "limits" else resources.requests)
    return {key: str(value) for key, value in (amounts or {}).items()}


def _escape(key: str) -> str:
    """Escape a key for a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")
