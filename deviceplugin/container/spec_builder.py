"""Builds what a container gets: device files, driver libraries, environment, isolation."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum
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

MPS: Final = "mps"
_PIPE_DIR: Final = "/run/fracgpu-mps/pipe"
_LOG_DIR: Final = "/run/fracgpu-mps/log"
# What limits programs on NVIDIA's cards only.
_INTERPOSER: Final = "interposer"
_ONLY_NVIDIA: Final = (MPS, _INTERPOSER)


# A hook that limits a card's memory by variables that the container's image may set too, and with
# which no container starts where the driver cannot limit.
# Source: NVIDIA container toolkit 1.20, cmd/nvidia-cdi-hook/apply-cuda-memory-limits.
_LIMITS: Final = "apply-cuda-memory-limits"


class SpecBuildError(Exception):
    """A container's spec cannot be built; the text says why."""


class Enforcer(Enum):
    """The library in the containers that enforces their share, by the variables it reads.

    HAMI_CORE: ``CUDA_DEVICE_MEMORY_LIMIT_<i>`` and ``CUDA_DEVICE_SM_LIMIT``.
    """

    NONE = "none"
    HAMI_CORE = "hami-core"


class MpsError(Exception):
    """The card has no MPS daemon that is ready."""


class MpsFolders(Protocol):
    """Where a card's MPS daemon keeps its files, as paths on the host."""

    @property
    def pipe(self) -> str: ...
    @property
    def log(self) -> str: ...
    @property
    def shm(self) -> str: ...


class Mps(Protocol):
    """Runs MPS daemons."""

    async def prepare(self, cards: Iterable[CardUuid]) -> None:
        """Start the daemons that do not run yet, and wait until each is ready or has failed."""
        ...

    def folders(self, card: CardUuid) -> MpsFolders:
        """Return the folders of a daemon that is ready; in any thread.

        Raises:
            MpsError: it is not ready.
        """
        ...


class ContainerSpecBuilder:
    """Builds the CDI specs of containers, in any thread; reads NVIDIA's spec if it has changed.

    Args:
        nvidia_specs: the driver's own specs.
        enforcer: the library in the containers' images or on the node.
        mps: runs MPS daemons; None on a node without MPS.
    """

    def __init__(
        self,
        nvidia_specs: NvidiaCdiSpecs,
        *,
        enforcer: Enforcer = Enforcer.NONE,
        mps: Mps | None = None,
    ) -> None:
        self._nvidia_specs = nvidia_specs
        self._enforcer = enforcer
        self._mps = mps

    def build(
        self, name: str, claim: Claim, inventory: Inventory, *, taken: Iterable[Units] | None = None
    ) -> CdiSpec:
        """Return the spec of the CDI device *name*, for the container of *claim*.

        Args:
            name: of the CDI device.
            claim: whose container it is, and its slices.
            inventory: the node's cards.
            taken: the compute units of the node's other containers; None where they are not known.

        Raises:
            SpecBuildError: something that the container needs is missing.
        """
        nodes = inventory.device_nodes(claim.cards)
        spec = spec_for(name, claim.slices, claim.cards, nodes)
        spec = replace(spec, env={**spec.env, **self._gpushare_names(claim)})
        hardware = inventory.hardware(claim.cards)
        vendors = {each.vendor for each in hardware}
        if len(vendors) > 1:
            text = f"container {claim.container} of {claim.pod.record.key}"
            raise SpecBuildError(f"{text} has cards of several vendors")
        if vendors != {Vendor.NVIDIA}:
            return self._masked(spec, claim, hardware, taken)
        uuids = ",".join(card.uuid for card in claim.cards)
        env = {names.ENV_VISIBLE_DEVICES: uuids, **self._enforcers_names(claim)}
        spec = replace(spec, env={**spec.env, **env})
        try:
            spec = self._with_driver(spec, claim, inventory)
        except NvidiaCdiError as error:
            raise SpecBuildError(str(error)) from error
        return self._isolated(spec, claim)

    def isolation(self, claim: Claim, inventory: Inventory) -> str:
        """Return what of a spec enforces a claim's share: ``mps``, ``interposer`` or ``none``."""
        if any(each.vendor is not Vendor.NVIDIA for each in inventory.hardware(claim.cards)):
            return "none"
        if self._mps is not None and len(claim.cards) == 1:
            return MPS
        return _INTERPOSER if self._enforcer is Enforcer.HAMI_CORE else "none"

    def _masked(
        self,
        spec: CdiSpec,
        claim: Claim,
        hardware: tuple[CardHardware, ...],
        taken: Iterable[Units] | None,
    ) -> CdiSpec:
        """Return *spec* with the compute units of the container, where it asks for a part."""
        words = claim.pod.annotations.get(names.ISOLATION, "").split(",")
        wanted = [word.strip() for word in words]
        if all(word in _ONLY_NVIDIA for word in wanted):
            raise SpecBuildError(
                f"{claim.pod.record.key} requests {names.ISOLATION}: {', '.join(wanted)}, which "
                "works on NVIDIA's cards only"
            )
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

    def _gpushare_names(self, claim: Claim) -> dict[str, str]:
        """Return the variables for programs written for gpushare: of the first card."""
        first, card = claim.slices[0], claim.cards[0]
        return {
            names.ENV_ALIYUN_CONTAINER: str(first.mib),
            names.ENV_ALIYUN_DEV: str(card.total_mib),
        }

    def _enforcers_names(self, claim: Claim) -> dict[str, str]:
        """Return the variables of the enforcing library: limits by index."""
        first, env = claim.slices[0], dict[str, str]()
        if self._enforcer is Enforcer.HAMI_CORE:
            for index, part in enumerate(claim.slices):
                env[f"{names.ENV_MEMORY_LIMIT_PREFIX}{index}"] = f"{part.mib}m"
            if first.cores:
                env[names.ENV_SM_LIMIT] = str(first.cores)
        return env

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

    def _isolated(self, spec: CdiSpec, claim: Claim) -> CdiSpec:
        requested = claim.pod.annotations.get(names.ISOLATION) == MPS
        if self._mps is None:
            if requested:
                raise SpecBuildError(
                    f"{claim.pod.record.key} requests MPS, which is off on this node"
                )
            return spec
        if len(claim.cards) > 1:
            if requested:
                text = f"container {claim.container} of {claim.pod.record.key} has several cards"
                raise SpecBuildError(f"{text}, and MPS limits a container on one card only")
            return spec
        try:
            folders = self._mps.folders(claim.cards[0].uuid)
        except MpsError as error:
            raise SpecBuildError(str(error)) from error
        (part,) = claim.slices
        env = {
            "CUDA_MPS_PIPE_DIRECTORY": _PIPE_DIR,
            "CUDA_MPS_LOG_DIRECTORY": _LOG_DIR,
            # The daemon shows its one card as number 0. The limit applies to each process.
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
