"""Why no card class comes into question for a request: what was asked for, and what there is."""

from collections.abc import Sequence
from typing import Final

from fracgpu import names
from fracgpu.cards.card_class import DEFAULT_VENDOR, CardClass, SelectedNodes, model_allowed
from fracgpu.errors import RequestError, listed, quoted
from fracgpu.request.need import PodRequest
from fracgpu.spelling import MAX_WORD_CHARS, nearest

_MOST_MODELS: Final = 300  # characters of a list of the cluster's models


def among_selected(misfit: RequestError, selected: SelectedNodes) -> RequestError:
    """Return an error about the nodes that the pod selects, which names the selectors."""
    where = f"among the nodes that {selected.field} {quoted(selected.rules.words)} selects"
    return RequestError(
        field=misfit.field,
        found=misfit.found,
        wanted=f"{misfit.wanted}, {where}",
        hint=misfit.hint,
    )


def no_class(
    request: PodRequest, classes: Sequence[CardClass], selected: SelectedNodes | None
) -> RequestError:
    """Return why no card is of a model that the pod allows, or on a node that it selects."""
    if selected is not None and classes:
        return _none_selected(request, classes, selected)
    if not classes:
        return RequestError(
            field="the request",
            found="a share of a card",
            wanted="a cluster with at least one shared, healthy card",
            hint=f"no node labelled {names.SHARE_LABEL}=true has reported one yet; fracgpu doctor "
            "says why",
        )
    return _none_wanted(request, models_of(classes), where=" of this cluster")


def _none_selected(
    request: PodRequest, classes: Sequence[CardClass], selected: SelectedNodes
) -> RequestError:
    """Return why no card of the selected nodes will do, while the cluster has cards."""
    here = models_of(selected.classes)
    if here:
        return among_selected(_none_wanted(request, here), selected)
    found = f"{selected.names_without}, without one" if selected.count else "no node"
    return RequestError(
        field=selected.field,
        found=selected.rules.words,
        wanted=f"nodes with a shared, healthy card: it selects {found}",
        hint=f"the cluster's cards are {sizes_of(classes)}",
    )


def _none_wanted(request: PodRequest, models: Sequence[str], where: str = "") -> RequestError:
    """Return that none of *models* is one that the pod accepts, or of the vendor that it gets."""
    there = listed(models, limit=_MOST_MODELS)
    matching = any(model_allowed(model, globs=request.models) for model in models)
    if matching or not request.models:
        vendor = request.vendor or DEFAULT_VENDOR
        return RequestError(
            field=names.VENDOR,
            found=vendor.value if request.vendor else f"not set, which means {vendor.value}",
            wanted=f"the vendor of a card model{where}: {there}",
        )
    return RequestError(
        field=names.MODEL,
        found=", ".join(request.models),
        wanted=f"globs that match a card model{where}: {there}",
        hint=_model_hint(request.models[0], models),
    )


def models_of(classes: Sequence[CardClass]) -> list[str]:
    """Return the models of these classes."""
    return sorted({model for card_class in classes for model in card_class.models})


def sizes_of(classes: Sequence[CardClass]) -> str:
    """Return the classes, each by its models and its size."""
    return listed(
        (
            f"{card_class.name or '/'.join(sorted(card_class.models))} "
            f"({card_class.capacity_mib} MiB)"
            for card_class in classes
        ),
        limit=_MOST_MODELS,
    )


def _model_hint(glob: str, models: Sequence[str]) -> str:
    if glob.startswith("!"):
        return ""
    bare = glob.strip("*").casefold()
    if len(glob) > MAX_WORD_CHARS:
        return ""
    if bare and any(bare in model.casefold() for model in models):
        return f"write '*{glob.strip('*')}*'"
    close = nearest(glob, models, cutoff=0.3)
    return f"did you mean '{close}'?" if close else ""
