"""What a decision depends on besides the object under review."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from fracgpu.cards.card_class import CardClass, SelectedNodes
from fracgpu.cards.pool_catalogue import NO_CATALOGUE, PoolCatalogue
from fracgpu.k8s.node_affinity import NodeRules
from fracgpu.request.grant_note import NO_SEAL, Seal
from webhook.admission_config import AdmissionConfig

NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})


class DecisionContext(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster, the rules and the namespace, as they are for one review.

    Attributes:
        classes: the cluster's card classes, largest free share first; None while unknown.
        select: returns the nodes, and their card classes, that a pod's selectors allow; None where
            no node is known by its labels, and selectors exclude none.
        pools: the pool catalogue.
        declared: returns the classes of the catalogue that a pod's selectors allow.
        config: the administrator's configuration.
        namespace_labels: of the object's namespace; they enable dialects.
        seal: signs the grant, so that nobody else can write it.
        claim: the name that a pod's ResourceClaim gets if it is granted something now; empty where
            pods get limits instead, which kubelet counts.
        claims_served: whether other pods get claims; then no pod may name one of ours.
        wiring_problem: why it is not known which of the two a pod gets; empty if it is.
    """

    classes: Sequence[CardClass] | None
    config: AdmissionConfig
    select: Callable[[NodeRules], SelectedNodes] | None = None
    pools: PoolCatalogue = NO_CATALOGUE
    declared: Callable[[NodeRules], Sequence[CardClass]] = lambda _: ()
    namespace_labels: Mapping[str, str] = NO_LABELS
    seal: Seal = NO_SEAL
    claim: str = ""
    claims_served: bool = False
    wiring_problem: str = ""
