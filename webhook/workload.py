"""Workloads: their pod templates, judged where their author types them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from fracgpu import names
from fracgpu.card import CardClass
from webhook.mutation import NO_LABELS, NOT_READ_YET, judge_new
from webhook.pod import MalformedReviewError, Pod, decode
from webhook.review import Review, kind_of
from webhook.rules import (
    BUILT_IN_WORKLOADS,
    OURS,
    Outcome,
    Patch,
    Refusal,
    Rules,
    Untouched,
    WorkloadKind,
)

_decoder: Final = msgspec.json.Decoder(dict[str, Any])

Json = Mapping[str, Any]


def judge_workload(
    review: Review,
    classes: Sequence[CardClass] | None,
    *,
    rules: Rules,
    namespace_labels: Mapping[str, str] = NO_LABELS,
) -> Outcome:
    """Judge the pod templates of a workload that is about to be stored.

    A template that an update leaves as it was is not judged again: it was admitted once, and its
    workload must stay free to scale and to end.

    Args:
        review: about a workload.
        classes: the cluster's card classes; while they are None only the language is judged.
        rules: the administrator's.
        namespace_labels: of the workload's namespace.

    Raises:
        MalformedReviewError: it is no kind of workload that we know, or no object.
    """
    kind = _kind(review, rules)
    body = decode(_decoder, review.object, what="request.object")
    old = decode(_decoder, review.old, what="request.oldObject") if review.old else {}
    warnings = list(_misplaced(body, kind, review))
    asked = False
    for path in kind.templates:
        before = dict(_at(old, path))
        for where, template in _at(body, path):
            if template == before.get(where):
                continue
            outcome = _judge_template(
                template, classes, rules=rules, namespace_labels=namespace_labels
            )
            if isinstance(outcome, Refusal):
                return replace(outcome, message=f"in {where}: {outcome.message}")
            asked = asked or outcome.dialect != Untouched().dialect
            warnings += [f"in {where}: {it}" for it in outcome.warnings]
    return Untouched(warnings=tuple(warnings), dialect=OURS if asked else Untouched().dialect)


def _kind(review: Review, rules: Rules) -> WorkloadKind:
    for it in (*BUILT_IN_WORKLOADS, *rules.workloads):
        if (it.group, it.kind) == (review.group, review.kind):
            return it
    raise MalformedReviewError(
        f"request.kind is {kind_of(review)}; want a workload: Deployment, StatefulSet, DaemonSet, "
        "ReplicaSet, Job, CronJob, or a kind that the key 'admission' of the ConfigMap lists"
    )


def _judge_template(
    template: object,
    classes: Sequence[CardClass] | None,
    *,
    rules: Rules,
    namespace_labels: Mapping[str, str],
) -> Outcome:
    try:
        pod = msgspec.convert(template, Pod)
    except (ValueError, RecursionError) as error:
        if names.PREFIX.encode() not in msgspec.json.encode(template):
            return Untouched()  # some controllers' templates lack what a whole pod has
        return Refusal(message=f"the pod template cannot be read: {error}")
    if names.GRANTED in pod.annotations:
        return Refusal(
            message=f"{names.GRANTED} is {pod.annotations[names.GRANTED][:120]!r}; want no such "
            "annotation in a template: the webhook writes it on each pod; leave it out"
        )
    outcome = judge_new(pod, classes, rules=rules, namespace_labels=namespace_labels)
    if outcome is NOT_READ_YET:
        return Untouched(dialect=OURS)
    if isinstance(outcome, Patch):
        return Untouched(warnings=outcome.warnings, dialect=outcome.dialect)
    return outcome


def _at(body: Json, path: str) -> Iterator[tuple[str, object]]:
    """Find what stands at *path*, each with the path that leads there; nothing where it ends."""
    found: list[tuple[str, object]] = [("", body)]
    for step in path.split("."):
        found = [deeper for where, it in found for deeper in _step(where, it, step)]
    yield from ((where, it) for where, it in found if it is not None)


def _step(where: str, value: object, step: str) -> Iterator[tuple[str, object]]:
    prefix = f"{where}." if where else ""
    if isinstance(value, list) and step == "*":
        yield from ((f"{where}[{index}]", it) for index, it in enumerate(value))
    elif isinstance(value, dict):
        keys = value if step == "*" else [step]
        yield from ((f"{prefix}{key}", value[key]) for key in keys if key in value)


def _misplaced(body: Json, kind: WorkloadKind, review: Review) -> Iterator[str]:
    """Warn of requests on the workload itself, where nobody reads them."""
    metadata = body.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    for key in sorted(annotations) if isinstance(annotations, dict) else ():
        if key in names.REQUEST_KEYS:
            yield (
                f"metadata.annotations['{key}'] says nothing on a {review.kind}: write it in "
                f"{kind.templates[0]}.metadata.annotations"
            )
