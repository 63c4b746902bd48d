"""Reads the CDI spec that nvidia-ctk generates: driver libraries and files, by card."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from deviceplugin.cards.interface import CardHardware
from kube.yaml_text import read_yaml

_KIND: Final = "nvidia.com/gpu"
_FILES: Final = ("nvidia.yaml", "nvidia.yml", "nvidia.json", "nvidia.com-gpu.yaml")
_CARD_NODE: Final = re.compile(r"/dev/nvidia\d+")
# The spec of a node has some tens of kB; a larger file is not one.
_MAX_BYTES: Final = 4 * 1024 * 1024

# What reading a document raises that does not have the structure of a spec.
_MALFORMED: Final = (TypeError, ValueError, LookupError, AttributeError)

_Number = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class _WireNode(msgspec.Struct, rename="camel"):
    path: str
    host_path: str = ""
    file_mode: _Number | None = None
    uid: _Number | None = None
    gid: _Number | None = None


class _WireMount(msgspec.Struct, rename="camel"):
    host_path: str
    container_path: str
    type: str = ""
    options: list[str] | None = None


class _WireHook(msgspec.Struct, rename="camel"):
    hook_name: str
    path: str
    args: list[str] | None = None
    env: list[str] | None = None
    timeout: _Number | None = None


class _WireEdits(msgspec.Struct, rename="camel"):
    """What is read of the edits; the runtime checks the rest."""

    env: list[str] | None = None
    device_nodes: list[_WireNode] | None = None
    mounts: list[_WireMount] | None = None
    hooks: list[_WireHook] | None = None


Edits = Mapping[str, Any]


class NvidiaCdiError(Exception):
    """NVIDIA's spec exists, but cannot be used for this card; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaCdiSpec:
    """One spec of kind ``nvidia.com/gpu``: edits by device name, and those for every device."""

    file: Path
    version: str
    common: Edits = field(default_factory=dict)
    devices: Mapping[str, Edits] = field(default_factory=dict)

    def has(self, hardware: CardHardware) -> bool:
        """Report whether the spec has this card."""
        return self._device(hardware) is not None

    def edits(self, hardware: CardHardware) -> Edits:
        """Return the edits of one card.

        Raises:
            NvidiaCdiError: the spec lacks the card, or has another device file for it.
        """
        found = self._device(hardware)
        if found is None:
            raise NvidiaCdiError(f"{self.file} does not have {hardware.card.uuid}; {_REGENERATE}")
        have, want = _card_nodes(found, hardware), _paths(hardware)
        if have != want:
            raise NvidiaCdiError(
                f"{self.file} has {', '.join(sorted(have)) or 'no device file'} for "
                f"{hardware.card.uuid}, which is {', '.join(sorted(want))}; {_REGENERATE}"
            )
        return found

    def _device(self, hardware: CardHardware) -> Edits | None:
        """Return a card's edits by its UUID or, in a spec with indexes only, by its device file."""
        by_uuid = self.devices.get(hardware.card.uuid)
        if by_uuid is not None:
            return by_uuid
        matching = [
            edits
            for edits in self.devices.values()
            if _card_nodes(edits, hardware) == _paths(hardware)
        ]
        return matching[0] if matching and not self._names_uuids() else None

    def _names_uuids(self) -> bool:
        return any(name.startswith("GPU-") for name in self.devices)


_REGENERATE: Final = "regenerate it: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"


def _paths(hardware: CardHardware) -> frozenset[str]:
    return frozenset(node.path for node in hardware.device_nodes)


def _card_nodes(edits: Edits, hardware: CardHardware) -> frozenset[str]:
    """Return the device files that are cards, and not of the driver as a whole."""
    paths = {str(node.get("path", "")) for node in edits.get("deviceNodes") or ()}
    return frozenset(path for path in paths if _CARD_NODE.fullmatch(path)) | (
        paths & _paths(hardware)
    )


class NvidiaCdiSpecs:
    """Finds NVIDIA's spec, and reads it again when it changes.

    Args:
        folders: where the spec may be; the first folder that has one wins.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._read: tuple[tuple[Path, int, int], NvidiaCdiSpec] | None = None

    def find(self, cards: Sequence[CardHardware]) -> NvidiaCdiSpec | None:
        """Return the spec that has any of this node's *cards*, or None.

        Reads files; call it in a thread.

        Raises:
            NvidiaCdiError: a spec exists and cannot be read.
        """
        for folder in self._folders:
            for name in _FILES:
                spec = self._load(folder / name)
                # A spec of other cards only, as beside simulated ones, is ignored.
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
            spec = _parse(file, file.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise NvidiaCdiError(f"cannot read {file}: {error.strerror or error}") from error
        if spec is not None:
            self._read = (key, spec)
        return spec


def _parse(file: Path, text: bytes) -> NvidiaCdiSpec | None:
    try:
        document = dict(read_yaml(text))  # JSON is YAML
        if document.get("kind") != _KIND:
            return None
        json.dumps(document)  # as it is written into specs: YAML has values that JSON lacks
        devices = {
            str(device["name"]): _checked(device.get("containerEdits"))
            for device in document.get("devices") or ()
        }
        return NvidiaCdiSpec(
            file=file,
            version=str(document.get("cdiVersion", "")),
            common=_checked(document.get("containerEdits")),
            devices=devices,
        )
    except _MALFORMED as error:
        raise NvidiaCdiError(f"{file} is not a CDI spec: {error}") from error


def _checked(edits: Any) -> Edits:
    """Return *edits* if they have the structure of container edits, for CDI as for NRI.

    Raises:
        ValueError: they do not.
    """
    found: dict[str, Any] = {} if edits is None else dict(edits)
    msgspec.convert(found, _WireEdits)
    return found
