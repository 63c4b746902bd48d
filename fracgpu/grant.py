"""From a request to MiB: which card class a share is a share of, and what is granted."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from fracgpu import names
from fracgpu.card import CardClass, model_allowed
from fracgpu.errors import RequestError
from fracgpu.request import (
    ContainerNeed,
    PodNeed,
    PodRequest,
    SliceRequest,
    per_card_mib,
)
from fracgpu.units import format_mib, share_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A request that was understood, and the card class that its shares are shares of, if any."""

    need: PodNeed
    card_class: CardClass | None


def grant(request: PodRequest, classes: Sequence[CardClass]) -> Grant:
    """Turn a request into MiB.

    Shares are shares of the first of *classes* (so: the most free one) that could ever hold the
    whole pod; MiB need no class, but some class must be large enough.

    Raises:
        RequestError: no class could ever hold it, or the limits already say something else.
    """
    allowed = [
        it for it in classes if any(model_allowed(m, globs=request.models) for m in it.models)
    ]
    if not allowed:
        raise _no_class(request, classes)
    shared = any(part.share is not None for part in request.slices)
    misfit: RequestError | None = None
    for card_class in allowed:
        need = _need_in(request, card_class)
        misfit = misfit or _misfit(need, card_class, allowed)
        if _misfit(need, card_class, allowed) is None:
            for part, container in zip(request.slices, need.containers, strict=True):
                _refuse_contradiction(part, container)
            return Grant(need=need, card_class=card_class if shared else None)
    assert misfit is not None, "a class that fits returns above"
    raise misfit


def admitted_need(request: PodRequest) -> PodNeed:
    """Give the need of a pod that went through admission: its limits say the MiB.

    Raises:
        RequestError: a container's limits lack our resources, so the webhook never saw the pod.
    """
    needs = []
    for part in request.slices:
        if part.stated_mib is None or part.stated_slots is None:
            raise RequestError(
                field=f"limits of container '{part.container}'",
                found="no " + (names.GPU_MEM if part.stated_mib is None else names.GPU_SLOT),
                wanted="the limits that the FracGPU webhook writes",
                hint="the pod was created while the webhook was down; create it again",
            )
        needs.append(
            ContainerNeed(
                name=part.container,
                kind=part.kind,
                cards=part.stated_slots,
                mib=per_card_mib(part.stated_mib, part.stated_slots, part.container),
                cores=part.cores,
                share=part.share,
            )
        )
    return PodNeed(containers=tuple(needs), models=request.models, strategy=request.strategy)


def describe(granted: Grant) -> str:
    """Say in plain words and numbers what was understood, one container after the other."""
    return "; ".join(_describe_one(it, granted.card_class) for it in granted.need.containers)


def _describe_one(need: ContainerNeed, card_class: CardClass | None) -> str:
    each = "each of " if need.cards > 1 else ""
    cards = f"{need.cards} cards" if need.cards > 1 else "1 card"
    words = f"{need.name}: {need.mib} MiB on {each}{cards}"
    if need.share is not None and card_class is not None:
        words += f" ({float(need.share):.4g} of a card that shares {card_class.capacity_mib} MiB)"
    if need.cores:
        words += f", {need.cores}% of the compute"
    return words


def _need_in(request: PodRequest, card_class: CardClass) -> PodNeed:
    containers = []
    for part in request.slices:
        if part.share is not None:
            mib = share_of(part.share, capacity_mib=card_class.capacity_mib)
        else:
            assert part.mib is not None, "a slice has a share or MiB"
            mib = part.mib
        containers.append(
            ContainerNeed(
                name=part.container,
                kind=part.kind,
                cards=part.cards,
                mib=mib,
                cores=part.cores,
                share=part.share,
            )
        )
    return PodNeed(containers=tuple(containers), models=request.models, strategy=request.strategy)


def _misfit(
    need: PodNeed, card_class: CardClass, allowed: Sequence[CardClass]
) -> RequestError | None:
    for container in need.containers:
        if container.mib > card_class.capacity_mib:
            largest = max(it.capacity_mib for it in allowed)
            return RequestError(
                field=names.MEMORY,
                found=f"{container.mib} MiB for container '{container.name}'",
                wanted=f"at most what one card shares: {largest} MiB ({format_mib(largest)})",
                hint=f"'{largest}Mi' fits the largest card, or ask for several with {names.CARDS}",
            )
        if container.cards > card_class.most_per_node:
            most = max(it.most_per_node for it in allowed if it.capacity_mib >= container.mib)
            return RequestError(
                field=names.CARDS,
                found=f"{container.cards} for container '{container.name}'",
                wanted=f"at most the cards of one node: {most}",
            )
    return None


def _no_class(request: PodRequest, classes: Sequence[CardClass]) -> RequestError:
    models = sorted({model for it in classes for model in it.models})
    if not classes:
        return RequestError(
            field="the request",
            found="a share of a card",
            wanted="a cluster with at least one shared, healthy card",
            hint=f"no node labelled {names.SHARE_LABEL}=true has reported its cards yet",
        )
    close = difflib.get_close_matches(request.models[0], models, n=1, cutoff=0.3)
    return RequestError(
        field=names.MODEL,
        found=", ".join(request.models),
        wanted="globs that match a card model of this cluster: " + ", ".join(models),
        hint=f"did you mean '{close[0]}'?" if close else "",
    )


def _refuse_contradiction(part: SliceRequest, need: ContainerNeed) -> None:
    if part.stated_mib is not None and part.stated_mib != need.total_mib:
        raise RequestError(
            field=f"limits['{names.GPU_MEM}'] of container '{part.container}'",
            found=str(part.stated_mib),
            wanted=f"{need.total_mib}, as its annotations say",
            hint="leave the limit out, the webhook writes it",
        )
    if part.stated_slots is not None and part.stated_slots != need.cards:
        raise RequestError(
            field=f"limits['{names.GPU_SLOT}'] of container '{part.container}'",
            found=str(part.stated_slots),
            wanted=f"{need.cards}, one for each card",
            hint="leave the limit out, the webhook writes it",
        )
