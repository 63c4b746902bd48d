"""Decides on an update of a stored pod; it restores what the webhook had changed in it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from fracgpu import names
from fracgpu.cards.card_class import CardClass, SelectedNodes
from fracgpu.errors import RequestError
from fracgpu.k8s.node_affinity import NodeRules
from fracgpu.request.dialects import NAMES
from fracgpu.request.grant_note import GrantData, GrantNote, read_grant_note
from fracgpu.request.language import parse_request, refuse_misread_changes
from webhook.admission.bounds import check_bounds
from webhook.admission.claims import (
    claim_edits,
    refuse_unsupported_keys,
    specs_as_granted,
)
from webhook.admission.mutation import idle_warnings, refuse_misplaced
from webhook.admission.pod_edits import (
    Edit,
    node_edits,
    own_node_rules,
    removal_edits,
    toleration_edits,
    write_patch,
)
from webhook.admission.review import Pod, places
from webhook.admission.verdict import OURS, AdmissionResult, Allowed, Denied, Patched
from webhook.admission_config import AdmissionConfig

# A pod's request cannot change after creation; whether it may be moved can.
_FIXED_KEYS: Final = tuple(key for key in names.REQUEST_KEYS if key != names.REBALANCE)


def admit_update(
    old: Pod,
    new: Pod,
    *,
    user: str,
    config: AdmissionConfig,
    select: Callable[[NodeRules], SelectedNodes] | None = None,
    declared: Callable[[NodeRules], Sequence[CardClass]] | None = None,
) -> AdmissionResult:
    """Return the decision on an update of a stored pod.

    It depends on the cluster's state only where the pod, which is gated then, selects other nodes;
    *select* returns those, and None stands for a cluster that is not known. *declared* returns the
    classes of the pool catalogue for whose nodes pods may wait; None without a catalogue.

    The assignment is written by the Binding, a subresource, so no update may change it. Applying a
    manifest again reverts what the webhook changed at creation, which the API server would refuse
    for a stored pod: so those changes are made again.
    """
    try:
        _refuse_forgery(old, new, user=user, config=config)
        granted = read_grant_note(old.annotations.get(names.GRANTED, ""))
        _refuse_another_request(old, new, granted)
        asks_anew = _ours(old.annotations) != _ours(new.annotations)
        selects_anew = _selectors(old) != _selectors(new)
        beyond = check_bounds(new) if asks_anew or selects_anew else None
        if beyond is not None:
            return beyond
        changed = _changed(old.annotations, new.annotations)
        warnings = refuse_misplaced(changed, _changed(old.labels, new.labels))
        if asks_anew:
            request = parse_request(new.annotations, specs_as_granted(new))
            refuse_misread_changes(changed)
            warnings += () if request else idle_warnings(changed, new.spec)
        if selects_anew and granted is not None and select is not None:
            rules = own_node_rules(new.spec, granted.data.requires)
            if rules != own_node_rules(old.spec, granted.data.requires):
                selected, wait = select(rules), config.card_classes.wait
                if declared is not None:
                    # The catalogue says for which nodes it is worth to wait.
                    classes = (*selected.classes, *declared(rules))
                    selected, wait = replace(selected, classes=classes), False
                _refuse_unfit(selected, granted.data, wait=wait)
    except RequestError as error:
        return Denied(message=str(error))
    edits = () if granted is None else _put_back(new, granted)
    if granted is None or not edits:
        return Allowed(warnings=warnings)
    # Nobody vouches for a note that was stored while the webhook was away, and this is a label of
    # a metric.
    dialect = granted.data.dialect if granted.data.dialect in NAMES else OURS
    return Patched(
        patch=write_patch(edits), granted=granted.words, warnings=warnings, dialect=dialect
    )


def _refuse_forgery(old: Pod, new: Pod, *, user: str, config: AdmissionConfig) -> None:
    for keys, writer, may_write in (
        (
            (names.ASSIGNMENT, names.GRANTED, names.TERM, names.MOVE, names.RESIZED),
            "FracGPU",
            False,
        ),
        ((names.WIRED, names.APPLIED), "the node agent", user in config.agent_users),
        ((names.MOVED_BY, names.NOTICE), "the rebalancer", user in config.rebalancer_users),
    ):
        for key in () if may_write else keys:
            _refuse_change(old, new, key, wanted=f"no change: only {writer} writes it")


def _refuse_another_request(old: Pod, new: Pod, granted: GrantNote | None) -> None:
    for key in _FIXED_KEYS:
        wanted = "no change: a pod's request cannot change after creation"
        _refuse_change(old, new, key, wanted=wanted, hint="create a new pod")
    if granted is not None and granted.data.claim:
        refuse_unsupported_keys(new.annotations, old.annotations)


def _refuse_unfit(selected: SelectedNodes, granted: GrantData, *, wait: bool) -> None:
    """Raise if the nodes that a gated pod selects from now on have no card that fits its grant.

    Such a pod would wait for ever: a queue may still add to its selectors, but nobody can change
    its limits, which follow from the card class.
    """
    mib = granted.class_mib
    if granted.card_class:
        fits = any(each.name == granted.card_class for each in selected.classes)
        size = f"the class {granted.card_class}"
    elif mib is None:
        mib = max((container.mib for container in granted.containers.values()), default=0)
        fits, size = (
            any(each.largest_mib >= mib for each in selected.classes),
            f"{mib} MiB or more",
        )
    else:
        fits, size = any(each.capacity_mib == mib for each in selected.classes), f"{mib} MiB"
    if fits or (wait and not selected.classes):
        return
    raise RequestError(
        field=selected.field,
        found=selected.rules.words,
        wanted=f"nodes with a shared, healthy card of {size}, by which the pod's limits were set "
        "when it was created",
        hint="create the pod with its selectors, so that they decide which card it gets a share of",
    )


def _put_back(new: Pod, granted: GrantNote) -> tuple[Edit, ...]:
    """Return the edits that repeat what was changed when the pod was created."""
    data = granted.data
    edits = node_edits(new.spec.affinity, data.requires)
    edits += toleration_edits(new.spec.tolerations, data.tolerates)
    if len(data.schedulers) > 1 and new.spec.scheduler_name == data.schedulers[0]:
        edits.append(Edit(path="/spec/schedulerName", value=data.schedulers[1]))
    for pointer, container in places(new) if data.removed else ():
        edits += removal_edits(pointer, container, data.removed)
    if data.claim:
        edits += claim_edits(new, data.containers, data.claim)
    return tuple(edits)


def _refuse_change(old: Pod, new: Pod, key: str, *, wanted: str, hint: str = "") -> None:
    before, after = old.annotations.get(key), new.annotations.get(key)
    if before != after:
        found = "removed" if after is None else after
        raise RequestError(field=key, found=found, wanted=wanted, hint=hint)


def _selectors(pod: Pod) -> tuple[object, object]:
    """Return what selects nodes as it is written: hostile affinity is bounded before it is read."""
    return pod.spec.node_selector or {}, pod.spec.required_nodes


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> Mapping[str, str]:
    """Return what is new, or has another value than before."""
    return {key: text for key, text in now.items() if before.get(key) != text}


def _ours(annotations: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in annotations.items() if key.startswith(names.PREFIX)}
