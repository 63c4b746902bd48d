"""The cards that a node's labels describe, used while no node agent has reported any."""

import re
from collections.abc import Mapping
from typing import Final

from fracgpu import names
from fracgpu.cards.card import MOST_CARDS, Card, CardUuid
from fracgpu.units import MAX_MIB, Mib

_MIB_PER_GIB: Final = 1024
_UNNAMED: Final = "unknown"

# NVIDIA's GPU feature discovery: the memory is NVML's total in MiB. A card that is shared by time
# slicing or MPS carries a suffix.
_NVIDIA: Final = "nvidia.com/gpu."
_SHARED_SUFFIX: Final = "-SHARED"

# AMD's node labeller: the value of `<prefix>vram.<size>` is the number of cards of that size. Where
# all cards have one size, `<prefix>vram` has the size as its value, and without "beta." no count.
_AMD: Final = ("beta.amd.com/gpu.", "amd.com/gpu.")
_AMD_SIZE: Final = re.compile(r"(\d{1,5})(G|M|T)i?B?", re.ASCII)
_AMD_UNIT_MIB: Final = {"M": 1, "G": _MIB_PER_GIB, "T": _MIB_PER_GIB * _MIB_PER_GIB}


def cards_from_labels(
    node: str, labels: Mapping[str, str], *, reserved_mib: Mib = Mib(0)
) -> tuple[Card, ...]:
    """Return the cards that a node's labels describe: ours, else NVIDIA's, else AMD's, else none.

    Our labels state the shareable MiB. The others state the total MiB of a card, so *reserved_mib*
    (driver and headroom, as estimated by the administrator) is subtracted from each.
    """
    sizes = _ours(labels)
    reserved_mib = Mib(0) if sizes else reserved_mib
    sizes = sizes or _nvidia(labels) or _amd(labels)
    cards: list[Card] = []
    for model, mib, count in sizes:
        for _ in range(count):
            uuid = CardUuid(f"label:{node}:{len(cards)}")
            card = Card(
                uuid=uuid, index=len(cards), model=model, total_mib=mib, reserved_mib=reserved_mib
            )
            cards.append(card)
    return tuple(cards)


def _ours(labels: Mapping[str, str]) -> list[tuple[str, Mib, int]]:
    model = labels.get(names.CARD_MODEL_LABEL, _UNNAMED)
    found = []
    for key in sorted(labels):
        if key.startswith(names.CARD_CLASS_LABEL_PREFIX):
            size = _number(key.removeprefix(names.CARD_CLASS_LABEL_PREFIX), most=MAX_MIB)
            count = _number(labels[key], most=MOST_CARDS)
            if size and count:
                found.append((model, Mib(size), count))
    return found


def _nvidia(labels: Mapping[str, str]) -> list[tuple[str, Mib, int]]:
    mib = _number(labels.get(f"{_NVIDIA}memory", ""), most=MAX_MIB)
    count = _number(labels.get(f"{_NVIDIA}count", ""), most=MOST_CARDS)
    model = labels.get(f"{_NVIDIA}product", _UNNAMED).removesuffix(_SHARED_SUFFIX)
    return [(model, Mib(mib), count)] if mib and count else []


def _amd(labels: Mapping[str, str]) -> list[tuple[str, Mib, int]]:
    for prefix in _AMD:
        model = _only_model(labels, prefix)
        found = []
        for key in sorted(labels):
            if key.startswith(f"{prefix}vram."):
                mib = _amd_mib(key.removeprefix(f"{prefix}vram."))
                count = _number(labels[key], most=MOST_CARDS)
                if mib and count:
                    found.append((model, mib, count))
        if not found and (mib := _amd_mib(labels.get(f"{prefix}vram", ""))):
            found.append((model, mib, 1))
        if found:
            return found
    return []


def _only_model(labels: Mapping[str, str], prefix: str) -> str:
    """Return the model if all cards have the same; the labels do not map sizes to models.

    It begins as the agent's names of AMD's cards do.
    """
    named = [key for key in labels if key.startswith(f"{prefix}product-name.")]
    model = named[0].removeprefix(f"{prefix}product-name.") if len(named) == 1 else _UNNAMED
    model = labels.get(f"{prefix}product-name", model)
    return model if model.startswith("AMD") else f"AMD-{model}"


def _amd_mib(text: str) -> Mib | None:
    match = _AMD_SIZE.fullmatch(text)
    if match is None:
        return None
    mib = int(match[1]) * _AMD_UNIT_MIB[match[2]]
    return Mib(mib) if 1 <= mib <= MAX_MIB else None


def _number(text: str, *, most: int) -> int | None:
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or not 1 <= int(text) <= most:
        return None
    return int(text)
