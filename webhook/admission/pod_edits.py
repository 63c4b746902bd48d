"""Node affinity: what a grant requires of a node, added so that nothing required before is lost."""

from collections.abc import Sequence
from typing import Final

from fracgpu import names
from fracgpu.request.grant import Grant
from fracgpu.request.grant_note import Requirement
from webhook.admission.patch import Edit
from webhook.admission.pod import Affinity, NodeSelector, Term

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def requirements(granted: Grant) -> tuple[Requirement, ...]:
    """Give what the labels of a node must say for the grant to have any chance there.

    Labels say what a node has, not what is free, nor which of its cards has which model: the
    scheduler's extender decides that. So these may be too weak, and are never too strong.
    """
    needs = granted.need.containers
    wanted = [Requirement(key=names.SHARE_LABEL, operator="In", values=("true",))]
    shares = [it.cards for it in needs if it.share is not None]
    if shares:
        assert granted.card_class is not None, "a share is a share of some class"  # noqa: S101
        key = f"{names.CARD_CLASS_LABEL_PREFIX}{granted.card_class.capacity_mib}"
        wanted.append(_more_than(key, max(shares) - 1))
    sizes = [it.mib for it in needs if it.share is None]
    if sizes:
        wanted.append(_more_than(names.CARD_MEMORY_LABEL, max(sizes) - 1))
    return tuple(wanted)


def node_edits(affinity: Affinity | None, wanted: Sequence[Requirement]) -> list[Edit]:
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


def _selector_edits(path: str, selector: NodeSelector, wanted: Sequence[Requirement]) -> list[Edit]:
    edits = []
    for index, term in enumerate(selector.node_selector_terms or ()):
        if term.match_expressions or term.match_fields:
            edits += _term_edits(f"{path}/{index}/matchExpressions", term, wanted)
    return edits


def _term_edits(path: str, term: Term, wanted: Sequence[Requirement]) -> list[Edit]:
    if term.match_expressions is None:
        return [Edit(path=path, value=[_json(it) for it in wanted])]
    present = [(it.key, it.operator, tuple(it.values or ())) for it in term.match_expressions]
    missing = [_json(it) for it in wanted if (it.key, it.operator, it.values) not in present]
    return [Edit(path=f"{path}/-", value=it) for it in missing]


def _more_than(key: str, number: int) -> Requirement:
    if number == 0:
        return Requirement(key=key, operator="Exists")
    return Requirement(key=key, operator="Gt", values=(str(number),))


def _json(requirement: Requirement) -> dict[str, object]:
    plain: dict[str, object] = {"key": requirement.key, "operator": requirement.operator}
    return plain | ({"values": list(requirement.values)} if requirement.values else {})
