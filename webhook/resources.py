"""A container's limits and requests: what a grant writes there, and what it takes away."""

from collections.abc import Mapping, Sequence
from typing import Final

from fracgpu import names
from fracgpu.request.grant import Grant
from webhook.admission.patch import Edit, escape
from webhook.admission.pod import Container, Pod, amounts
from webhook.environment import places

_GPU_MEM: Final = escape(names.GPU_MEM)
_GPU_SLOT: Final = escape(names.GPU_SLOT)


def resource_edits(pod: Pod, granted: Grant, removals: Mapping[str, Sequence[str]]) -> list[Edit]:
    """Write a grant's MiB and slots into limits and requests, and take *removals* out of them.

    Args:
        pod: with every container that was granted something.
        granted: what.
        removals: container name to the resources of another system that it asked for.
    """
    needs = {it.name: it for it in granted.need.containers}
    edits = []
    for path, containers in places(pod):
        for index, container in enumerate(containers):
            if container.name in needs:
                need = needs[container.name]
                written = {names.GPU_MEM: str(need.total_mib), names.GPU_SLOT: str(need.cards)}
                where = f"{path}/{index}/resources"
                edits += _removal_edits(where, container, removals.get(container.name, ()))
                edits += _amount_edits(where, container, written)
    return edits


def _removal_edits(path: str, container: Container, gone: Sequence[str]) -> list[Edit]:
    """Take a dialect's resources off, or kube-scheduler waits for what no node offers."""
    return [
        Edit(op="remove", path=f"{path}/{which}/{escape(key)}")
        for which in ("limits", "requests")
        for key in gone
        if key in amounts(container, which)
    ]


def _amount_edits(path: str, container: Container, written: Mapping[str, str]) -> list[Edit]:
    """Write amounts where they are absent; where they are present the grant agreed with them."""
    resources = container.resources
    if resources is None:
        return [Edit(path=path, value={"limits": written, "requests": written})]
    edits = []
    for which, present in (("limits", resources.limits), ("requests", resources.requests)):
        if present is None:
            edits.append(Edit(path=f"{path}/{which}", value=written))
            continue
        for key, escaped in ((names.GPU_MEM, _GPU_MEM), (names.GPU_SLOT, _GPU_SLOT)):
            if key not in present:
                edits.append(Edit(path=f"{path}/{which}/{escaped}", value=written[key]))
    return edits
