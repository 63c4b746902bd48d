"""From a request to a grant in MiB: which card class a share is a share of."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import lcm
from typing import Final

import msgspec

from fracgpu import names
from fracgpu.cards.card_class import DEFAULT_VENDOR, CardClass, SelectedNodes, Vendor
from fracgpu.errors import PodField, RequestError
from fracgpu.k8s.container import ContainerKind, pod_resource_sum
from fracgpu.k8s.node_affinity import ANY_NODE, NodeExpression, NodeRules
from fracgpu.request.language import limit_of, required_isolation, split_over_cards
from fracgpu.request.need import (
    ContainerNeed,
    PodNeed,
    PodRequest,
    SliceRequest,
    describe_limit,
    need_of,
)
from fracgpu.request.no_class import among_selected, models_of, no_class, sizes_of
from fracgpu.units import Mib, format_mib, share_of


class Fitting:
    """One request, prepared for comparison with card classes.

    Shares are exact fractions; they are kept as numerator and denominator, because a
    :class:`~fractions.Fraction` per container and class is too slow. A container with *n/d* of each
    of *cards* cards gets ``ceil(n * size_mib / d)`` MiB on each in a class of *size_mib*.

    Args:
        request: a request with at least one slice.
        among: the classes whose cards may be given to containers that ask for MiB.
    """

    def __init__(self, request: PodRequest, among: Sequence[CardClass]) -> None:
        self._among = among
        # Containers with a share: kind, numerator, denominator, number of cards.
        self._shares: list[tuple[ContainerKind, int, int, int]] = []
        # Containers whose limits already state gpu-mem: numerator, denominator, cards and the total
        # MiB stated. For a container that asks for MiB: MiB, 0, cards and the total.
        self._with_limit: list[tuple[int, int, int, int]] = []
        self._mib_fits = self._slots_agree = True
        self._most_cards = self._all_cards = 0
        # The peak of all shares, in cards of one class, is exactly _exact / _scale: 3/2 for 1/2 on
        # each of 3 cards. The scale is the least common denominator, so that no fraction is needed.
        self._scale = 1
        for part in request.slices:
            cards, share = part.cards, part.share
            if share is not None:
                numerator, denominator = share.as_integer_ratio()
                self._shares.append((part.kind, numerator, denominator, cards))
                self._most_cards = max(self._most_cards, cards)
                self._all_cards += cards
                self._scale = lcm(self._scale, denominator)
            else:
                numerator, denominator = part.mib or 0, 0
                if part.mib is not None and cards > self.cards_of(part.mib):
                    self._mib_fits = False
                if part.limit_mib is not None and not self.cards_of(part.limit_mib):
                    self._mib_fits = False
            if part.stated_mib is not None:
                self._with_limit.append((numerator, denominator, cards, part.stated_mib))
            if part.stated_slots is not None and part.stated_slots != cards:
                self._slots_agree = False
        self._exact = self._peak(self._scale)

    def _peak(self, size: int) -> int:
        """Return what all shares need together of cards that have *size* each, rounded up each."""
        return pod_resource_sum(
            [
                (kind, -(-numerator * size // denominator) * cards)
                for kind, numerator, denominator, cards in self._shares
            ]
        )

    def cards_of(self, mib: Mib) -> int:
        """Return the largest number of cards in one node that have *mib* or more shareable."""
        sizes_mib, as_large = self._by_size
        at = bisect_left(sizes_mib, mib)
        return as_large[at] if at < len(as_large) else 0

    @cached_property
    def _by_size(self) -> tuple[list[Mib], list[int]]:
        """Sizes in MiB, ascending, and how many cards of one node have at least each size."""
        found = [
            each
            for card_class in self._among
            for each in (
                (card_class.capacity_mib, card_class.as_large_per_node),
                *card_class.larger,
            )
        ]
        largest_first = sorted(found, key=lambda each: -each[0])
        as_large = list(accumulate((count for _, count in largest_first), max))
        return [size for size, _ in reversed(largest_first)], as_large[::-1]

    def holds(self, card_class: CardClass) -> bool:
        """Report whether an empty node with cards of this class could hold the whole pod."""
        most, size_mib = card_class.most_per_node, card_class.capacity_mib
        if not self._mib_fits or self._most_cards > most or self._exact > most * self._scale:
            return False
        # Rounding up adds less than 1 MiB on each card: if the pod still fits with 1 MiB more on
        # each, which is nearly always so, the exact sum below is not needed.
        if self._exact * size_mib <= (most * size_mib - self._all_cards) * self._scale:
            return True
        return self._peak(size_mib) <= most * size_mib

    def agrees(self, card_class: CardClass) -> bool:
        """Report whether limits that the pod already has match what this class would give it."""
        size_mib = card_class.capacity_mib
        if not self._with_limit:
            return self._slots_agree  # nearly every pod
        return self._slots_agree and all(
            (-(-numerator * size_mib // denominator) if denominator else numerator) * cards == mib
            for numerator, denominator, cards, mib in self._with_limit
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRule:
    """The administrator's configuration of card classes.

    Attributes:
        default_models: globs of the models whose class a share is a share of when the pod names no
            model; empty for the class with the largest free share.
        default_mib: shareable MiB of the class that a share is a share of when the pod names no
            model, also while the cluster has no card at all.
        wait: grant what no node of the cluster could hold, so that the pod waits for such a node.
    """

    default_models: tuple[str, ...] = ()
    default_mib: Mib | None = None
    wait: bool = False

    @property
    def has_default(self) -> bool:
        return bool(self.default_models) or self.default_mib is not None


NO_RULE: Final = ClassRule()


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """A request in MiB, and the card class that its shares are shares of, if any.

    *waits_for* says what the cluster lacks, if the administrator lets such pods wait; *for_pool*
    that a node of a pool in the catalogue would have it.
    """

    need: PodNeed
    card_class: CardClass | None
    waits_for: str = ""
    for_pool: bool = False


def grant(
    request: PodRequest,
    classes: Sequence[CardClass],
    *,
    rule: ClassRule = NO_RULE,
    selected: SelectedNodes | None = None,
    declared: Callable[[NodeRules], Sequence[CardClass]] | None = None,
) -> Grant:
    """Return what a request is granted, in MiB.

    Where no node could ever hold the pod, and pods may wait, a class of the pool catalogue that
    could is taken.

    Args:
        request: of the pod.
        classes: of the cluster's cards, the largest free share first.
        rule: the administrator's configuration.
        selected: the nodes that the pod's own selectors allow, if it has any. Only their classes
            come into question. The default class of *rule* counts where one of these nodes has it.
        declared: returns the classes of the pool catalogue whose pools some selectors allow; None
            without a catalogue.

    Raises:
        RequestError: no class could ever hold the pod, or its limits contradict its annotations.
    """
    request = _of_one_vendor(request, classes, declared)
    if declared is None or not rule.wait:
        return _grant(request, classes, rule, selected)
    # The catalogue says which nodes may come, so a pod that none of them could hold is refused.
    strict = replace(rule, wait=False)
    try:
        return _grant(request, classes, strict, selected)
    except RequestError as error:
        pools = declared(_rules_for_pools(request, selected))
        if selected is None:
            granted = _grant(request, (*classes, *pools), strict, None)
        else:
            selected = replace(selected, classes=(*selected.classes, *pools))
            granted = _grant(request, (*classes, *declared(ANY_NODE)), strict, selected)
        return msgspec.structs.replace(granted, waits_for=str(error), for_pool=True)


def _rules_for_pools(request: PodRequest, selected: SelectedNodes | None) -> NodeRules:
    """Return what the nodes of a pool must have for a pod."""
    rules = ANY_NODE if selected is None else selected.rules
    mechanism = required_isolation(request.isolation)
    if mechanism is None:
        return rules
    label = f"{names.ISOLATION_LABEL_PREFIX}{mechanism.value}"
    limits = NodeExpression(key=label, operator="In", values=("true",))
    return replace(rules, selector=(*rules.selector, limits))


def _grant(
    request: PodRequest,
    classes: Sequence[CardClass],
    rule: ClassRule,
    selected: SelectedNodes | None,
) -> Grant:
    """Return what a request is granted by these classes.

    Shares are shares of the first of *classes*, the one with the largest free share, whose nodes
    could hold the whole pod when empty; *rule* may narrow the classes if the pod names no model. If
    the limits already state MiB, because the pod was admitted before, a class that agrees with them
    is preferred. Requests in MiB need no class, but some card must be large enough.
    """
    shared = any(part.share is not None for part in request.slices)
    allowed: Sequence[CardClass] = classes if selected is None else selected.classes
    vendor = request.vendor or DEFAULT_VENDOR
    allowed = [each for each in allowed if each.is_of(vendor, request.models)]
    if not allowed:
        error = no_class(request, classes, selected)
        return _without_class(request, error, rule, shared=shared)
    candidates = allowed
    if shared and not request.models and rule.has_default:
        candidates = [card_class for card_class in allowed if _is_default(card_class, rule)]
        if not candidates:
            if not any(_is_default(card_class, rule) for card_class in classes):
                return _without_class(request, _no_default(rule, classes), rule, shared=shared)
            candidates = allowed  # the default class is elsewhere, where the pod may not run
    among = candidates if shared else allowed
    fitting = Fitting(request, among)
    held, card_class = _first_held(candidates, fitting)
    if card_class is None and held is not None:
        contradiction = _contradiction(request, _need_in(request, held))
        assert contradiction is not None, "limits that do not agree contradict the annotations"
        raise contradiction
    first = card_class or candidates[0]
    granted = Grant(need=_need_in(request, first), card_class=first if shared else None)
    misfit = None if card_class else _misfit(request, granted.need, first, among, fitting)
    if misfit is not None and selected is not None:
        misfit = among_selected(misfit, selected)
    return granted if misfit is None else _waiting(request, granted, misfit, rule)


def _of_one_vendor(
    request: PodRequest,
    classes: Sequence[CardClass],
    declared: Callable[[NodeRules], Sequence[CardClass]] | None,
) -> PodRequest:
    """Return the request with the vendor of its cards, if that is not NVIDIA by default.

    A pod that names no vendor gets AMD's cards only where neither the cluster nor its pools have
    any other that would do: no pod that was made before there were others starts on a card that
    its program cannot use.
    """
    if request.vendor is not None or _any_is_of(Vendor.NVIDIA, classes, request):
        return request  # nearly every pod
    pools = () if declared is None else declared(ANY_NODE)
    if _any_is_of(Vendor.NVIDIA, pools, request):
        return request
    if _any_is_of(Vendor.AMD, (*classes, *pools), request):
        return msgspec.structs.replace(request, vendor=Vendor.AMD)
    return request


def _any_is_of(vendor: Vendor, classes: Sequence[CardClass], request: PodRequest) -> bool:
    for each in classes:  # noqa: SIM110 - each pod is asked this, and a generator takes longer
        if each.is_of(vendor, request.models):
            return True
    return False


def _first_held(
    candidates: Sequence[CardClass], fitting: Fitting
) -> tuple[CardClass | None, CardClass | None]:
    """Return the first class that holds the request, and the first that also agrees with it."""
    held = None
    for candidate in candidates:
        if fitting.holds(candidate):
            held = held or candidate
            if fitting.agrees(candidate):
                return held, candidate
    return held, None


def _is_default(card_class: CardClass, rule: ClassRule) -> bool:
    if rule.default_mib is not None and card_class.capacity_mib != rule.default_mib:
        return False
    return card_class.allowed_by(rule.default_models)


def _without_class(
    request: PodRequest, error: RequestError, rule: ClassRule, *, shared: bool
) -> Grant:
    """Return a grant without any suitable card, if pods may wait and a size is known."""
    if shared and (rule.default_mib is None or request.models):
        raise error
    supposed = None
    if shared and rule.default_mib is not None:
        supposed = CardClass(
            capacity_mib=rule.default_mib,
            models=frozenset(rule.default_models),
            most_per_node=0,
            cards=0,
            free_share=0,
            measured=False,
        )
    granted = Grant(need=_need_in(request, supposed), card_class=supposed)
    return _waiting(request, granted, error, rule)


def _waiting(request: PodRequest, granted: Grant, misfit: RequestError, rule: ClassRule) -> Grant:
    """Return a grant that waits for what the cluster lacks; raise *misfit* if pods may not wait."""
    if not rule.wait:
        raise misfit
    contradiction = _contradiction(request, granted.need)
    if contradiction is not None:
        raise contradiction
    return msgspec.structs.replace(granted, waits_for=str(misfit))


def need_from_limits(request: PodRequest, *, by_name: bool = False) -> PodNeed:
    """Return the need of a pod that was admitted: its limits state the MiB.

    Args:
        request: of the pod.
        by_name: its shares are of a class of the pool catalogue. The cards of one class may differ
            a little in size, so that the share tells no card of it from another: the label of the
            node does.

    Raises:
        RequestError: a container's limits lack our resources, so the webhook did not admit the pod.
    """
    needs = []
    for part in request.slices:
        if part.stated_mib is None or part.stated_slots is None:
            raise RequestError(
                field=PodField("limits", container=part.container),
                found="no " + (names.GPU_MEM if part.stated_mib is None else names.GPU_SLOT),
                wanted="the limits that the FracGPU webhook writes",
                hint="the pod was created while the webhook was down; create it again",
            )
        needs.append(
            ContainerNeed(
                name=part.container,
                kind=part.kind,
                cards=part.stated_slots,
                mib=split_over_cards(part.stated_mib, part.stated_slots, part.container),
                cores=part.cores,
                share=None if by_name else part.share,
                limit_share=part.limit_share,
                limit_mib=part.limit_mib,
            )
        )
    return need_of(request, needs)


def describe(granted: Grant) -> str:
    """Return a grant in words, one container after the other."""
    return "; ".join(
        [_describe_one(container, granted.card_class) for container in granted.need.containers]
    )


def _describe_one(need: ContainerNeed, card_class: CardClass | None) -> str:
    each = "each of " if need.cards > 1 else ""
    words = f"{need.name}: {need.mib} MiB{describe_limit(need)} on {each}{_cards(need.cards)}"
    if need.share is not None and card_class is not None:
        share = need.share.numerator / need.share.denominator  # float() takes far longer
        words += f" ({share:.4g} of {card_class.title})"
    if need.cores:
        words += f", {need.cores}% of the compute"
    return words


def _need_in(request: PodRequest, card_class: CardClass | None) -> PodNeed:
    """Return a request in MiB; shares are shares of a card of *card_class*."""
    containers = []
    for part in request.slices:
        mib = part.mib
        if mib is None:
            assert part.share is not None, "a slice has a share or MiB"
            assert card_class is not None, "a share is a share of some class"
            mib = share_of(part.share, capacity_mib=card_class.capacity_mib)
        containers.append(
            ContainerNeed(
                name=part.container,
                kind=part.kind,
                cards=part.cards,
                mib=mib,
                cores=part.cores,
                share=part.share,
                limit_share=part.limit_share,
                limit_mib=part.limit_mib,
            )
        )
    return need_of(request, containers)


def _misfit(
    request: PodRequest,
    need: PodNeed,
    card_class: CardClass,
    allowed: Sequence[CardClass],
    fitting: Fitting,
) -> RequestError | None:
    """Return why no empty node with cards of *card_class* could hold the pod, or None."""
    for part, container in zip(request.slices, need.containers, strict=True):
        misfit = (
            _mib_misfit(part, container, allowed, fitting, narrowed=bool(request.models))
            if part.share is None
            else _share_misfit(container, card_class, allowed)
        )
        if misfit is not None:
            return misfit
    shares = [container for container in need.containers if container.share is not None]
    peak_mib = pod_resource_sum([(container.kind, container.total_mib) for container in shares])
    if peak_mib <= card_class.capacity_mib * card_class.most_per_node:
        return None
    most = max(card_class.most_per_node for card_class in allowed)
    return RequestError(
        field=names.FRACTION,
        found=", ".join(
            f"{container.name}={float(container.share or 0):.4g}" for container in shares
        ),
        wanted=f"at most what one node has, {_cards(most)}, in one pod",
    )


def _share_misfit(
    need: ContainerNeed, card_class: CardClass, allowed: Sequence[CardClass]
) -> RequestError | None:
    if need.cards <= card_class.most_per_node:
        return None
    return _too_many_cards(need, max(card_class.most_per_node for card_class in allowed))


def _mib_misfit(
    part: SliceRequest,
    need: ContainerNeed,
    allowed: Sequence[CardClass],
    fitting: Fitting,
    *,
    narrowed: bool,
) -> RequestError | None:
    most = fitting.cards_of(need.mib)
    if most:
        if need.cards > most:
            return _too_many_cards(need, most)
        return _limit_misfit(need, allowed, fitting)
    largest = max(allowed, key=lambda card_class: card_class.largest_mib)
    mib = largest.largest_mib
    by_limit = part.stated_mib is not None
    field = (
        limit_of(names.GPU_MEM, need.name)
        if by_limit
        else PodField(names.MEMORY, container=need.name)
    )
    unit = "" if by_limit else "Mi"
    found = f"{need.total_mib if by_limit else need.mib}{unit}"
    hint = f"'{mib * need.cards if by_limit else mib}{unit}' would fit"
    split = -(-need.total_mib // mib)
    if split <= largest.most_per_node:
        hint += f', and so would {names.CARDS}: "{split}" with '
        hint += f"{-(-need.total_mib // split)} MiB on each"
    return RequestError(
        field=field,
        found=f"{found} on {need.cards} cards" if by_limit and need.cards > 1 else found,
        wanted=f"at most what the largest card{' of that model' if narrowed else ''} shares, "
        f"{mib} MiB{_in_gib(mib)}",
        hint=hint,
    )


def _limit_misfit(
    need: ContainerNeed, allowed: Sequence[CardClass], fitting: Fitting
) -> RequestError | None:
    if need.limit_mib is None or fitting.cards_of(need.limit_mib):
        return None
    mib = max(card_class.largest_mib for card_class in allowed)
    return RequestError(
        field=PodField(names.MEMORY_LIMIT, container=need.name),
        found=f"{need.limit_mib}Mi",
        wanted=f"at most what the largest card shares, {mib} MiB{_in_gib(mib)}",
        hint=f"'{mib}Mi' would fit",
    )


def _in_gib(mib: int) -> str:
    text = format_mib(mib)
    return "" if text == f"{mib} MiB" else f" ({text})"


def _too_many_cards(need: ContainerNeed, most: int) -> RequestError:
    return RequestError(
        field=PodField(names.CARDS, container=need.name),
        found=str(need.cards),
        wanted=f"at most {most}: no node has more cards that are large enough",
    )


def _cards(count: int) -> str:
    return "1 card" if count == 1 else f"{count} cards"


def _no_default(rule: ClassRule, classes: Sequence[CardClass]) -> RequestError:
    sizes = "" if rule.default_mib is None else f" that shares {rule.default_mib} MiB"
    models = models_of(classes)
    return RequestError(
        field="the cluster's default card",
        found=(", ".join(rule.default_models) or "a card") + sizes,
        wanted=f"one that the cluster has: {sizes_of(classes)}",
        hint=f'name a model, e.g. {names.MODEL}: "{models[0]}"',
    )


def _contradiction(request: PodRequest, need: PodNeed) -> RequestError | None:
    """Return the first contradiction between a container's limits and its annotations, or None."""
    for part, container in zip(request.slices, need.containers, strict=True):
        if part.stated_mib is not None and part.stated_mib != container.total_mib:
            return RequestError(
                field=limit_of(names.GPU_MEM, part.container),
                found=str(part.stated_mib),
                wanted=f"{container.total_mib}, as its annotations say",
                hint="leave the limit out; the webhook writes it",
            )
        if part.stated_slots is not None and part.stated_slots != container.cards:
            return RequestError(
                field=limit_of(names.GPU_SLOT, part.container),
                found=str(part.stated_slots),
                wanted=f"{container.cards}, one for each card",
                hint="leave the limit out; the webhook writes it",
            )
    return None
