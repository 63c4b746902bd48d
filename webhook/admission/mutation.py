"""Decides on a new pod: the edits that write its grant, or the reason why it is denied."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from fracgpu import names
from fracgpu.cards.card_class import DEFAULT_VENDOR, CardClass, SelectedNodes, Vendor
from fracgpu.device_claims.claims import refuse_too_large
from fracgpu.errors import RequestError, listed, shorten
from fracgpu.k8s.container import app_containers
from fracgpu.k8s.node_affinity import (
    ANY_NODE,
    NAME_FIELD,
    NodeExpression,
    NodeRules,
)
from fracgpu.request.dialects import (
    PodForDialects,
    Translation,
    enabled_dialects,
    in_authors_words,
    translate_request,
)
from fracgpu.request.grant import Grant, grant
from fracgpu.request.grant_note import (
    GrantData,
    GrantNote,
    describe_grant,
    limits_of,
    read_grant_note,
)
from fracgpu.request.language import (
    ITEMS,
    MEANT_BY_RESOURCE,
    as_annotation,
    refuse_misread_changes,
    stated_main_container,
)
from fracgpu.request.need import PodRequest
from webhook.admission.bounds import check_bounds, requests_cards
from webhook.admission.claims import (
    added_up,
    adds_up,
    claim_edits,
    limits_to_remove,
    refuse_others_claims,
    refuse_unsupported,
    side_by_side,
    specs_as_granted,
    warnings_about,
)
from webhook.admission.context import DecisionContext
from webhook.admission.limit_range import blame_limit_range
from webhook.admission.pod_edits import (
    Edit,
    container_edits,
    escape,
    forget_node_edits,
    node_edits,
    own_node_rules,
    refuse_chosen_cards,
    requirements,
    toleration_edits,
    tolerations,
    write_patch,
)
from webhook.admission.review import NO_META, Pod, PodSpec, specs
from webhook.admission.template_grant import forget_edits, read_template_grant, with_limits_of
from webhook.admission.verdict import (
    OTHER,
    OURS,
    UNAVAILABLE,
    AdmissionResult,
    Allowed,
    Denied,
    Patched,
)
from webhook.admission_config import AdmissionConfig

_DEFAULT_SCHEDULERS: Final = ("", "default-scheduler")

_WRITTEN_LATER: Final = frozenset(names.RESERVED_KEYS) - {names.GRANTED}
_ABOUT_A_SHARE: Final = (names.MOVE_REQUESTED, names.MOVE_GRACE, names.MOVE_READY, names.RESIZE)
_NOTHING_YET: Final = GrantData(containers={})
_MOST_GRANTED: Final = 120  # characters of a grant that an error quotes
# Values of the label of a pod with a grant. The entries of deploy/webhook.yaml for other systems'
# keys leave out pods with the first, so that the API server need not convert those for their match
# conditions, and not the second: it repeats only calls that it made.
_OWN_KEYS: Final = "true"
_TRANSLATED: Final = "translated"

NOT_READ_YET: Final = Denied(
    message="the FracGPU webhook has not read the cluster's cards yet; try again in a few seconds",
    code=UNAVAILABLE,
    reason="ServiceUnavailable",
)


def admit_create(pod: Pod, context: DecisionContext) -> AdmissionResult:
    """Return the decision on a pod that is about to be created, with its grant sealed.

    Idempotent: deciding on the patched pod, in the same request, changes nothing.

    Args:
        pod: as sent by the API server.
        context: of this review.
    """
    beyond = check_bounds(pod)
    if beyond is not None:
        return beyond
    annotations = pod.annotations
    try:
        misplaced = refuse_misplaced(annotations, pod.labels)
        refuse_misread_changes(annotations)
        _refuse_reserved_keys(annotations)
        translation = _translate(pod, context)
        said = _said(annotations)
        sealed = _sealed(said, context)
        if context.claim or context.claims_served:
            refuse_others_claims(pod, sealed)
        if translation.request is None:
            _refuse_forged(annotations, said, None)
            idle = idle_warnings(annotations, pod.spec)
            return Allowed(warnings=(*misplaced, *translation.warnings, *idle))
        if context.wiring_problem:
            return Denied(message=f"of the pod's namespace, {context.wiring_problem}", dialect=OURS)
        _refuse_unfit_spec(pod.spec, translation.foreign_scheduler, context.config)
        refuse_chosen_cards(pod)
        if context.classes is None:
            return NOT_READ_YET
        selected = _selected(pod, context, said)
        granted = _grant(pod, translation, context, selected, sealed=sealed)
        _refuse_no_claim(pod, translation, granted, context)
        if sealed is None or sealed.data.claim:  # what a claim was named for stays
            _refuse_forged(annotations, said, granted, origin=translation.origin)
    except RequestError as error:
        reason = blame_limit_range(error, annotations)
        return Denied(message=str(reason), dialect=OURS if requests_cards(pod) else OTHER)
    return _decision(pod, translation, granted, context, misplaced, sealed=sealed)


def _refuse_no_claim(
    pod: Pod, translation: Translation, granted: Grant, context: DecisionContext
) -> None:
    """Raise if no claim can stand for a grant."""
    if context.claim:
        refuse_unsupported(pod, translation.annotations)
        refuse_too_large(granted.need)


def _sealed(said: GrantNote | None, context: DecisionContext) -> GrantNote | None:
    """Return the pod's grant if the webhook wrote it in this request, for this wiring."""
    if said is None or bool(said.data.claim) != bool(context.claim):
        return None
    return said if context.seal.holds(said) else None


def _decision(
    pod: Pod,
    translation: Translation,
    granted: Grant,
    context: DecisionContext,
    misplaced: tuple[str, ...],
    *,
    sealed: GrantNote | None,
) -> AdmissionResult:
    """Return the decision that writes a grant; *sealed* is the one that the pod has already."""
    before, annotations = _NOTHING_YET if sealed is None else sealed.data, pod.annotations
    claim = context.claim if sealed is None else before.claim
    # The shortlist of a claim says where its pod can run; an open claim says which cards would do.
    classes = context.classes or ()
    required = () if claim else requirements(granted, pools=context.pools, classes=classes)
    removals: Mapping[str, tuple[str, ...]] = translation.removals
    shared = [container.name for container in granted.need.containers] if claim else []
    if claim:
        removals = limits_to_remove(pod, shared, removals)
    schedulers, about_scheduler = _schedulers(
        pod, context.config, foreign=translation.foreign_scheduler, with_claim=bool(claim)
    )
    if sealed is not None and describe_grant(granted).repeats(sealed):
        note, text = sealed, annotations[names.GRANTED]
    else:
        note = describe_grant(
            granted,
            dialect=translation.dialect or before.dialect,
            origin=translation.origin,
            requires=required,
            tolerates=tolerations(granted, context.pools, classes) if context.pools else (),
            schedulers=before.schedulers or schedulers,
            removed={**before.removed, **removals},
            claim=claim,
        )
        text = context.seal.write(note)
    edits = [
        *_metadata_edits(
            pod,
            {**translation.annotations, **_vendor_key(granted), names.GRANTED: text},
            {names.GRANTED: _TRANSLATED if note.data.dialect else _OWN_KEYS},
        ),
        *forget_edits(annotations, names.TEMPLATE_GRANT, names.MOVE_REQUESTED),
        *container_edits(
            pod,
            granted.need,
            removals,
            written_mib={**read_template_grant(annotations), **limits_of(before)},
            void_others=context.config.void_others,
            amounts=not claim,
        ),
        *(claim_edits(pod, shared, claim) if claim else ()),
        *forget_node_edits(pod.spec, set(before.requires).difference(note.data.requires)),
        *node_edits(pod.spec.affinity, required),
        *toleration_edits(pod.spec.tolerations, note.data.tolerates),
    ]
    if schedulers:
        edits.append(Edit(path="/spec/schedulerName", value=schedulers[1]))
    # A pod translated earlier keeps foreign annotations whose resources are gone: warnings about
    # them would mislead.
    taken_over = not translation.dialect and before.dialect
    warnings = (
        *misplaced,
        *(() if taken_over else translation.warnings),
        *_unnamed_warnings(pod),
        *_move_warnings(annotations),
        *about_scheduler,
        *_card_warnings(granted),
        *(warnings_about(granted.need) if claim else ()),
    )
    dialect = translation.dialect or OURS
    if not edits:
        return Allowed(warnings=warnings, dialect=dialect)
    return Patched(patch=write_patch(edits), granted=note.words, warnings=warnings, dialect=dialect)


def _vendor_key(granted: Grant) -> Mapping[str, str]:
    """Return the annotation that others read the vendor from; without it the cards are NVIDIA's."""
    vendor = granted.need.vendor
    return {names.VENDOR: vendor.value} if vendor is Vendor.AMD else {}


def grant_of_template(template: Pod, context: DecisionContext) -> Grant | None:
    """Return the grant of a pod template's request in our own language.

    None if it has no such request, or one that is refused.
    """
    if context.classes is None:
        return None
    try:
        translation = _translate(template, context)
        if translation.request is None or translation.dialect:
            return None
        selected = _selected(template, context, None)
        return _grant(template, translation, context, selected, sealed=None)
    except RequestError:
        return None


def refuse_written_keys(pod: Pod, *, with_claims: bool) -> Denied | None:
    """Return the denial of a new pod that has what only FracGPU writes; None if it has none.

    For pods whose requests are ignored.
    """
    try:
        annotations = pod.annotations
        _refuse_reserved_keys(annotations)
        _refuse_forged(annotations, _said(annotations), None)
        if with_claims:
            refuse_others_claims(pod, None)
    except RequestError as error:
        return Denied(message=str(error))
    return None


def _selected(pod: Pod, context: DecisionContext, said: GrantNote | None) -> SelectedNodes | None:
    """Return the nodes that the pod's own selectors allow; None if it has none.

    What an earlier review added is not the pod's own.
    """
    spec = pod.spec
    if context.select is None or not (spec.node_selector or spec.required_nodes):
        return None
    rules = own_node_rules(spec, () if said is None else said.data.requires)
    return None if rules == ANY_NODE else context.select(rules)


def _grant(
    pod: Pod,
    translation: Translation,
    context: DecisionContext,
    selected: SelectedNodes | None,
    *,
    sealed: GrantNote | None,
) -> Grant:
    """Return the grant that we sealed a moment ago if still possible, else one by the rule.

    Between two reviews of one pod another class may have become the freest, or the rule may have
    changed. An error names the keys that the pod's author wrote.
    """
    assert translation.request is not None  # noqa: S101 - called only for pods with a request
    if context.claim and adds_up(translation.request):
        return _grant_side_by_side(pod, translation, context, selected, sealed=sealed)
    if sealed is None:
        return _grant_by_rule(pod, translation, context, selected)
    assert context.classes is not None  # noqa: S101 - and once they are known
    request, known = translation.request, context.classes
    if context.pools and context.config.card_classes.wait:
        known = (*known, *context.declared(ANY_NODE))
    again = _granted_before(request, known, sealed)
    if again is not None and (
        context.claim
        or selected is None
        or _granted_before(request, selected.classes, sealed) is not None
    ):
        return again
    # Another webhook may have chosen other nodes since, or changed what the pod asks for.
    request = with_limits_of(request, limits_of(sealed.data), kept=False)
    anew = _grant_by_rule(
        pod, msgspec.structs.replace(translation, request=request), context, selected
    )
    no_node = anew.waits_for and not anew.for_pool
    return again if again and (no_node or describe_grant(anew).repeats(sealed)) else anew


def _grant_by_rule(
    pod: Pod, translation: Translation, context: DecisionContext, selected: SelectedNodes | None
) -> Grant:
    """Return a pod's grant by the rule.

    What we wrote into its template is preferred, but no reason to refuse the pod.
    """
    assert translation.request is not None  # noqa: S101 - as in _grant
    assert context.classes is not None  # noqa: S101 - as in _grant
    request = translation.request
    classes, rule = context.classes, context.config.card_classes
    declared = context.declared if rule.wait and context.pools else None
    in_template = read_template_grant(pod.annotations)
    if in_template:
        with suppress(RequestError):
            preferred = with_limits_of(request, in_template, kept=True)
            return grant(preferred, classes, rule=rule, selected=selected, declared=declared)
        request = with_limits_of(request, in_template, kept=False)
    try:
        return grant(request, classes, rule=rule, selected=selected, declared=declared)
    except RequestError as error:
        if selected is None or not _is_for_one_node(selected.rules):
            raise in_authors_words(error, translation.authors, own=pod.annotations) from error
        # A DaemonSet's controller ends each round of creating pods at the first one that is refused
        # (kubernetes, pkg/controller/daemon, syncNodes). So this one waits, as a pod does that asks
        # for a resource which its node lacks, and the others run.
        elsewhere = _grant_by_rule(pod, translation, context, None)
        return msgspec.structs.replace(elsewhere, waits_for=str(error))


def _grant_side_by_side(
    pod: Pod,
    translation: Translation,
    context: DecisionContext,
    selected: SelectedNodes | None,
    *,
    sealed: GrantNote | None,
) -> Grant:
    """Return the grant of a pod whose init containers hold their cards beside the others."""
    assert translation.request is not None  # noqa: S101 - as in _grant
    all_at_once = msgspec.structs.replace(translation, request=side_by_side(translation.request))
    try:
        return _grant(pod, all_at_once, context, selected, sealed=sealed)
    except RequestError as error:
        try:
            elsewhere = msgspec.structs.replace(context, claim="")
            _grant(pod, translation, elsewhere, selected, sealed=None)
        except RequestError:
            raise error from None
        raise added_up(error) from error


def _is_for_one_node(rules: NodeRules) -> bool:
    """Report whether a pod is for a certain node, by its name alone, as those of a DaemonSet are.

    Source: kubernetes, pkg/controller/daemon/util, ReplaceDaemonSetPodNodeNameNodeAffinity.
    """
    match rules.terms:
        case ((NodeExpression(key=key, operator="In", values=(_,), by_field=True),),):
            return key == NAME_FIELD
        case _:
            return False


def _granted_before(
    request: PodRequest, classes: Sequence[CardClass], sealed: GrantNote
) -> Grant | None:
    # A grant of AMD's cards has the annotation by now.
    request = msgspec.structs.replace(request, vendor=request.vendor or DEFAULT_VENDOR)
    # Classes differ in size, which alone rules out nearly all others.
    size_mib = sealed.data.class_mib
    for card_class in classes:
        if size_mib is not None and card_class.capacity_mib != size_mib:
            continue
        try:
            again = grant(request, [card_class])
        except RequestError:
            continue
        if describe_grant(again).repeats(sealed):
            return again
    return None


def _translate(pod: Pod, context: DecisionContext) -> Translation:
    labels, settings = context.namespace_labels, context.config.dialects
    enabled = enabled_dialects(labels, cluster=settings.dialects)
    pieces = PodForDialects(
        containers=specs_as_granted(pod) if pod.spec.resource_claims else specs(pod),
        annotations=pod.annotations,
        labels=pod.labels,
        namespace_labels=labels,
        scheduler_name=pod.spec.scheduler_name,
    )
    found = translate_request(pieces, enabled=enabled.dialects, options=settings.options)
    if not enabled.warnings:
        return found
    return msgspec.structs.replace(found, warnings=(*enabled.warnings, *found.warnings))


def _refuse_reserved_keys(annotations: Mapping[str, str]) -> None:
    written = _WRITTEN_LATER.intersection(annotations)
    if written:
        key = min(written, key=names.RESERVED_KEYS.index)
        raise RequestError(
            field=key,
            found=annotations[key],
            wanted="no such annotation: only FracGPU writes it, after the pod is created",
            hint="leave it out, as kubectl debug --copy-to does with --profile=general",
        )


def _said(annotations: Mapping[str, str]) -> GrantNote | None:
    """Return the grant that the pod already has, or None if it has none with data."""
    text = annotations.get(names.GRANTED)
    return None if text is None else read_grant_note(text)


def _refuse_forged(
    annotations: Mapping[str, str],
    said: GrantNote | None,
    granted: Grant | None,
    *,
    origin: str = "",
) -> None:
    """Raise if the pod already has a grant that differs from the one it gets.

    Raises:
        RequestError: the pod has another grant, or one without data.
    """
    text = annotations.get(names.GRANTED)
    if text is None:
        return
    note = None if granted is None else describe_grant(granted, origin=origin)
    if said is None or note is None or not note.repeats(said):
        raise RequestError(
            field=names.GRANTED,
            found=text,
            wanted="no such annotation: only the webhook writes it"
            + (f", here '{shorten(note.words, limit=_MOST_GRANTED)}'" if note else ""),
            hint="leave it out",
        )


def _refuse_unfit_spec(spec: PodSpec, foreign: str, config: AdmissionConfig) -> None:
    """Raise if a pod with a request cannot be placed by FracGPU.

    Raises:
        RequestError: it names its node, is for Windows, or keeps the *foreign* scheduler that it
            names.
    """
    if spec.node_name:
        raise RequestError(
            field="spec.nodeName",
            found=spec.node_name,
            wanted="none: a pod with a share of a card has its node and card chosen together",
            hint="use a nodeSelector or node affinity",
        )
    if spec.os is not None and spec.os.name == "windows":
        raise RequestError(
            field="spec.os.name",
            found=spec.os.name,
            wanted="linux: FracGPU shares the cards of Linux nodes only",
        )
    if foreign and not config.scheduler_name:
        raise RequestError(
            field="spec.schedulerName",
            found=foreign,
            wanted="a scheduler that asks FracGPU's extender: this cluster's administrator leaves "
            "each pod its own",
            hint="leave it out",
        )


def _metadata_edits(
    pod: Pod, annotations: Mapping[str, str], labels: Mapping[str, str]
) -> list[Edit]:
    if pod.metadata is NO_META:
        return [Edit(path="/metadata", value={"annotations": annotations, "labels": labels})]
    edits = []
    for field, present, written in (
        ("annotations", pod.metadata.annotations, annotations),
        ("labels", pod.metadata.labels, labels),
    ):
        if present is None:
            edits.append(Edit(path=f"/metadata/{field}", value=written))
            continue
        for key, text in written.items():
            if present.get(key) != text:
                edits.append(Edit(path=f"/metadata/{field}/{escape(key)}", value=text))
    return edits


def _schedulers(
    pod: Pod, config: AdmissionConfig, *, foreign: str, with_claim: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the scheduler that a pod names and the one that it gets, if another; and warnings."""
    named, ours = pod.spec.scheduler_name, config.scheduler_name
    if not ours or named == ours:
        return (), ()
    # With a claim there is no scheduler of ours: a pod that names it would wait for ever.
    if named in _DEFAULT_SCHEDULERS or (with_claim and named == names.SCHEDULER_NAME):
        return (named, ours), ()
    if foreign:
        return (named, ours), (
            f"spec.schedulerName was '{foreign}', which does not know FracGPU's cards; it is "
            f"{ours} now, so that scheduler's queues and groups do not apply",
        )
    able = "allocates ResourceClaims" if with_claim else "asks FracGPU's extender"
    return (), (
        f"spec.schedulerName is {named[:80]!r}, which was left as it is: the pod gets its card "
        f"only if that scheduler {able}, as {ours} does",
    )


def _unnamed_warnings(pod: Pod) -> tuple[str, ...]:
    """Return a warning if an item without a name might be meant for another container.

    None about a pod that a controller makes: the author of its template was warned.
    """
    unnamed = [key for key in ITEMS if "=" not in pod.annotations.get(key, "=")]
    if not unnamed or len(pod.spec.containers) == 1 or pod.metadata.owner_references:
        return ()
    containers = specs(pod)
    apps = app_containers(containers)
    if len(apps) == 1 or stated_main_container(pod.annotations, containers):
        return ()
    key, text = unnamed[0], pod.annotations[unnamed[0]]
    return (
        f"{key} is for container '{apps[0]}', the first of {listed(apps, limit=_MOST_SHOWN)}; "
        f'for another write its name, as in {key}: "{apps[1]}={shorten(text.strip())}"',
    )


def _move_warnings(annotations: Mapping[str, str]) -> tuple[str, ...]:
    if names.MOVE_REQUESTED not in annotations:
        return ()
    # Each replacement of a pod with such a template would be moved again.
    return (
        f"{names.MOVE_REQUESTED} has no effect in a new pod or a template: annotate a pod that "
        "runs",
    )


def idle_warnings(annotations: Mapping[str, str], spec: PodSpec) -> tuple[str, ...]:
    """Return a warning if *annotations*, of a pod without a request, are about moves or resizes.

    A pod that names claims of its own may hold cards by them, and be moved.
    """
    found = [key for key in _ABOUT_A_SHARE if key in annotations]
    if not found or spec.resource_claims:
        return ()
    have = "have" if len(found) > 1 else "has"
    return (
        f"{', '.join(found)} {have} no effect: the pod requests no share of a card; add "
        f"{names.FRACTION} or {names.MEMORY} to a new pod",
    )


def _card_warnings(granted: Grant) -> tuple[str, ...]:
    """Return warnings about a card that the cluster does not have, or may not have."""
    card_class, lacking = granted.card_class, granted.waits_for
    if granted.for_pool:
        named = f" with {card_class.name}" if card_class is not None and card_class.name else ""
        return (
            "no node can hold the pod now, and it waits for one of a pool of the catalogue"
            f"{named}: {lacking}",
        )
    if lacking:
        return (f"the pod waits for something that the cluster does not have now: {lacking}",)
    if card_class is not None and not card_class.measured:
        return (
            f"only node labels report cards that share {card_class.capacity_mib} MiB; "
            "the pod waits until FracGPU's agent reports one",
        )
    return ()


_MOST_SHOWN: Final = 80
_AFTER_DOMAIN: Final = re.compile("[./]")
# Our domain, misspelt: as it begins, or made of its letters, if of more than fpga has. The match
# conditions of the webhook's entries know the second only before a key that asks for an amount.
_SLIP: Final = re.compile(
    rf"(?!{re.escape(names.PREFIX)})(?i:fracgpu|f[racgpu-]{{4,8}}([.][a-z.]*)?/)"
)
# What people write.
_MEANT: Final = names.POD_KEYS - {*names.RESERVED_KEYS, names.TEMPLATE_GRANT}


def refuse_misplaced(annotations: Mapping[str, str], labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return warnings about labels under our prefix, which have no effect.

    Raises:
        RequestError: a label would be a request as an annotation, also with our domain misspelt, or
            an annotation would be ours in lower case, or with our whole prefix. (The API server
            accepts capitals in an annotation's prefix.)
    """
    for key in sorted(filter(_SLIP.match, annotations)):
        meant, in_capitals = _meant(key), key.lower().startswith(names.PREFIX)
        if meant or in_capitals:  # else somebody else's
            raise RequestError(
                field=f"annotation {key[:_MOST_SHOWN]}",
                found=annotations[key],
                wanted=f"{names.PREFIX} in small letters"
                if in_capitals
                else f"a key that begins with {names.PREFIX}",
                hint=f"did you mean {meant}?" if meant else "",
            )
    ours = [key for key in labels if key.startswith(names.PREFIX) or _meant(key)]
    if labels.get(names.GRANTED) in (_OWN_KEYS, _TRANSLATED) and names.GRANTED in annotations:
        ours.remove(names.GRANTED)
    ours.sort()
    for key in ours:
        small = key.lower() if key.startswith(names.PREFIX) else _meant(key)
        if small in names.POD_KEYS or small in MEANT_BY_RESOURCE:
            written = as_annotation(small, labels[key])
            raise RequestError(
                field=f"label {key}",
                found=labels[key],
                wanted="no such label: a request is read from the pod's annotations",
                hint="leave it out"
                if small in names.RESERVED_KEYS
                else f"write the annotation {written}",
            )
    if not ours:
        return ()
    many = f" and {len(ours) - 1} more" if len(ours) > 1 else ""
    return (f"label {ours[0][:_MOST_SHOWN]}{many} has no effect: FracGPU reads annotations",)


def _meant(key: str) -> str:
    """Return the key of ours that ``FracGPU.io/cards`` or ``fragpu/cards`` stands for, if any."""
    small = key.lower()
    whole = small.startswith(names.PREFIX)
    if not whole and not _SLIP.match(small):
        return ""
    meant = names.PREFIX + _AFTER_DOMAIN.split(small)[-1]
    meant = MEANT_BY_RESOURCE.get(meant, meant)
    return meant if meant in (names.POD_KEYS if whole else _MEANT) else ""


def misplaced_among(keys: Iterable[str]) -> Mapping[str, str]:
    """Return those of *keys* that are ours, or a slip for a request, and the request that is meant.

    It is empty where none is.
    """
    found = {key: _meant(key) for key in keys}
    return {
        key: meant if meant in names.REQUEST_KEYS else ""
        for key, meant in sorted(found.items())
        if meant or key.startswith(names.PREFIX)
    }
