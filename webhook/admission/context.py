"""What a decision depends on besides the object under review."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from fracgpu.cards.card_class import CardClass
from fracgpu.request.grant_note import NO_SEAL, Seal
from webhook.admission_config import AdmissionConfig

NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})


class DecisionContext(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster, the rules and the namespace, as they are for one review.

    Attributes:
        classes: the cluster's card classes, largest free share first; None while unknown.
        config: the administrator's configuration.
        namespace_labels: of the object's namespace; they enable dialects.
        seal: signs the grant, so that nobody else can write it.
    """

    classes: Sequence[CardClass] | None
    config: AdmissionConfig
    namespace_labels: Mapping[str, str] = NO_LABELS
    seal: Seal = NO_SEAL
