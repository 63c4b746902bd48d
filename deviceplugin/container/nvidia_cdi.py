"""The CDI spec that nvidia-ctk generates: driver libraries and files, taken over card by card."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from deviceplugin.cards.interface import CardHardware

_KIND: Final = "nvidia.com/gpu"
_FILES: Final = ("nvidia.yaml", "nvidia.yml", "nvidia.json", "nvidia.com-gpu.yaml")
_CARD_NODE: Final = re.compile(r"/dev/nvidia\d+")
# A spec of one node has some tens of kB; more is none.
_MAX_BYTES: Final = 4 * 1024 * 1024

# What taking a document apart raises that has another shape than a spec.
_MISSHAPEN: Final = (TypeError, ValueError, KeyError, AttributeError, RecursionError)

Edits = Mapping[str, Any]


class NvidiaCdiError(Exception):
    """There is a spec of the vendor, and it cannot be used for this card; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaCdiSpec:
    """One spec of kind ``nvidia.com/gpu``: edits by device name, and those for every device."""

    file: Path
    version: str
    common: Edits = field(default_factory=dict)
    devices: Mapping[str, Edits] = field(default_factory=dict)

    def has(self, hardware: CardHardware) -> bool:
        """Whether it tells of this card at all."""
        return self._device(hardware) is not None

    def edits(self, hardware: CardHardware) -> Edits:
        """Give the edits of one card.

        Raises:
            VendorError: the spec does not know the card, or knows it by another device file.
        """
        found = self._device(hardware)
        if found is None:
            raise NvidiaCdiError(f"{self.file} does not know {hardware.card.uuid}; {_REMEDY}")
        have, want = _card_nodes(found, hardware), _paths(hardware)
        if have != want:
            raise NvidiaCdiError(
                f"{self.file} gives {', '.join(sorted(have)) or 'no device file'} for "
                f"{hardware.card.uuid}, which is {', '.join(sorted(want))}; {_REMEDY}"
            )
        return found

    def _device(self, hardware: CardHardware) -> Edits | None:
        """Find a card by its UUID; a spec that names indexes only, by the card's device file."""
        by_uuid = self.devices.get(hardware.card.uuid)
        if by_uuid is not None:
            return by_uuid
        alone = [
            it for it in self.devices.values() if _card_nodes(it, hardware) == _paths(hardware)
        ]
        return alone[0] if alone and not self._names_uuids() else None

    def _names_uuids(self) -> bool:
        return any(name.startswith("GPU-") for name in self.devices)


_REMEDY: Final = "generate it anew: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"


def _paths(hardware: CardHardware) -> frozenset[str]:
    return frozenset(it.path for it in hardware.device_nodes)


def _card_nodes(edits: Edits, hardware: CardHardware) -> frozenset[str]:
    """Name the files that are cards, and not of the driver as a whole."""
    paths = {str(node.get("path", "")) for node in edits.get("deviceNodes") or ()}
    return frozenset(it for it in paths if _CARD_NODE.fullmatch(it)) | (paths & _paths(hardware))


class NvidiaCdiSpecs:
    """Finds the vendor's spec in the folders where it may be, and reads it again when it changes.

    Args:
        folders: in which to look, the first that has one wins.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._read: tuple[tuple[Path, int, int], NvidiaCdiSpec] | None = None

    def find(self, cards: Sequence[CardHardware]) -> NvidiaCdiSpec | None:
        """Give the spec that tells of any of this node's *cards*, or None.

        Reads files; call it in a thread.

        Raises:
            VendorError: a spec is there and cannot be read.
        """
        for folder in self._folders:
            for name in _FILES:
                spec = self._load(folder / name)
                # A spec of other cards only, as beside simulated ones, is none of our business.
                if spec is not None and any(spec.has(hardware) for hardware in cards):
                    return spec
        return None

    def _load(self, file: Path) -> NvidiaCdiSpec | None:
        try:
            stat = file.stat()
            key = (file, stat.st_mtime_ns, stat.st_size)
            if self._read is not None and self._read[0] == key:
                return self._read[1]
            if stat.st_size > _MAX_BYTES:
                raise NvidiaCdiError(f"{file} has {stat.st_size} bytes; want at most {_MAX_BYTES}")
            spec = _parse(file, file.read_text())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise NvidiaCdiError(f"cannot read {file}: {error.strerror or error}") from error
        if spec is not None:
            self._read = (key, spec)
        return spec


def _parse(file: Path, text: str) -> NvidiaCdiSpec | None:
    try:
        document = dict(yaml.safe_load(text))  # JSON is YAML
        if document.get("kind") != _KIND:
            return None
        devices = {
            str(it["name"]): _checked(it.get("containerEdits"))
            for it in document.get("devices") or ()
        }
        return NvidiaCdiSpec(
            file=file,
            version=str(document.get("cdiVersion", "")),
            common=_checked(document.get("containerEdits")),
            devices=devices,
        )
    except (yaml.YAMLError, *_MISSHAPEN) as error:
        raise NvidiaCdiError(f"{file} is no CDI spec: {error}") from error


def _checked(edits: Any) -> Edits:
    """Let through what has the shape of container edits, so that later nobody trips over it."""
    found: dict[str, Any] = {} if edits is None else dict(edits)
    for key in ("deviceNodes", "mounts", "hooks"):
        if not all(isinstance(it, dict) for it in found.get(key) or ()):
            raise TypeError(f"{key} holds what is no mapping")
    if not all(isinstance(it, str) for it in found.get("env") or ()):
        raise TypeError("env holds what is no text")
    return found
