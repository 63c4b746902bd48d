"""Decides on workloads by their pod templates, so that authors see errors on apply."""

from collections.abc import Iterator
from typing import Final

import msgspec

from fracgpu import names
from fracgpu.errors import shorten
from webhook.admission.bounds import MAX_TEMPLATES, asks_in_json, check_size
from webhook.admission.context import DecisionContext
from webhook.admission.mutation import NOT_READ_YET, admit_create, requests_among
from webhook.admission.pod_edits import own_node_rules
from webhook.admission.review import MalformedReviewError, Pod, Review, decode, kind_of, read_pod
from webhook.admission.verdict import OURS, AdmissionResult, Allowed, Denied, Patched
from webhook.admission_config import BUILT_IN_WORKLOADS, AdmissionConfig, WorkloadKind

_fields_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_list_decoder: Final = msgspec.json.Decoder(list[msgspec.Raw])
_NULL: Final = b"null"


def admit_workload(review: Review, context: DecisionContext) -> AdmissionResult:
    """Return the decision on a workload that is about to be stored, by its pod templates.

    A template that an update does not change is not checked again: it was admitted once, and its
    workload must remain free to scale and to be deleted.

    Args:
        review: about a workload.
        context: of this review; while it has no classes, only the syntax is checked.

    Raises:
        MalformedReviewError: the kind is no known workload, or the body is no object.
    """
    kind = _kind(review, context.config)
    beyond = check_size(review.object, review.old, what=f"the {review.kind}")
    if beyond is not None:
        return beyond
    decode(_fields_decoder, review.object, what="request.object")
    warnings = list(_misplaced(review.object, kind, review))
    asked = False
    for number, (where, template) in enumerate(_new_templates(review, kind)):
        if number == MAX_TEMPLATES:
            return _too_many(review)
        result = _judge_template(template, context, on_each_node=review.kind == "DaemonSet")
        if isinstance(result, Denied):
            return msgspec.structs.replace(result, message=f"in {shorten(where)}: {result.message}")
        asked = asked or result.dialect != Allowed().dialect
        warnings += [f"in {shorten(where)}: {warning}" for warning in result.warnings]
    return Allowed(warnings=tuple(warnings), dialect=OURS if asked else Allowed().dialect)


def _too_many(review: Review) -> AdmissionResult:
    fault = f"the {review.kind} has more than {MAX_TEMPLATES} pod templates; want fewer"
    return Denied(message=fault) if asks_in_json(review.object) else Allowed()


def _new_templates(review: Review, kind: WorkloadKind) -> Iterator[tuple[str, msgspec.Raw]]:
    """Yield the new and changed pod templates with their paths."""
    for path in kind.templates:
        before = dict(_at(review.old, path)) if review.old else {}
        for where, template in _at(review.object, path):
            # The API server's encoding is canonical: structs in order, maps sorted by key.
            if where not in before or bytes(template) != bytes(before[where]):
                yield where, template


def _kind(review: Review, config: AdmissionConfig) -> WorkloadKind:
    for workload in (*BUILT_IN_WORKLOADS, *config.workloads):
        if (workload.group, workload.kind) == (review.group, review.kind):
            return workload
    raise MalformedReviewError(
        f"request.kind is {kind_of(review)}; want a workload: Deployment, StatefulSet, DaemonSet, "
        "ReplicaSet, ReplicationController, Job, CronJob, or a kind that the key 'admission' of "
        "the ConfigMap lists"
    )


def _judge_template(
    template: msgspec.Raw, context: DecisionContext, *, on_each_node: bool
) -> AdmissionResult:
    try:
        pod = read_pod(template, what="the pod template")
    except MalformedReviewError as error:
        if not asks_in_json(template):
            return Allowed()  # some controllers' templates lack what a pod has
        return Denied(message=str(error))
    if names.GRANTED in pod.annotations:
        return Denied(
            message=f"{names.GRANTED} is {pod.annotations[names.GRANTED][:120]!r}; want no such "
            "annotation in a template: the webhook writes it on each pod; leave it out"
        )
    result = admit_create(pod, context)
    if result is NOT_READ_YET:
        return Allowed(dialect=OURS)
    if isinstance(result, Patched):
        more = _waiting_later(pod, context) if on_each_node else ()
        return Allowed(warnings=(*result.warnings, *more), dialect=result.dialect)
    return result


def _waiting_later(pod: Pod, context: DecisionContext) -> tuple[str, ...]:
    """Return a warning if a DaemonSet makes pods for nodes without cards, where they only wait."""
    if context.select is None:
        return ()
    selected = context.select(own_node_rules(pod.spec, ()))
    if not selected.without:
        return ()
    return (
        f"a DaemonSet makes a pod for each node that it selects, also for {selected.names_without} "
        "without a shared, healthy card: these pods wait until it has one; add the nodeSelector "
        f'{names.SHARE_LABEL}: "true"',
    )


def _at(body: msgspec.Raw, path: str) -> Iterator[tuple[str, msgspec.Raw]]:
    """Yield the values at *path* with their full paths; nothing where the path does not exist."""
    found = [("", body)]
    for step in path.split("."):
        found = [child for where, value in found for child in _step(where, value, step)]
    yield from ((where, value) for where, value in found if bytes(value) != _NULL)


def _step(where: str, value: msgspec.Raw, step: str) -> Iterator[tuple[str, msgspec.Raw]]:
    prefix = f"{where}." if where else ""
    match bytes(value)[:1]:
        case b"[" if step == "*":
            places = decode(_list_decoder, value, what=where)
            yield from ((f"{where}[{index}]", item) for index, item in enumerate(places))
        case b"{":
            fields = decode(_fields_decoder, value, what=where or "request.object")
            keys = fields if step == "*" else [step]
            yield from ((f"{prefix}{key}", fields[key]) for key in keys if key in fields)
        case _:
            return


def _misplaced(body: msgspec.Raw, kind: WorkloadKind, review: Review) -> Iterator[str]:
    """Yield warnings about requests in the workload's own metadata, where they have no effect."""
    # A CronJob also has the metadata of its Jobs, above those of their pods.
    above = ("", "spec.jobTemplate.") if review.kind == "CronJob" else ("",)
    for place in (
        f"{parent}metadata.{part}" for parent in above for part in ("annotations", "labels")
    ):
        found = [where.removeprefix(f"{place}.") for where, _ in _at(body, f"{place}.*")]
        for key in requests_among(found):
            yield (
                f"{place}['{key}'] has no effect on a {review.kind}: write {key.lower()} in "
                f"{kind.templates[0]}.metadata.annotations"
            )
