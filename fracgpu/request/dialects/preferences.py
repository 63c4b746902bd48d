"""Settings that several dialects have beside a request: card models and placement strategy."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from fracgpu import names
from fracgpu.cards.card_class import model_key
from fracgpu.errors import RequestError
from fracgpu.request.bounds import MAX_GLOBS
from fracgpu.request.dialects.amounts import annotation_field
from fracgpu.request.need import Strategy

_STRATEGIES: Final = {"binpack": Strategy.PACK, "spread": Strategy.SPREAD}
_MODEL_PART: Final = re.compile(r"[A-Za-z0-9 ._+()/-]{1,63}", re.ASCII)


def model_globs(annotations: Mapping[str, str], *, use: str, avoid: str) -> tuple[str, ...]:
    """Return our globs for comma-separated lists of parts of model names.

    Raises:
        RequestError: an item is empty, or has characters that no model name has.
    """
    wanted = tuple(f"*{part}*" for part in _parts(annotations, use))
    return wanted + tuple(f"!*{part}*" for part in _parts(annotations, avoid))


def _parts(annotations: Mapping[str, str], key: str) -> list[str]:
    if key not in annotations:
        return []
    if annotations[key].count(",") >= MAX_GLOBS:
        raise RequestError(
            field=annotation_field(key),
            found=annotations[key],
            wanted=f"at most {MAX_GLOBS} parts of card models",
        )
    parts = [part.strip() for part in annotations[key].split(",")]
    for part in parts:
        if not _MODEL_PART.fullmatch(part):
            raise RequestError(
                field=annotation_field(key),
                found=annotations[key],
                wanted="parts of card models, e.g. 'A100,H100'",
            )
    return [model_key(part) for part in parts]


def refuse_single_cards(annotations: Mapping[str, str], keys: Iterable[str]) -> None:
    """Raise for a choice of single cards, which our request language does not have.

    Raises:
        RequestError: the pod has one of *keys*.
    """
    for key in keys:
        if key in annotations:
            raise RequestError(
                field=annotation_field(key),
                found=annotations[key],
                wanted="no choice of single cards: FracGPU chooses the card",
                hint=f"choose by model with {names.MODEL}",
            )


def strategy(
    annotations: Mapping[str, str], *, card: str, node: str, others: Iterable[str]
) -> tuple[Strategy | None, tuple[str, ...]]:
    """Return our strategy for a policy for cards and one for nodes, and warnings.

    FracGPU has one strategy for both, so the policy for cards takes precedence.

    Args:
        annotations: the annotations of the dialect.
        card: the key of the policy for cards.
        node: the key of the policy for nodes.
        others: policies of the dialect that FracGPU does not have.

    Raises:
        RequestError: the dialect does not have such a policy.
    """
    found: dict[str, Strategy] = {}
    warnings = []
    for key in (card, node):
        text = annotations.get(key)
        if text is None:
            continue
        if text in _STRATEGIES:
            found[key] = _STRATEGIES[text]
        elif text in others:
            warnings.append(
                f"{annotation_field(key)} is '{text}', which FracGPU has no match for, so the "
                f"cluster's default holds; write {names.PLACEMENT} instead"
            )
        else:
            known = ", ".join([*_STRATEGIES, *others])
            raise RequestError(field=annotation_field(key), found=text, wanted=f"one of {known}")
    if len(set(found.values())) > 1:
        warnings.append(
            f"{annotation_field(node)} is '{annotations[node]}' and {annotation_field(card)} is "
            f"'{annotations[card]}'; FracGPU has one policy for both and takes the card's"
        )
    return found.get(card, found.get(node)), tuple(warnings)


def not_offered(annotations: Mapping[str, str], meanings: Mapping[str, str]) -> tuple[str, ...]:
    """Return warnings for settings that are ignored; *meanings* has the reason for each key."""
    return tuple(
        f"{annotation_field(key)} is '{annotations[key][:60]}', which is ignored: {why}"
        for key, why in meanings.items()
        if key in annotations
    )
