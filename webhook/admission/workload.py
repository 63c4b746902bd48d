"""Decides on workloads by their pod templates: authors see errors on apply, and queues the MiB."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

import msgspec

from fracgpu import names
from fracgpu.errors import shorten
from fracgpu.request.bounds import MAX_ANNOTATIONS
from fracgpu.request.language import main_container
from fracgpu.units import Mib
from webhook.admission.bounds import (
    MAX_TEMPLATE_CONTAINERS,
    MAX_TEMPLATES,
    asks_in_json,
    check_bounds,
    check_size,
)
from webhook.admission.context import DecisionContext
from webhook.admission.mutation import (
    NOT_READ_YET,
    admit_create,
    grant_of_template,
    misplaced_among,
)
from webhook.admission.pod_edits import Edit, escape, own_node_rules, write_patch
from webhook.admission.review import (
    MalformedReviewError,
    Pod,
    Review,
    decode,
    kind_of,
    read_pod,
    specs,
)
from webhook.admission.template_grant import (
    of_the_author,
    read_template_grant,
    template_edits,
    write_template_grant,
)
from webhook.admission.verdict import OURS, AdmissionResult, Allowed, Denied, Patched
from webhook.admission_config import BUILT_IN_WORKLOADS, AdmissionConfig, WorkloadKind

# Far more than any workload has; what comes after them is judged pod by pod.
_MOST_PLACES: Final = 4 * MAX_TEMPLATES

_fields_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_list_decoder: Final = msgspec.json.Decoder(list[msgspec.Raw])
_NULL: Final = b"null"

_Place = tuple[str | int, ...]
_Fields = Mapping[str, msgspec.Raw]  # of an object


class _Unreadable(msgspec.Struct, frozen=True):
    """A pod template that cannot be read as a pod."""

    fault: str
    asks: bool  # for a share, as far as its bytes say


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
    beyond = check_size(review.object, review.old, what=f"the {review.kind.kind}")
    if beyond is not None:
        return beyond
    new = decode(_fields_decoder, review.object, what="request.object")
    old = _fields_of(review.old, what="request.oldObject")
    templates = _new_templates(new, old, kind)
    if templates is None:
        return _too_many(review)
    warnings = list(_misplaced(new, kind, review))
    asked = False
    for place, pod, _ in templates:
        where = _path_of(place)
        if isinstance(pod, _Unreadable):
            if pod.asks:
                return Denied(message=f"in {shorten(where)}: {pod.fault}")
            continue  # some controllers' templates lack what a pod has
        result = _judge_template(pod, context, on_each_node=review.kind.kind == "DaemonSet")
        if isinstance(result, Denied):
            return msgspec.structs.replace(result, message=f"in {shorten(where)}: {result.message}")
        asked = asked or result.dialect != Allowed().dialect
        warnings += [f"in {shorten(where)}: {warning}" for warning in result.warnings]
    return Allowed(warnings=tuple(warnings), dialect=OURS if asked else Allowed().dialect)


def grant_templates(review: Review, context: DecisionContext) -> AdmissionResult:
    """Return the decision that writes grants into the new pod templates of a workload.

    It refuses none: :func:`admit_workload` does, which is asked next. Objects that a controller
    made, such as the ReplicaSets of a Deployment, are left as they are: their controller compares
    them with its own template.

    Args:
        review: about a workload.
        context: of this review; its namespace or configuration opts in.

    Raises:
        MalformedReviewError: the kind is no known workload, or the body is no object.
    """
    kind = _kind(review, context.config)
    beyond = check_size(review.object, review.old, what=review.kind.kind)
    if beyond is not None or context.classes is None:
        return Allowed()
    return _with_grants(review, kind, context)


def _with_grants(review: Review, kind: WorkloadKind, context: DecisionContext) -> AdmissionResult:
    new = _fields_of(review.object, what="request.object")
    old = _fields_of(review.old, what="request.oldObject")
    templates = None if _has_controller(new) else _new_templates(new, old, kind)
    suspended = _is_suspended(new) or _is_suspended(old)
    edits: list[Edit] = []
    words, warnings = [], []
    for place, pod, before in templates or ():
        if isinstance(pod, _Unreadable):
            continue
        try:
            wanted = _amounts_for(pod, before, context, suspended=suspended)
        except MalformedReviewError:
            continue  # what was stored cannot be read
        found = template_edits(pod, wanted)
        if any(edit.op == "remove" for edit in found):
            warnings.append(
                f"in {_path_of(place)}: {names.GPU_MEM} that FracGPU had written is removed; apply "
                "the manifest once more if it states that amount itself"
            )
        if found:
            words.append(write_template_grant(wanted) or "nothing")
        at = "".join(f"/{escape(str(step))}" for step in place)
        edits += [msgspec.structs.replace(edit, path=f"{at}{edit.path}") for edit in found]
    if not edits:
        return Allowed()
    return Patched(patch=write_patch(edits), granted="; ".join(words), warnings=tuple(warnings))


def _amounts_for(
    pod: Pod, before: msgspec.Raw | None, context: DecisionContext, *, suspended: bool
) -> Mapping[str, Mib]:
    """Return the MiB that are written into each container of a template.

    While neither its request nor its selectors change, what was written stays, whatever the cluster
    has by now: applying a manifest again changes nothing. The same where a queue adds selectors to
    a suspended workload, whose resources may be immutable.
    """
    if names.GRANTED in pod.annotations or check_bounds(pod) is not None:
        return read_template_grant(pod.annotations)  # it is refused
    own = of_the_author(pod)
    if before is not None:
        old = read_pod(before, what="the old pod template")
        old_own, written = of_the_author(old), read_template_grant(old.annotations)
        asked = _asked(own)
        if asked == _asked(old_own) and (
            suspended
            or (written and own_node_rules(own.spec, ()) == own_node_rules(old_own.spec, ()))
        ):
            return written if asked[0] else {}
    granted = grant_of_template(own, context) if _is_on(context) else None
    if granted is None:
        return {}
    stated = {each.name for each in own.containers if names.GPU_MEM in each.amounts[0]}
    needs = granted.need.containers
    return {need.name: need.total_mib for need in needs if need.name not in stated}


def _is_on(context: DecisionContext) -> bool:
    label = context.namespace_labels.get(names.GRANT_TEMPLATES_LABEL)
    return context.config.grant_templates if label is None else label == "true"


def _asked(template: Pod) -> tuple[object, ...]:
    """Return what of a template decides on its grant, apart from its node selectors."""
    notes = {
        key: text
        for key, text in template.annotations.items()
        if key.startswith(names.PREFIX) and key != names.TEMPLATE_GRANT
    }
    containers = specs(template)
    main = main_container(template.annotations, containers)
    return (
        notes,
        main,
        [
            (spec.name, spec.kind, spec.limits.get(names.GPU_MEM), spec.requests.get(names.GPU_MEM))
            for spec in containers
        ],
    )


def _has_controller(fields: _Fields) -> bool:
    return any(
        bytes(value) == b"true" for _, value in _at(fields, "metadata.ownerReferences.*.controller")
    )


def _is_suspended(fields: _Fields) -> bool:
    return any(
        bytes(value) == b"true"
        for path in ("spec.suspend", "spec.runPolicy.suspend")  # the latter is Kubeflow's
        for _, value in _at(fields, path)
    )


def _too_many(review: Review) -> AdmissionResult:
    fault = (
        f"the {review.kind.kind} has more than {MAX_TEMPLATES} pod templates, or "
        f"{MAX_TEMPLATE_CONTAINERS} containers in them; want fewer"
    )
    return Denied(message=fault) if asks_in_json(review.object) else Allowed()


def _fields_of(body: msgspec.Raw | None, *, what: str) -> _Fields:
    """Return the fields of an object; none of what is none, or is no object."""
    if body is None or bytes(body)[:1] != b"{":
        return {}
    return decode(_fields_decoder, body, what=what)


def _new_templates(
    new: _Fields, old: _Fields, kind: WorkloadKind
) -> list[tuple[_Place, Pod | _Unreadable, msgspec.Raw | None]] | None:
    """Return the new and changed pod templates with their places, and what they were before.

    None where they, or the containers in them, are more than is judged.
    """
    found: list[tuple[_Place, Pod | _Unreadable, msgspec.Raw | None]] = []
    containers = 0
    for place, template, before in _changed(new, old, kind):
        pod: Pod | _Unreadable
        try:
            pod = read_pod(template, what="the pod template")
            containers += len(pod.containers)
        except MalformedReviewError as error:
            pod = _Unreadable(str(error), asks=asks_in_json(template))
        found.append((place, pod, before))
        if len(found) > MAX_TEMPLATES or containers > MAX_TEMPLATE_CONTAINERS:
            return None
    return found


def _changed(
    new: _Fields, old: _Fields, kind: WorkloadKind
) -> Iterator[tuple[_Place, msgspec.Raw, msgspec.Raw | None]]:
    for path in kind.templates:
        stored = dict(_at(old, path))
        for place, template in _at(new, path):
            before = stored.get(place)
            # The API server's encoding is canonical: structs in order, maps sorted by key.
            if before is None or bytes(template) != bytes(before):
                yield place, template, before


def _kind(review: Review, config: AdmissionConfig) -> WorkloadKind:
    for workload in (*BUILT_IN_WORKLOADS, *config.workloads):
        if (workload.group, workload.kind) == (review.kind.group, review.kind.kind):
            return workload
    raise MalformedReviewError(
        f"request.kind is {kind_of(review)}; want a workload: "
        f"{', '.join(each.kind for each in BUILT_IN_WORKLOADS)}, or a kind that the key "
        "'admission' of the ConfigMap lists"
    )


def _judge_template(pod: Pod, context: DecisionContext, *, on_each_node: bool) -> AdmissionResult:
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


def _at(fields: _Fields, path: str) -> Iterator[tuple[_Place, msgspec.Raw]]:
    """Yield the values at *path* with their places; nothing where the path does not exist."""
    first, *steps = path.split(".")
    found = list(_chosen((), fields, first))
    for step in steps:
        children = (child for place, value in found for child in _step(place, value, step))
        found = list(islice(children, _MOST_PLACES))
    yield from ((place, value) for place, value in found if bytes(value) != _NULL)


def _step(place: _Place, value: msgspec.Raw, step: str) -> Iterator[tuple[_Place, msgspec.Raw]]:
    if step == "*" and bytes(value)[:1] == b"[":
        items = decode(_list_decoder, value, what=_path_of(place))
        yield from (((*place, index), item) for index, item in enumerate(items))
    else:
        yield from _chosen(place, _fields_of(value, what=_path_of(place)), step)


def _chosen(place: _Place, fields: _Fields, step: str) -> Iterator[tuple[_Place, msgspec.Raw]]:
    keys = fields if step == "*" else [step]
    yield from (((*place, key), fields[key]) for key in keys if key in fields)


def _path_of(place: _Place) -> str:
    """Return a place as people write it: ``spec.replicatedJobs[0].template.spec.template``."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
    return "".join(steps).removeprefix(".")


def _misplaced(fields: _Fields, kind: WorkloadKind, review: Review) -> Iterator[str]:
    """Yield warnings about requests in the workload's own metadata, where they have no effect."""
    # A CronJob also has the metadata of its Jobs, above those of their pods.
    above = ("", "spec.jobTemplate.") if review.kind.kind == "CronJob" else ("",)
    for place in (
        f"{parent}metadata.{part}" for parent in above for part in ("annotations", "labels")
    ):
        found = (key for _, value in _at(fields, place) for key in _fields_of(value, what=place))
        for key, meant in misplaced_among(islice(found, MAX_ANNOTATIONS)).items():
            yield (
                f"{place}['{shorten(key)}'] has no effect on a {review.kind.kind}: "
                + (f"write {meant} in" if meant else "FracGPU reads")
                + f" {kind.templates[0]}.metadata.annotations"
            )
