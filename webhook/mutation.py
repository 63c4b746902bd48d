"""From a pod to the edits that write its grant down, or to the reason of a refusal; pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from fracgpu import names
from fracgpu.card import CardClass
from fracgpu.dialects import (
    PodPieces,
    Understood,
    enabled_dialects,
    in_authors_words,
    understand,
)
from fracgpu.errors import RequestError, shorten
from fracgpu.grant import ClassRule, Grant, describe, grant
from fracgpu.request import PodRequest, read_request
from webhook.affinity import node_edits, requirements
from webhook.bounds import asks_us, judge_bounds
from webhook.environment import refuse_chosen_cards, void_edits
from webhook.patch import Edit, escape
from webhook.pod import NO_META, Pod, specs
from webhook.resources import resource_edits
from webhook.rules import OTHER, OURS, UNAVAILABLE, Outcome, Patch, Refusal, Rules, Untouched

_DEFAULT_SCHEDULERS: Final = ("", "default-scheduler")

# What a pod asks is settled when it is created; how it may be moved is not.
_FIXED_KEYS: Final = tuple(key for key in names.REQUEST_KEYS if key != names.REBALANCE)

_MOST_GRANTED: Final = 120  # characters of a grant in a refusal

# Between the words of a grant and where its request came from.
_FROM: Final = "; in other words: "

NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})

NOT_READ_YET: Final = Refusal(
    message="the FracGPU webhook has not read the cluster's cards yet; try again in a few seconds",
    code=UNAVAILABLE,
    reason="ServiceUnavailable",
)


def judge_new(
    pod: Pod,
    classes: Sequence[CardClass] | None,
    *,
    rules: Rules,
    namespace_labels: Mapping[str, str] = NO_LABELS,
) -> Outcome:
    """Judge a pod that is about to be created.

    Judging the result again, by the same classes and rules, leaves it untouched.

    Args:
        pod: as the API server shows it to us.
        classes: the cluster's card classes, the most free first; None while they are unknown.
        rules: the administrator's.
        namespace_labels: of the pod's namespace; they turn dialects on.
    """
    beyond = judge_bounds(pod)
    if beyond is not None:
        return beyond
    try:
        _refuse_reserved_keys(pod)
        understood = _understood(pod, rules, namespace_labels)
        if understood.request is None:
            _refuse_granted(pod, "")
            return Untouched(warnings=understood.warnings)
        _refuse_node_name(pod)
        _refuse_foreign_scheduler(understood.foreign_scheduler, rules)
        refuse_chosen_cards(pod)
        if classes is None:
            return NOT_READ_YET
        granted = _grant_in_words(pod, understood, classes, rules)
        text = _refuse_granted(pod, describe(granted), origin=understood.origin)
    except RequestError as error:
        return Refusal(message=str(error), dialect=OURS if asks_us(pod) else OTHER)
    edits = (
        *_annotation_edits(pod, {**understood.annotations, names.GRANTED: text}),
        *resource_edits(pod, granted, understood.removals),
        *_void_edits(pod, granted, rules),
        *node_edits(pod.spec.affinity, requirements(granted)),
        *_scheduler_edits(pod, rules, foreign=understood.foreign_scheduler),
    )
    # Once taken over, a pod keeps foreign annotations that nothing else of theirs stands beside.
    taken_over = not understood.origin and _FROM in text
    foreign = () if taken_over else understood.warnings
    warnings = (*foreign, *_warnings(pod, granted, rules, understood.foreign_scheduler))
    dialect = _dialect(understood.origin)
    if not edits:
        return Untouched(warnings=warnings, dialect=dialect)
    return Patch(edits=edits, granted=text, warnings=warnings, dialect=dialect)


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
            beyond = judge_bounds(new)
            if beyond is not None:
                return beyond
            read_request(new.annotations, specs(new))
    except RequestError as error:
        return Refusal(message=str(error))
    return Untouched()


def _grant_in_words(
    pod: Pod, understood: Understood, classes: Sequence[CardClass], rules: Rules
) -> Grant:
    """Grant what a pod asks; a reason not to names the keys that its author wrote."""
    assert understood.request is not None  # noqa: S101 - only pods that ask come here
    rule, said = rules.card_classes, _said_words(pod)
    try:
        return _grant(understood.request, classes, rule=rule, said=said)
    except RequestError as error:
        raise in_authors_words(error, understood.authors, own=pod.annotations) from error


def _grant(
    request: PodRequest, classes: Sequence[CardClass], *, rule: ClassRule, said: str | None
) -> Grant:
    """Grant as before where a grant is written already, else by the administrator's rule.

    Between two looks at one pod another class may have become the most free one, or the rule may
    have changed.
    """
    if said is not None:
        for card_class in classes:
            try:
                again = grant(request, [card_class])
            except RequestError:
                continue
            if describe(again) == said:
                return again
    return grant(request, classes, rule=rule)


def _understood(pod: Pod, rules: Rules, namespace_labels: Mapping[str, str]) -> Understood:
    enabled = enabled_dialects(namespace_labels, cluster=rules.dialects.dialects)
    pieces = PodPieces(
        containers=specs(pod),
        annotations=pod.annotations,
        labels=pod.metadata.labels or {},
        namespace_labels=namespace_labels,
        scheduler_name=pod.spec.scheduler_name,
    )
    found = understand(pieces, enabled=enabled.dialects, options=rules.dialects.options)
    if not enabled.warnings:
        return found
    return replace(found, warnings=(*enabled.warnings, *found.warnings))


def _dialect(origin: str) -> str:
    """Name the dialect of "train from gpushare: aliyun.com/gpu-mem=4; ..."."""
    return origin.partition(" from ")[2].partition(":")[0] or OURS


def _refuse_reserved_keys(pod: Pod) -> None:
    for key in (names.ASSIGNMENT, names.WIRED):
        if key in pod.annotations:
            raise RequestError(
                field=key,
                found=pod.annotations[key],
                wanted="no such annotation: only FracGPU writes it, after the pod is created",
                hint="leave it out",
            )


def _said_words(pod: Pod) -> str | None:
    """Give what a grant that is written already says, without where it came from."""
    said = pod.annotations.get(names.GRANTED)
    return None if said is None else said.partition(_FROM)[0]


def _refuse_granted(pod: Pod, words: str, *, origin: str = "") -> str:
    """Give the text of the grant; one that is there already may only say the same.

    Once a dialect's resources are taken off a pod, only the text says where its request came from.

    Raises:
        RequestError: the pod says something else.
    """
    text = f"{words}{_FROM}{origin}" if origin else words
    said = pod.annotations.get(names.GRANTED)
    if said is None or said == text:
        return text
    if words and not origin and said.startswith(words + _FROM):
        return said
    raise RequestError(
        field=names.GRANTED,
        found=said,
        wanted=f"'{shorten(text, limit=_MOST_GRANTED)}', which the webhook writes"
        if text
        else "no such annotation",
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


def _annotation_edits(pod: Pod, written: Mapping[str, str]) -> list[Edit]:
    if pod.metadata is NO_META:
        return [Edit(path="/metadata", value={"annotations": written})]
    if pod.metadata.annotations is None:
        return [Edit(path="/metadata/annotations", value=dict(written))]
    return [
        Edit(path=f"/metadata/annotations/{escape(key)}", value=text)
        for key, text in written.items()
        if pod.annotations.get(key) != text
    ]


def _void_edits(pod: Pod, granted: Grant, rules: Rules) -> list[Edit]:
    if not rules.void_others:
        return []
    return void_edits(pod, {it.name for it in granted.need.containers})


def _refuse_foreign_scheduler(foreign: str, rules: Rules) -> None:
    if foreign and not rules.scheduler_name:
        raise RequestError(
            field="spec.schedulerName",
            found=foreign,
            wanted="a scheduler that asks FracGPU's extender: this cluster's administrator leaves "
            "each pod its own",
            hint="leave it out",
        )


def _scheduler_edits(pod: Pod, rules: Rules, *, foreign: str) -> list[Edit]:
    if not rules.scheduler_name or pod.spec.scheduler_name == rules.scheduler_name:
        return []
    if pod.spec.scheduler_name not in (*_DEFAULT_SCHEDULERS, foreign):
        return []
    return [Edit(path="/spec/schedulerName", value=rules.scheduler_name)]


def _warnings(pod: Pod, granted: Grant, rules: Rules, foreign: str) -> tuple[str, ...]:
    found = []
    mine = (*_DEFAULT_SCHEDULERS, rules.scheduler_name)
    if foreign and foreign not in mine:
        found.append(
            f"spec.schedulerName was '{foreign}', which does not know FracGPU's cards; it is "
            f"{rules.scheduler_name} now, so that scheduler's queues and groups do not hold"
        )
    elif rules.scheduler_name and pod.spec.scheduler_name not in mine:
        found.append(
            f"spec.schedulerName is {pod.spec.scheduler_name[:80]!r}, which was left as it is: the "
            "pod gets its card only if that scheduler asks FracGPU's extender, as "
            f"{rules.scheduler_name} does"
        )
    if granted.waits_for:
        found.append(f"the pod waits for what the cluster lacks now: {granted.waits_for}")
    elif granted.card_class is not None and not granted.card_class.measured:
        found.append(
            f"only node labels speak of cards that share {granted.card_class.capacity_mib} MiB; "
            "the pod waits until FracGPU's agent reports one"
        )
    return tuple(found)
