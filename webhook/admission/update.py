"""An update of a stored pod: what nobody may change, and what its author could not repeat; pure."""

from collections.abc import Mapping
from typing import Final

from fracgpu import names
from fracgpu.errors import RequestError
from fracgpu.request.grant_note import GrantNote, read_grant_note
from fracgpu.request.language import parse_request
from webhook.admission.bounds import check_bounds
from webhook.admission.patch import Edit, escape
from webhook.admission.pod import Pod, amounts, specs
from webhook.admission.pod_edits import node_edits, places
from webhook.admission.verdict import OURS, AdmissionResult, Allowed, Denied, Patched
from webhook.admission_config import AdmissionConfig

# What a pod asks is settled when it is created; how it may be moved is not.
_FIXED_KEYS: Final = tuple(key for key in names.REQUEST_KEYS if key != names.REBALANCE)


def admit_update(old: Pod, new: Pod, *, user: str, config: AdmissionConfig) -> AdmissionResult:
    """Judge an update of a stored pod; it needs no knowledge of the cluster.

    The assignment comes with the Binding, which is another resource, so nobody may touch it here.
    Whoever applies a manifest twice repeats what it said before we changed it, and the API server
    takes no such change of a stored pod: so what we changed is put back.
    """
    try:
        for key in (names.ASSIGNMENT, names.GRANTED, names.TERM):
            _refuse_change(old, new, key, wanted="no change: only FracGPU writes it")
        if user not in config.agent_users:
            wanted = "no change: only the node agent writes it"
            _refuse_change(old, new, names.WIRED, wanted=wanted)
        for key in _FIXED_KEYS:
            wanted = "no change: what a pod asks is settled when it is created"
            _refuse_change(old, new, key, wanted=wanted, hint="create a new pod")
        if _ours(old.annotations) != _ours(new.annotations):
            beyond = check_bounds(new)
            if beyond is not None:
                return beyond
            parse_request(new.annotations, specs(new))
    except RequestError as error:
        return Denied(message=str(error))
    granted = read_grant_note(old.annotations.get(names.GRANTED, ""))
    edits = () if granted is None else _put_back(new, granted)
    if granted is None or not edits:
        return Allowed()
    dialect = granted.data.dialect or OURS
    return Patched(edits=edits, granted=granted.words, dialect=dialect)


def _put_back(new: Pod, granted: GrantNote) -> tuple[Edit, ...]:
    """Change again what was changed when the pod was created; of the stored one no spec is read."""
    data = granted.data
    edits = node_edits(new.spec.affinity, data.requires)
    if len(data.schedulers) > 1 and new.spec.scheduler_name == data.schedulers[0]:
        edits.append(Edit(path="/spec/schedulerName", value=data.schedulers[1]))
    return (*edits, *_removals(new, data.removed))


def _removals(new: Pod, removed: Mapping[str, tuple[str, ...]]) -> list[Edit]:
    """Take the other system's resources off again."""
    return [
        Edit(op="remove", path=f"{path}/{index}/resources/{which}/{escape(key)}")
        for path, containers in places(new)
        for index, it in enumerate(containers)
        for which in ("limits", "requests")
        for key in removed.get(it.name, ())
        if key in amounts(it, which)
    ]


def _refuse_change(old: Pod, new: Pod, key: str, *, wanted: str, hint: str = "") -> None:
    before, after = old.annotations.get(key), new.annotations.get(key)
    if before != after:
        found = "removed" if after is None else after
        raise RequestError(field=key, found=found, wanted=wanted, hint=hint)


def _ours(annotations: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in annotations.items() if key.startswith(names.PREFIX)}
