"""What a grant changes in a pod: node affinity, tolerations, card visibility, limits and requests.

Affinity: the grant's requirements are added to those the pod has.
Tolerations: those for the taints of the pools that could hold it are added.
Environment: NVIDIA's runtime trusts one variable; containers without a grant get it as "void".
Resources: the grant's amounts are written, and another system's resources are removed.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final

import msgspec

from fracgpu import names
from fracgpu.cards.card_class import DEFAULT_VENDOR, CardClass
from fracgpu.cards.pool_catalogue import NO_CATALOGUE, PoolCatalogue
from fracgpu.errors import RequestError
from fracgpu.k8s.affinity import NodeTermJson
from fracgpu.k8s.node_affinity import (
    NodeExpression,
    NodeRules,
    Toleration,
    node_terms,
    selector_expressions,
)
from fracgpu.request.grant import Grant
from fracgpu.request.grant_note import AddedRequirement
from fracgpu.request.language import required_isolation
from fracgpu.request.need import ContainerNeed, PodNeed
from fracgpu.units import Mib
from webhook.admission.review import (
    Affinity,
    Container,
    EnvVar,
    Pod,
    PodSpec,
    places,
)

_encoder: Final = msgspec.json.Encoder()


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """One JSONPatch operation; ``add`` also replaces an existing member (RFC 6902 4.1).

    Attributes:
        path: a JSON pointer.
        value: what msgspec encodes; ignored for ``remove``.
    """

    path: str
    value: object = None
    op: str = "add"


def escape(key: str) -> str:
    """Return *key* escaped for a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def write_patch(edits: Sequence[Edit]) -> bytes:
    """Return a JSONPatch in JSON."""
    return _encoder.encode(edits)


def read_patch(patch: bytes) -> tuple[Edit, ...]:
    """Return the edits of a patch that this module wrote."""
    return msgspec.json.decode(patch, type=tuple[Edit, ...])


_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_TERMS: Final = f"/spec/affinity/nodeAffinity/{_REQUIRED}/nodeSelectorTerms"


def requirements(
    granted: Grant, *, pools: PoolCatalogue = NO_CATALOGUE, classes: Sequence[CardClass] = ()
) -> tuple[AddedRequirement, ...]:
    """Return the requirements on node labels without which the grant cannot fit on a node.

    They are necessary, not sufficient: labels show what a node has, not what is free nor which of
    its cards has which model. The scheduler extender decides that. An autoscaler has only labels to
    choose a pool by, so with a catalogue of pools the labels also exclude what a pool cannot have.

    Args:
        granted: the grant.
        pools: the catalogue.
        classes: of the cluster's cards.
    """
    needs = granted.need.containers
    wanted = [AddedRequirement(key=names.SHARE_LABEL, operator="In", values=("true",))]
    if (mechanism := required_isolation(granted.need.isolation)) is not None:
        label = f"{names.ISOLATION_LABEL_PREFIX}{mechanism.value}"
        wanted.append(AddedRequirement(key=label, operator="In", values=("true",)))
    shares = [need.cards for need in needs if need.share is not None]
    if shares:
        assert granted.card_class is not None, "a share is a share of some class"  # noqa: S101
        wanted += _of_class(granted.card_class, most=max(shares))
    sizes = [need.mib for need in needs if need.share is None]
    if sizes:
        wanted.append(_more_than(names.CARD_MEMORY_LABEL, max(sizes) - 1))
    if not shares and pools:
        most = max(need.cards for need in needs)
        wanted += [_more_than(names.CARD_COUNT_LABEL, most - 1)] if most > 1 else []
        others = pools.of_other_models(
            granted.need.models, classes, granted.need.vendor or DEFAULT_VENDOR
        )
        if others:
            label = names.CARD_CLASS_LABEL
            wanted.append(AddedRequirement(key=label, operator="NotIn", values=others))
    return tuple(wanted)


def _of_class(card_class: CardClass, *, most: int) -> list[AddedRequirement]:
    if not card_class.name:
        key = f"{names.CARD_CLASS_LABEL_PREFIX}{card_class.capacity_mib}"
        return [_more_than(key, most - 1)]
    key = names.CARD_CLASS_LABEL
    wanted = [AddedRequirement(key=key, operator="In", values=(card_class.name,))]
    return [*wanted, _more_than(names.CARD_COUNT_LABEL, most - 1)] if most > 1 else wanted


def tolerations(
    granted: Grant, pools: PoolCatalogue, classes: Sequence[CardClass]
) -> tuple[Toleration, ...]:
    """Return what lets a pod with a grant onto the tainted nodes of the pools that could hold it.

    Args:
        granted: the grant.
        pools: the catalogue, which has the taints.
        classes: of the cluster's cards.
    """
    of: tuple[str, ...]
    if granted.card_class is not None:
        of = (granted.card_class.name,)
    else:
        mib = max(need.mib for need in granted.need.containers)
        others = pools.of_other_models(
            granted.need.models, classes, granted.need.vendor or DEFAULT_VENDOR
        )
        measured = {each.name for each in classes if each.largest_mib >= mib}
        of = tuple(
            each.name
            for each in pools.classes
            if each.name not in others and (each.mib >= mib or each.name in measured)
        )
    return tuple(
        Toleration(
            key=taint.key,
            operator="Equal" if taint.value else "Exists",
            value=taint.value,
            effect=taint.effect,
        )
        for taint in pools.taints(of)
    )


def toleration_edits(
    present: Sequence[Toleration] | None, wanted: Sequence[Toleration]
) -> list[Edit]:
    """Return the edits that add the tolerations that a pod does not have."""
    if not wanted:
        return []
    path = "/spec/tolerations"
    missing = [
        {field: value for field, value in msgspec.structs.asdict(each).items() if value}
        for each in wanted
        if each not in (present or ())
    ]
    if present is None:
        return [Edit(path=path, value=missing)] if missing else []
    return [Edit(path=f"{path}/-", value=each) for each in missing]


def own_node_rules(spec: PodSpec, added: Collection[AddedRequirement]) -> NodeRules:
    """Return which nodes a pod selects, without the requirements that :func:`node_edits` added.

    A term that has nothing else was added entirely: then the pod had no required affinity, which
    allows every node.
    """
    ours = {
        NodeExpression(key=each.key, operator=each.operator, values=each.values) for each in added
    }
    required = spec.required_nodes
    terms = None if required is None else node_terms(required)
    if terms is not None and ours:
        left = tuple(tuple(each for each in term if each not in ours) for term in terms)
        all_added = any(term and not kept for term, kept in zip(terms, left, strict=True))
        terms = None if all_added else left
    return NodeRules(selector=selector_expressions(spec.node_selector or {}), terms=terms)


def forget_node_edits(spec: PodSpec, gone: Collection[AddedRequirement]) -> list[Edit]:
    """Return the edits that take requirements that :func:`node_edits` added from every term."""
    if not gone:
        return []
    required = spec.required_nodes
    found = {(each.key, each.operator, each.values) for each in gone}
    return [
        Edit(op="remove", path=f"{_TERMS}/{index}/matchExpressions/{place}")
        for index, term in enumerate((required and required.node_selector_terms) or ())
        for place, each in reversed(tuple(enumerate(term.match_expressions or ())))
        if (each.key, each.operator, tuple(each.values or ())) in found
    ]


def node_edits(affinity: Affinity | None, wanted: Sequence[AddedRequirement]) -> list[Edit]:
    """Return the edits that add *wanted* to the pod's required node affinity.

    Terms are alternatives, so each one gets all of *wanted*. An empty term matches no node, nor
    does a selector without terms; both stay as they are, because a requirement added to them
    would make them match.
    """
    if not wanted:
        return []
    path = "/spec/affinity"
    new: object = {"nodeSelectorTerms": [{"matchExpressions": wanted}]}
    if affinity is None:
        return [Edit(path=path, value={"nodeAffinity": {_REQUIRED: new}})]
    path += "/nodeAffinity"
    if affinity.node_affinity is None:
        return [Edit(path=path, value={_REQUIRED: new})]
    selector = affinity.node_affinity.required
    if selector is None:
        return [Edit(path=f"{path}/{_REQUIRED}", value=new)]
    edits = []
    for index, term in enumerate(selector.node_selector_terms or ()):
        if term.match_expressions or term.match_fields:
            edits += _term_edits(f"{_TERMS}/{index}/matchExpressions", term, wanted)
    return edits


def _term_edits(path: str, term: NodeTermJson, wanted: Sequence[AddedRequirement]) -> list[Edit]:
    if term.match_expressions is None:
        return [Edit(path=path, value=wanted)]
    present = [
        (expression.key, expression.operator, tuple(expression.values or ()))
        for expression in term.match_expressions
    ]
    missing = [
        requirement
        for requirement in wanted
        if (requirement.key, requirement.operator, requirement.values) not in present
    ]
    return [Edit(path=f"{path}/-", value=requirement) for requirement in missing]


def _more_than(key: str, number: int) -> AddedRequirement:
    if number == 0:
        return AddedRequirement(key=key, operator="Exists")
    return AddedRequirement(key=key, operator="Gt", values=(str(number),))


_KEY: Final = names.ENV_VISIBLE_DEVICES

VOID: Final = names.NO_VISIBLE_DEVICES

# Neither exposes a card: "void" is the same as an unset variable, "none" injects only drivers.
# Source: NVIDIA container toolkit, documentation of NVIDIA_VISIBLE_DEVICES.
_HARMLESS: Final = (VOID, "none")

_name_of: Final = attrgetter("name")


def refuse_chosen_cards(pod: Pod) -> None:
    """Raise if a pod with a request also chooses cards or their limits itself.

    Raises:
        RequestError: a container sets a variable by which a vendor's runtime gives it cards, or
            that a hook of NVIDIA's toolkit reads as the limit of a card's memory.
    """
    for container in pod.containers:
        env = container.env
        if not env or names.ENV_CARDS_AND_LIMITS.isdisjoint(map(_name_of, env)):
            continue  # nearly every container
        for variable in env:
            name = variable.name
            if name not in names.ENV_CARDS_AND_LIMITS:
                continue
            chooses = name in (_KEY, names.ENV_AMD_VISIBLE_DEVICES)
            if name == _KEY and variable.value in _HARMLESS:
                continue
            what = "chooses the cards, and shows them" if chooses else "limits the memory"
            raise RequestError(
                field=f"env {name} of container '{container.name}'",
                found=variable.value or "no plain value",
                wanted=f"no such variable: FracGPU {what}",
                hint="leave it out",
            )


_GPU_MEM: Final = escape(names.GPU_MEM)

_GPU_SLOT: Final = escape(names.GPU_SLOT)


def container_edits(
    pod: Pod,
    need: PodNeed,
    removals: Mapping[str, Sequence[str]],
    *,
    written_mib: Mapping[str, Mib],
    void_others: bool,
    amounts: bool = True,
) -> list[Edit]:
    """Return the edits of the containers: amounts with a grant, no card without one.

    Args:
        pod: the pod with all containers of the grant.
        need: what it is granted, whose MiB and slots are written into limits and requests.
        removals: by container name, the resources to remove.
        written_mib: by container name, what we had written into the pod or its template.
        void_others: keep containers without a grant from seeing all cards of the node: CUDA images
            set the variable to "all", and the runtime trusts it.
        amounts: write them; not where a claim stands in their place.
    """
    granted = {each.name: each for each in need.containers}
    edits: list[Edit] = []
    for pointer, container in places(pod):
        one = granted.get(container.name)
        if one is not None:
            if removals:
                edits += removal_edits(pointer, container, removals)
            if amounts:
                edits += _amount_edits(pointer, container, one, written_mib.get(one.name))
        elif void_others:
            edits += _void_edits(f"{pointer}/env", container.env)
    return edits


def removal_edits(
    pointer: str, container: Container, removals: Mapping[str, Sequence[str]]
) -> Iterator[Edit]:
    """Yield edits that remove a dialect's resources, which no node offers, from one container."""
    gone, resources = removals.get(container.name, ()), container.resources
    if gone and resources is not None:
        for which, present in (("limits", resources.limits), ("requests", resources.requests)):
            for key in gone:
                if key in (present or ()):
                    path = f"{pointer}/resources/{which}/{escape(key)}"
                    yield Edit(op="remove", path=path)


def _amount_edits(
    pointer: str, container: Container, need: ContainerNeed, written_mib: Mib | None
) -> list[Edit]:
    """Return edits that add missing amounts; the grant has verified those that are present.

    What we had written for an earlier grant, which this one need not repeat, is replaced.
    """
    path, resources, total_mib = f"{pointer}/resources", container.resources, need.total_mib
    outdated = written_mib is not None and written_mib != total_mib
    mib, slots = str(total_mib), str(need.cards)
    written = {names.GPU_MEM: mib, names.GPU_SLOT: slots}
    if resources is None:
        return [Edit(path=path, value={"limits": written, "requests": written})]
    edits = []
    for which, present in (("limits", resources.limits), ("requests", resources.requests)):
        if present is None:
            edits.append(Edit(path=f"{path}/{which}", value=written))
            continue
        if outdated or names.GPU_MEM not in present:
            edits.append(Edit(path=f"{path}/{which}/{_GPU_MEM}", value=mib))
        if names.GPU_SLOT not in present:
            edits.append(Edit(path=f"{path}/{which}/{_GPU_SLOT}", value=slots))
    return edits


_VOIDED: Final = {"name": _KEY, "value": VOID}


def _void_edits(path: str, env: Sequence[EnvVar] | None) -> tuple[Edit, ...]:
    if env is None:
        return (Edit(path=path, value=[_VOIDED]),)
    if _KEY in map(_name_of, env):
        return ()
    return (Edit(path=f"{path}/-", value=_VOIDED),)
