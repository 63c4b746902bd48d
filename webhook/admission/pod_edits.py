"""What a grant changes in a pod: node affinity, card visibility, limits and requests.

Affinity: what a grant requires of a node is added so that nothing required before is lost.
Environment: NVIDIA's runtime believes one variable, so a container without a grant gets it void.
Resources: what a grant writes into limits and requests, and what it takes away.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from fracgpu import names
from fracgpu.errors import RequestError
from fracgpu.request.grant import Grant
from fracgpu.request.grant_note import AddedRequirement
from webhook.admission.patch import Edit, escape
from webhook.admission.pod import Affinity, Container, NodeSelector, NodeSelectorTerm, Pod, amounts

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def requirements(granted: Grant) -> tuple[AddedRequirement, ...]:
    """Give what the labels of a node must say for the grant to have any chance there.

    Labels say what a node has, not what is free, nor which of its cards has which model: the
    scheduler's extender decides that. So these may be too weak, and are never too strong.
    """
    needs = granted.need.containers
    wanted = [AddedRequirement(key=names.SHARE_LABEL, operator="In", values=("true",))]
    shares = [it.cards for it in needs if it.share is not None]
    if shares:
        assert granted.card_class is not None, "a share is a share of some class"  # noqa: S101
        key = f"{names.CARD_CLASS_LABEL_PREFIX}{granted.card_class.capacity_mib}"
        wanted.append(_more_than(key, max(shares) - 1))
    sizes = [it.mib for it in needs if it.share is None]
    if sizes:
        wanted.append(_more_than(names.CARD_MEMORY_LABEL, max(sizes) - 1))
    return tuple(wanted)


def node_edits(affinity: Affinity | None, wanted: Sequence[AddedRequirement]) -> list[Edit]:
    """Require *wanted* of every node that the pod's affinity allowed so far.

    Terms are alternatives, so each one gets all of *wanted*. A term without conditions matches no
    node, and so does a selector without terms: adding to those would open what was shut.
    """
    path = "/spec/affinity"
    new: object = {"nodeSelectorTerms": [{"matchExpressions": [_json(it) for it in wanted]}]}
    if affinity is None:
        return [Edit(path=path, value={"nodeAffinity": {_REQUIRED: new}})]
    path += "/nodeAffinity"
    if affinity.node_affinity is None:
        return [Edit(path=path, value={_REQUIRED: new})]
    path += f"/{_REQUIRED}"
    selector = affinity.node_affinity.required
    if selector is None:
        return [Edit(path=path, value=new)]
    return _selector_edits(f"{path}/nodeSelectorTerms", selector, wanted)


def _selector_edits(
    path: str, selector: NodeSelector, wanted: Sequence[AddedRequirement]
) -> list[Edit]:
    edits = []
    for index, term in enumerate(selector.node_selector_terms or ()):
        if term.match_expressions or term.match_fields:
            edits += _term_edits(f"{path}/{index}/matchExpressions", term, wanted)
    return edits


def _term_edits(
    path: str, term: NodeSelectorTerm, wanted: Sequence[AddedRequirement]
) -> list[Edit]:
    if term.match_expressions is None:
        return [Edit(path=path, value=[_json(it) for it in wanted])]
    present = [(it.key, it.operator, tuple(it.values or ())) for it in term.match_expressions]
    missing = [_json(it) for it in wanted if (it.key, it.operator, it.values) not in present]
    return [Edit(path=f"{path}/-", value=it) for it in missing]


def _more_than(key: str, number: int) -> AddedRequirement:
    if number == 0:
        return AddedRequirement(key=key, operator="Exists")
    return AddedRequirement(key=key, operator="Gt", values=(str(number),))


def _json(requirement: AddedRequirement) -> dict[str, object]:
    plain: dict[str, object] = {"key": requirement.key, "operator": requirement.operator}
    return plain | ({"values": list(requirement.values)} if requirement.values else {})


_KEY: Final = names.ENV_VISIBLE_DEVICES

VOID: Final = "void"

# Neither gives a card away: "void" means as if the variable were not set, "none" drivers alone.
# Source: NVIDIA container toolkit, documentation of NVIDIA_VISIBLE_DEVICES.
_HARMLESS: Final = (VOID, "none")


def places(pod: Pod) -> Iterator[tuple[str, Sequence[Container]]]:
    """Give each list of containers with its JSON pointer."""
    yield "/spec/initContainers", pod.spec.init_containers or ()
    yield "/spec/containers", pod.spec.containers


def refuse_chosen_cards(pod: Pod) -> None:
    """Refuse a pod with a request that also chooses cards past the scheduler.

    Raises:
        RequestError: a container sets the variable to anything that shows it a card.
    """
    for _, containers in places(pod):
        for container in containers:
            for variable in container.env or ():
                if variable.name == _KEY and variable.value not in _HARMLESS:
                    raise RequestError(
                        field=f"env {_KEY} of container '{container.name}'",
                        found=variable.value or "no plain value",
                        wanted="no such variable: FracGPU chooses the cards, and shows them",
                        hint="leave it out",
                    )


def void_edits(pod: Pod, granted: Collection[str]) -> list[Edit]:
    """Keep every container that is not *granted* anything from seeing all cards of the node.

    CUDA images set the variable to "all", and a runtime that trusts it would obey.
    """
    edits = []
    for path, containers in places(pod):
        for index, container in enumerate(containers):
            if container.name in granted or _is_set(container):
                continue
            variable = {"name": _KEY, "value": VOID}
            if container.env is None:
                edits.append(Edit(path=f"{path}/{index}/env", value=[variable]))
            else:
                edits.append(Edit(path=f"{path}/{index}/env/-", value=variable))
    return edits


def _is_set(container: Container) -> bool:
    return any(it.name == _KEY for it in container.env or ())


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
