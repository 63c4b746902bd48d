"""The annotation ``fracgpu.io/granted``: words for people and, on the next line, sealed data.

The wording may change at any time. The data are for the webhook, which sees a pod again within one
request (reinvocation) and when its author applies it once more. The seal proves that the webhook
wrote the data; it is valid for as long as one request can last.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Annotated, Final, TypedDict, Unpack

import msgspec

from fracgpu import names
from fracgpu.k8s.container import ContainerKind, ContainerSpec
from fracgpu.k8s.node_affinity import Toleration
from fracgpu.request.grant import Grant, describe
from fracgpu.request.need import ContainerNeed, PodNeed
from fracgpu.units import Mib, share_of

SEAL_LIFETIME: Final = timedelta(seconds=60)  # --request-timeout of kube-apiserver, by default
CLOCK_SKEW: Final = timedelta(seconds=5)  # between the clocks of two replicas
_SEAL_BYTES: Final = 16
_CLASS_KEY: Final = '"cardClass"'
_FROM: Final = "; in other words: "


_Most = Annotated[str, msgspec.Meta(pattern="^[1-9][0-9]{0,17}(Mi|/[1-9][0-9]{0,17})?$")]


class GrantedAmounts(msgspec.Struct, frozen=True):
    """What one container was granted on each of its cards.

    Attributes:
        most: how much it may use where it can be limited, as MiB or as a share of the card.
    """

    cards: int
    mib: int
    cores: int = 0
    most: _Most | msgspec.UnsetType = msgspec.UNSET

    def limit_on(self, capacity_mib: Mib) -> Mib:
        """Return how much it may use of a card of that size, if it can be limited there."""
        if self.most is msgspec.UNSET:
            return Mib(self.mib)
        if self.most.endswith("Mi"):
            return Mib(int(self.most.removesuffix("Mi")))
        return share_of(Fraction(self.most), capacity_mib=capacity_mib)


class AddedRequirement(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node selector requirement that was added to the pod."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class GrantData(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The data of the annotation.

    Attributes:
        containers: what each container was granted.
        class_mib: shareable MiB of the class that shares are shares of, None without any share.
        card_class: its name in the pool catalogue; empty without one.
        for_pool: no node could hold it when it was granted, but one of a pool can.
        dialect: the dialect of the pod's request, empty for our own keys.
        requires: node selector requirements that were added.
        tolerates: tolerations that were added.
        schedulers: the scheduler that the pod named and the one it names now, if it was changed.
        removed: container name to the resources that were removed from it.
        claim: the ResourceClaim that the pod names in the place of limits; empty without one.
        at: when it was written, in UTC.
        seal: the seal of all other fields and the words.
    """

    containers: dict[str, GrantedAmounts]
    class_mib: int | None = None
    card_class: str = ""
    for_pool: bool = False
    dialect: str = ""
    requires: tuple[AddedRequirement, ...] = ()
    tolerates: tuple[Toleration, ...] = ()
    schedulers: tuple[str, ...] = ()
    removed: dict[str, tuple[str, ...]] = {}
    claim: str = ""
    at: str = ""
    seal: str = ""


class Changes(TypedDict, total=False):
    """The fields of `GrantData` for what was changed on the pod."""

    requires: tuple[AddedRequirement, ...]
    tolerates: tuple[Toleration, ...]
    schedulers: tuple[str, ...]
    removed: dict[str, tuple[str, ...]]
    claim: str


class GrantNote(msgspec.Struct, frozen=True, kw_only=True):
    """The annotation, parsed or about to be written."""

    words: str
    data: GrantData

    def repeats(self, other: GrantNote) -> bool:
        """Report whether both grant the same, whatever the wording."""
        mine, theirs = self.data, other.data
        return (mine.class_mib, mine.card_class, mine.containers) == (
            theirs.class_mib,
            theirs.card_class,
            theirs.containers,
        )


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """Seals what the webhook writes, and verifies seals.

    Attributes:
        key: a secret that only the replicas of the webhook share.
        also: further valid keys: replicas may seal with the previous or the next one.
        scope: what the seal is valid for: the pod's namespace.
        now: the time of the admission review, in UTC.
    """

    key: bytes = b""
    also: tuple[bytes, ...] = ()
    scope: str = ""
    now: datetime = datetime(1970, 1, 1, tzinfo=UTC)

    def write(self, granted: GrantNote) -> str:
        """Return the text of the annotation, dated and sealed."""
        at = msgspec.to_builtins(self.now.replace(microsecond=0))
        dated = msgspec.structs.replace(granted.data, at=at, seal="")
        seal = self._over(granted.words, msgspec.json.encode(dated), self.key)
        sealed = msgspec.json.encode(msgspec.structs.replace(dated, seal=seal))
        return f"{granted.words}\n{sealed.decode()}"

    def holds(self, granted: GrantNote) -> bool:
        """Report whether the webhook wrote it, for this namespace and within its lifetime."""
        data = granted.data
        try:
            written = datetime.fromisoformat(data.at)
            age = self.now - written
        except (ValueError, TypeError):
            return False
        if not -CLOCK_SKEW <= age <= SEAL_LIFETIME:
            return False
        unsealed = msgspec.json.encode(msgspec.structs.replace(data, seal=""))
        seal = data.seal.encode()
        seals = [self._over(granted.words, unsealed, key) for key in (self.key, *self.also)]
        return any(hmac.compare_digest(valid.encode(), seal) for valid in seals)

    def _over(self, words: str, unsealed: bytes, key: bytes) -> str:
        parts = (self.scope.encode(), words.encode(), unsealed)
        # BLAKE2 has a key of its own (RFC 7693), and is a third of the work of an HMAC by OpenSSL.
        return hashlib.blake2b(b"\0".join(parts), key=key, digest_size=_SEAL_BYTES).hexdigest()


NO_SEAL: Final = Seal()


def describe_grant(
    granted: Grant, *, dialect: str = "", origin: str = "", **changes: Unpack[Changes]
) -> GrantNote:
    """Return the note for a grant.

    Args:
        granted: the grant.
        dialect: of the foreign request, if any.
        origin: of the foreign request.
        changes: what was changed on the pod, apart from what its author wrote.
    """
    words, card_class = describe(granted), granted.card_class
    return GrantNote(
        words=f"{words}{_FROM}{origin}" if origin else words,
        data=GrantData(
            containers=_of(granted),
            class_mib=None if card_class is None else int(card_class.capacity_mib),
            card_class="" if card_class is None else card_class.name,
            for_pool=granted.for_pool,
            dialect=dialect,
            **changes,
        ),
    )


def read_grant_note(text: str) -> GrantNote | None:
    """Parse the annotation; None when it has no data of the form that the webhook writes."""
    words, _, data = text.partition("\n")
    try:
        return GrantNote(words=words, data=msgspec.json.decode(data, type=GrantData))
    except (ValueError, RecursionError):
        return None


def limits_of(data: GrantData) -> Mapping[str, Mib]:
    """Return the MiB that a grant writes into the limits of each container."""
    return {name: Mib(one.cards * one.mib) for name, one in data.containers.items()}


def granted_amounts(text: str) -> Mapping[str, GrantedAmounts]:
    """Return what each container was granted; nothing if the annotation cannot be read."""
    note = read_grant_note(text)
    return {} if note is None else note.data.containers


def with_granted_limits(
    containers: Sequence[ContainerSpec], granted: Mapping[str, GrantedAmounts]
) -> tuple[ContainerSpec, ...]:
    """Return containers, of a pod whose limits the webhook has replaced, with those limits."""
    return tuple(
        msgspec.structs.replace(one, limits={**one.limits, **_limits(granted[one.name])})
        if one.name in granted
        else one
        for one in containers
    )


def as_granted(need: PodNeed, granted: Mapping[str, GrantedAmounts]) -> PodNeed:
    """Return the need of a pod with a claim, with the amounts of its grant, which count at once.

    So do the requests of the claim. A pod's annotations can be changed by its author, and the grant
    cannot.
    """
    containers = tuple(_granted(one, granted) for one in need.containers)
    return msgspec.structs.replace(need, containers=containers, by_claim=True)


def _granted(need: ContainerNeed, granted: Mapping[str, GrantedAmounts]) -> ContainerNeed:
    amounts = granted.get(need.name)
    if amounts is None:
        return msgspec.structs.replace(need, kind=ContainerKind.APP)
    return msgspec.structs.replace(
        need,
        kind=ContainerKind.APP,
        cards=amounts.cards,
        mib=Mib(amounts.mib),
        cores=amounts.cores,
    )


def _limits(granted: GrantedAmounts) -> Mapping[str, str]:
    return {
        names.GPU_MEM: str(granted.cards * granted.mib),
        names.GPU_SLOT: str(granted.cards),
    }


def class_named_in(text: str) -> str:
    """Return the class of the pool catalogue that the annotation names; empty for none."""
    if _CLASS_KEY not in text:  # nearly every one
        return ""
    note = read_grant_note(text)
    return note.data.card_class if note is not None else ""


def words_of(text: str) -> str:
    """Return the words of the annotation, without the data."""
    return text.partition("\n")[0]


def _most(container: ContainerNeed) -> str | msgspec.UnsetType:
    if container.limit_mib is not None:
        return f"{container.limit_mib}Mi"
    return msgspec.UNSET if container.limit_share is None else str(container.limit_share)


def _of(granted: Grant) -> dict[str, GrantedAmounts]:
    return {
        container.name: GrantedAmounts(
            cards=container.cards,
            mib=int(container.mib),
            cores=container.cores,
            most=_most(container),
        )
        for container in granted.need.containers
    }
