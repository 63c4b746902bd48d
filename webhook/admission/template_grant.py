"""The grant in a pod template: gpu-mem in limits and requests, for those who count templates.

The annotation ``fracgpu.io/template-grant`` records which of these amounts are ours and not the
author's, as ``train=20480, eval=8192`` in MiB: they give way when the request changes, and never
contradict it. It confers nothing, so nobody gains by writing it, and it needs no seal. What else a
grant changes in a pod is left to the pod's own admission.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from fracgpu import names
from fracgpu.request.bounds import MAX_CONTAINERS
from fracgpu.request.need import PodRequest
from fracgpu.units import Mib, parse_amount
from webhook.admission.pod_edits import Edit, escape
from webhook.admission.review import Container, Pod, Resources, places

_PAIR: Final = re.compile(r"([a-z0-9-]{1,63})=([1-9][0-9]{0,9})", re.ASCII)
_SEPARATOR: Final = ", "
_ANNOTATION: Final = f"/metadata/annotations/{escape(names.TEMPLATE_GRANT)}"


def read_template_grant(annotations: Mapping[str, str]) -> dict[str, Mib]:
    """Return what was written into each container of a template; what cannot be read is left."""
    text = annotations.get(names.TEMPLATE_GRANT)
    if text is None:
        return {}
    pairs = map(_PAIR.fullmatch, text.split(_SEPARATOR, MAX_CONTAINERS))
    return {pair[1]: Mib(int(pair[2])) for pair in pairs if pair is not None}


def write_template_grant(written: Mapping[str, Mib]) -> str:
    """Return the text of the annotation."""
    return _SEPARATOR.join(f"{name}={mib}" for name, mib in written.items())


def forget_edits(annotations: Mapping[str, str], *keys: str) -> list[Edit]:
    """Return the edits that remove these annotations from a pod that has some of them."""
    return [
        Edit(op="remove", path=f"/metadata/annotations/{escape(key)}")
        for key in keys
        if key in annotations
    ]


def with_limits_of(request: PodRequest, written: Mapping[str, Mib], *, kept: bool) -> PodRequest:
    """Return the request with the limits in *written*, or without them; the author's own stay."""
    slices = tuple(
        msgspec.structs.replace(part, stated_mib=written[part.container] if kept else None)
        if part.container in written and part.stated_mib in (None, written[part.container])
        else part
        for part in request.slices
    )
    return msgspec.structs.replace(request, slices=slices)


def of_the_author(template: Pod) -> Pod:
    """Return a template without the amounts that we wrote; the annotation stays."""
    written = read_template_grant(template.annotations)
    if not written:
        return template
    spec = template.spec
    spec = msgspec.structs.replace(
        spec,
        containers=[_own(each, written) for each in spec.containers],
        init_containers=[_own(each, written) for each in spec.init_containers or ()],
    )
    return msgspec.structs.replace(template, spec=spec)


def _own(container: Container, written: Mapping[str, Mib]) -> Container:
    mib = written.get(container.name)
    if mib is None or container.resources is None:
        return container
    limits, requests = (
        {key: amount for key, amount in amounts.items() if not _is_ours(key, amount, mib)}
        for amounts in container.amounts
    )
    return msgspec.structs.replace(
        container, resources=Resources(limits=dict(limits), requests=dict(requests))
    )


def _is_ours(key: str, amount: str, mib: Mib) -> bool:
    # The API server and operators may write 8000 as 8k.
    return key == names.GPU_MEM and parse_amount(amount) == mib


def template_edits(template: Pod, wanted: Mapping[str, Mib]) -> list[Edit]:
    """Return the edits after which exactly the amounts in *wanted* are ours.

    Args:
        template: as its author sent it, perhaps with what was written before.
        wanted: by container name; only containers for which the author states no gpu-mem.
    """
    before = read_template_grant(template.annotations)
    edits: list[Edit] = []
    for pointer, container in places(template):
        mib, old = wanted.get(container.name), before.get(container.name)
        path = f"{pointer}/resources"
        if mib is not None:
            edits += _written(path, container, mib)
        elif old is not None:
            edits += _removed(path, container, old)
    text = write_template_grant(wanted)
    if not wanted:
        edits += forget_edits(template.annotations, names.TEMPLATE_GRANT)
    elif template.annotations.get(names.TEMPLATE_GRANT) != text:
        edits.append(Edit(path=_ANNOTATION, value=text))
    return edits


def _written(path: str, container: Container, mib: Mib) -> list[Edit]:
    amounts = {names.GPU_MEM: str(mib)}
    if container.resources is None:
        return [Edit(path=path, value={"limits": amounts, "requests": amounts})]
    edits = []
    limits, requests = container.amounts
    for which, present in (("limits", limits), ("requests", requests)):
        if getattr(container.resources, which) is None:
            edits.append(Edit(path=f"{path}/{which}", value=amounts))
        elif not _is_ours(names.GPU_MEM, present.get(names.GPU_MEM, ""), mib):
            edits.append(Edit(path=f"{path}/{which}/{escape(names.GPU_MEM)}", value=str(mib)))
    return edits


def _removed(path: str, container: Container, mib: Mib) -> list[Edit]:
    limits, requests = container.amounts
    return [
        # A list or map that is empty afterwards was not there before.
        Edit(
            op="remove",
            path=f"{path}/{which}"
            if len(present) == 1
            else f"{path}/{which}/{escape(names.GPU_MEM)}",
        )
        for which, present in (("limits", limits), ("requests", requests))
        if _is_ours(names.GPU_MEM, present.get(names.GPU_MEM, ""), mib)
    ]
