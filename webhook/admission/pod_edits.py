"""What a grant changes in a pod: node affinity, card visibility, limits and requests.

Affinity: the grant's requirements are added to those the pod has.
Environment: NVIDIA's runtime trusts one variable; containers without a grant get it as "void".
Resources: the grant's amounts are written, and another system's resources are removed.
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
    """Return the requirements on node labels without which the grant cannot fit on a node.

    They are necessary, not sufficient: labels show what a node has, not what is free nor which of
    its cards has which model. The scheduler extender decides that.
    """
    needs = granted.need.containers
    wanted = [AddedRequirement(key=names.SHARE_LABEL, operator="In", values=("true",))]
    shares = [need.cards for need in needs if need.share is not None]
    if shares:
        assert granted.card_class is not None, "a share is a share of some class"  # noqa: S101
        key = f"{names.CARD_CLASS_LABEL_PREFIX}{granted.card_class.capacity_mib}"
        wanted.append(_more_than(key, max(shares) - 1))
    sizes = [need.mib for need in needs if need.share is None]
    if sizes:
        wanted.append(_more_than(names.CARD_MEMORY_LABEL, max(sizes) - 1))
    return tuple(wanted)


def node_edits(affinity: Affinity | None, wanted: Sequence[AddedRequirement]) -> list[Edit]:
    """Return the edits that add *wanted* to the pod's required node affinity.

    Terms are alternatives, so each one gets all of *wanted*. An empty term matches no node, nor
    does a selector without terms; both stay as they are, because a requirement added to them
    would make them match.
    """
    path = "/spec/affinity"
    new: object = {
        "nodeSelectorTerms": [{"matchExpressions": [_json(requirement) for requirement in wanted]}]
    }
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
        return [Edit(path=path, value=[_json(requirement) for requirement in wanted])]
    present = [
        (expression.key, expression.operator, tuple(expression.values or ()))
        for expression in term.match_expressions
    ]
    missing = [
        _json(requirement)
        for requirement in wanted
        if (requirement.key, requirement.operator, requirement.values) not in present
    ]
    return [Edit(path=f"{path}/-", value=requirement) for requirement in missing]


def _more_than(key: str, number: int) -> AddedRequirement:
    if number == 0:
        return AddedRequirement(key=key, operator="Exists")
    return AddedRequirement(key=key, operator="Gt", values=(str(number),))


def _json(requirement: AddedRequirement) -> dict[str, object]:
    plain: dict[str, object] = {"key": requirement.key, "operator": requirement.operator}
    return plain | ({"values": list(requirement.values)} if requirement.values else {})


_KEY: Final = names.ENV_VISIBLE_DEVICES

VOID: Final = "void"

# Neither exposes a card: "void" is the same as an unset variable, "none" injects only drivers.
# Source: NVIDIA container toolkit, documentation of NVIDIA_VISIBLE_DEVICES.
_HARMLESS: Final = (VOID, "none")


def places(pod: Pod) -> Iterator[tuple[str, Sequence[Container]]]:
    """Yield each list of containers with its JSON pointer."""
    yield "/spec/initContainers", pod.spec.init_containers or ()
    yield "/spec/containers", pod.spec.containers


def refuse_chosen_cards(pod: Pod) -> None:
    """Raise if a pod with a request also chooses cards itself, bypassing the scheduler.

    Raises:
        RequestError: a container sets the variable to a value that exposes a card.
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
    """Return the edits that keep containers without a grant from seeing all cards of the node.

    CUDA images set the variable to "all", and the runtime trusts it.
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
    return any(variable.name == _KEY for variable in container.env or ())


_GPU_MEM: Final = escape(names.GPU_MEM)

_GPU_SLOT: Final = escape(names.GPU_SLOT)


def resource_edits(pod: Pod, granted: Grant, removals: Mapping[str, Sequence[str]]) -> list[Edit]:
    """Return the edits that write a grant's MiB and slots into limits and requests.

    Args:
        pod: the pod with all containers of the grant.
        granted: the grant.
        removals: by container name, another system's resources to remove.
    """
    needs = {container.name: container for container in granted.need.containers}
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
    """Return edits that remove a dialect's resources, which no node offers."""
    return [
        Edit(op="remove", path=f"{path}/{which}/{escape(key)}")
        for which in ("limits", "requests")
        for key in gone
        if key in amounts(container, which)
    ]


def _amount_edits(path: str, container: Container, written: Mapping[str, str]) -> list[Edit]:
    """Return edits that add missing amounts; the grant has verified those that are present."""
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
