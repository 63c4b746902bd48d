"""Builds what a container gets: device files, driver libraries, environment, isolation."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

from deviceplugin.cards.interface import CardHardware
from deviceplugin.claims import Claim
from deviceplugin.container import compute_units
from deviceplugin.container.cdi import CdiSpec, Mount, newest, spec_for
from deviceplugin.container.compute_units import Units
from deviceplugin.container.nvidia_cdi import NvidiaCdiError, NvidiaCdiSpecs
from deviceplugin.node.inventory import Inventory
from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.cards.card_class import Vendor
from fracgpu.request.need import Isolation

_PIPE_DIR: Final = "/run/fracgpu-mps/pipe"
_LOG_DIR: Final = "/run/fracgpu-mps/log"
# Where HAMi-core looks for itself.
_LIBRARY: Final = "/usr/local/vgpu/libvgpu.so"


# A hook that limits a card's memory by variables that the container's image may set too, and with
# which no container starts where the driver cannot limit.
# Source: NVIDIA container toolkit 1.20, cmd/nvidia-cdi-hook/apply-cuda-memory-limits.
_LIMITS: Final = "apply-cuda-memory-limits"


class SpecBuildError(Exception):
    """A container's spec cannot be built; the text says why."""


class MpsError(Exception):
    """The card has no MPS daemon that answers."""


class MpsFolders(Protocol):
    """Where a card's MPS daemon keeps its files, as paths on the host."""

    @property
    def pipe(self) -> str: ...
    @property
    def log(self) -> str: ...
    @property
    def shm(self) -> str: ...


class Mps(Protocol):
    """The node's MPS daemons."""

    def folders(self, card: CardUuid) -> MpsFolders:
        """Return the folders of a daemon that answers; in any thread.

        Raises:
            MpsError: it does not answer.
        """
        ...

    def silent(self, pipe: str) -> str | None:
        """Return why the daemon whose pipe folder it is does not answer, or None; in any thread."""
        ...


class Library(Protocol):
    """A library on the node that limits the container that loads it."""

    @property
    def file(self) -> Path: ...
    def why_not(self) -> str | None:
        """Return why no container can load it, or None."""
        ...


class ContainerSpecBuilder:
    """Builds the CDI specs of containers, in any thread; reads NVIDIA's spec if it has changed.

    Args:
        nvidia_specs: the driver's own specs.
        mps: the node's MPS daemons.
        interposer: the node's library.
    """

    def __init__(self, nvidia_specs: NvidiaCdiSpecs, *, mps: Mps, interposer: Library) -> None:
        self._nvidia_specs = nvidia_specs
        self._mps = mps
        self._interposer = interposer

    def why_not(self, isolation: Isolation, cards: Sequence[CardHardware]) -> str | None:
        """Return why a container with *cards* cannot be limited by MPS or the library, or None."""
        if any(each.vendor is not Vendor.NVIDIA for each in cards):
            return "it works on NVIDIA's cards only"
        if isolation is Isolation.INTERPOSER:
            return self._interposer.why_not()
        if len(cards) > 1:
            return "it has several cards, and MPS limits a container on one card only"
        try:
            self._mps.folders(cards[0].card.uuid)
        except MpsError as error:
            return str(error)
        return None

    def build(
        self,
        name: str,
        claim: Claim,
        inventory: Inventory,
        *,
        by: Isolation = Isolation.NONE,
        taken: Iterable[Units] | None = None,
    ) -> CdiSpec:
        """Return the spec of the CDI device *name*, for the container of *claim*.

        Args:
            name: of the CDI device.
            claim: whose container it is, and its slices.
            inventory: the node's cards.
            by: what limits it; the spec has to do with MPS and the library alone.
            taken: the compute units of the node's other containers; None where they are not known.

        Raises:
            SpecBuildError: something that the container needs is missing.
        """
        nodes = inventory.device_nodes(claim.cards)
        spec = spec_for(name, claim.slices, claim.cards, nodes)
        first, card = claim.slices[0], claim.cards[0]
        older = {
            names.ENV_ALIYUN_CONTAINER: str(first.mib),
            names.ENV_ALIYUN_DEV: str(card.total_mib),
        }
        spec = replace(spec, env={**spec.env, **older})
        hardware = inventory.hardware(claim.cards)
        vendors = {each.vendor for each in hardware}
        if len(vendors) > 1:
            text = f"container {claim.container} of {claim.pod.record.key}"
            raise SpecBuildError(f"{text} has cards of several vendors")
        mechanism = by in (Isolation.MPS, Isolation.INTERPOSER)
        if mechanism and (problem := self.why_not(by, hardware)) is not None:
            text = f"{claim.container} of {claim.pod.record.key} cannot be limited by"
            raise SpecBuildError(f"{text} {by.value}: {problem}")
        if vendors != {Vendor.NVIDIA}:
            return self._masked(spec, claim, hardware, taken)
        uuids = ",".join(card.uuid for card in claim.cards)
        spec = replace(spec, env={**spec.env, names.ENV_VISIBLE_DEVICES: uuids})
        try:
            spec = self._with_driver(spec, claim, inventory)
        except NvidiaCdiError as error:
            raise SpecBuildError(str(error)) from error
        if not mechanism:
            return spec
        return self._by_mps(spec, claim) if by is Isolation.MPS else self._by_library(spec, claim)

    def why_not_any_more(self, mounts: Iterable[Mount]) -> str | None:
        """Return why what a container was created with limits it no more, right before its start.

        Args:
            mounts: the container's.
        """
        for mount in mounts:
            if mount.path == _PIPE_DIR and (why := self._mps.silent(mount.host_path)) is not None:
                return f"its MPS daemon does not answer: {why}"
        return None

    def _masked(
        self,
        spec: CdiSpec,
        claim: Claim,
        hardware: tuple[CardHardware, ...],
        taken: Iterable[Units] | None,
    ) -> CdiSpec:
        """Return *spec* with the compute units of the container, where it asks for a part."""
        units = compute_units.units_of(
            hardware,
            {part.card: part.cores for part in claim.slices},
            taken=taken,
            holder=f"{claim.pod.record.uid}/{claim.container}",
        )
        if not units:
            return spec
        masks = {
            names.ENV_CU_MASK: compute_units.mask(hardware, units),
            names.ENV_COMPUTE_UNITS: compute_units.write_units(units),
        }
        return replace(spec, env={**spec.env, **masks})

    def _with_driver(self, spec: CdiSpec, claim: Claim, inventory: Inventory) -> CdiSpec:
        """Return *spec* with the edits of NVIDIA's spec for the claim's cards, if there is one."""
        theirs = [each for each in inventory.card_list.cards if each.vendor is Vendor.NVIDIA]
        nvidia = self._nvidia_specs.find(theirs)
        if nvidia is None:
            return spec
        by_uuid = {hardware.card.uuid: hardware for hardware in inventory.card_list.cards}
        edits = (nvidia.common, *(nvidia.edits(by_uuid[card.uuid]) for card in claim.cards))
        return replace(
            spec,
            version=newest(spec.version, nvidia.version),
            # NVIDIA's spec sets "void", so that an older runtime adds nothing; our value wins.
            foreign_env=tuple(
                variable for edit in (nvidia.common, *edits) for variable in edit.get("env") or ()
            ),
            foreign_nodes=_distinct(edits, "deviceNodes", by="path"),
            foreign_mounts=_distinct(edits, "mounts", by="containerPath"),
            hooks=tuple(
                hook
                for hook in _distinct(edits, "hooks")
                if _LIMITS not in (hook.get("args") or ())
            ),
        )

    def _by_mps(self, spec: CdiSpec, claim: Claim) -> CdiSpec:
        try:
            folders = self._mps.folders(claim.cards[0].uuid)
        except MpsError as error:
            raise SpecBuildError(str(error)) from error
        (part,) = claim.slices
        env = {
            "CUDA_MPS_PIPE_DIRECTORY": _PIPE_DIR,
            "CUDA_MPS_LOG_DIRECTORY": _LOG_DIR,
            # The daemon shows its one card as number 0: an entry for a card that is not visible
            # would drop all limits. The limit applies to each process.
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={part.mib}M",
        }
        if part.cores:
            env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(part.cores)
        mounts = [
            Mount(host_path=folders.pipe, path=_PIPE_DIR),
            Mount(host_path=folders.log, path=_LOG_DIR),
        ]
        if folders.shm:
            mounts.append(Mount(host_path=folders.shm, path="/dev/shm"))  # noqa: S108 - MPS's own
        return replace(spec, env={**spec.env, **env}, mounts=(*spec.mounts, *mounts))

    def _by_library(self, spec: CdiSpec, claim: Claim) -> CdiSpec:
        env = {"LD_PRELOAD": _LIBRARY}
        for index, part in enumerate(claim.slices):
            env[f"{names.ENV_MEMORY_LIMIT_PREFIX}{index}"] = f"{part.mib}m"
        if claim.slices[0].cores:
            env[names.ENV_SM_LIMIT] = str(claim.slices[0].cores)
        mount = Mount(host_path=str(self._interposer.file), path=_LIBRARY, read_only=True)
        return replace(spec, env={**spec.env, **env}, mounts=(*spec.mounts, mount))


def _distinct(
    edits: Iterable[Mapping[str, Any]], key: str, *, by: str = ""
) -> tuple[Mapping[str, Any], ...]:
    """Return the items of all edits under *key*; of those equal, or equal in *by*, the first."""
    found: list[Mapping[str, Any]] = []
    for edit in edits:
        for item in edit.get(key) or ():
            equal = (
                other for other in found if other == item or (by and other[by] == item.get(by))
            )
            if next(equal, None) is None:
                found.append(item)
    return tuple(found)
