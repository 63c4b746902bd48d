"""What a dialect consists of: the keys that it owns, and a pure function that parses them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Final

import msgspec

from fracgpu.k8s.container import ContainerSpec
from fracgpu.request.need import Strategy
from fracgpu.units import Mib

ONE_CARD: Final = Fraction(1)


class MemoryUnit(Enum):
    """The unit of ``aliyun.com/gpu-mem``, which the device plugin of a cluster determines."""

    MIB = "MiB"
    GIB = "GiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of other systems that a pod does not state, so the administrator configures them.

    Attributes:
        gpushare_unit: the unit of ``aliyun.com/gpu-mem``.
        hami_memory_factor: MiB in one ``nvidia.com/gpumem``.
        hami_default_count: cards of a HAMi container with memory or cores but no count.
        volcano_memory_factor: MiB in one ``volcano.sh/vgpu-memory``.
        nvidia_replicas: ``nvidia.com/gpu.shared`` of one card; None rejects that resource.
        aws_vgpus_per_card: ``k8s.amazonaws.com/vgpu`` of one card.
        tensor_fusion_runs: its operator serves the pods labelled for it, so they are left alone.
        kai_runs: its scheduler serves the pods that name it, so they are left alone.
        burst: limits above what is requested are granted, for those who may; else they are ignored.
    """

    gpushare_unit: MemoryUnit = MemoryUnit.GIB
    hami_memory_factor: int = 1
    hami_default_count: int = 1
    volcano_memory_factor: int = 1
    nvidia_replicas: int | None = None
    aws_vgpus_per_card: int = 10
    tensor_fusion_runs: bool = False
    kai_runs: bool = True
    burst: bool = False


class PodForDialects(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a pod, and of its namespace, that can carry a request.

    Attributes:
        main: the container that the pod says is the main one; None if it does not say. Set by
            :mod:`fracgpu.request.dialects.resolve`.
    """

    containers: tuple[ContainerSpec, ...] = ()
    annotations: Mapping[str, str] = {}
    labels: Mapping[str, str] = {}
    namespace_labels: Mapping[str, str] = {}
    scheduler_name: str = ""
    main: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignRequest:
    """The request of one container in our own terms: a share or MiB on each of *cards* cards.

    Attributes:
        share: exact share of a card, 1 for a whole one; None if the container asks for *mib*.
        mib: MiB per card; None if the container asks for a *share*.
        limit_share, limit_mib: how much it may use beside its *share* or *mib*; None for no more.
        cores: percent of one card's compute, 0 for none reserved.
        sources: pod annotations that it comes from, beside the container's limits.
        written: the keys that its author wrote, with their values. This and the following fields
            are set by :mod:`fracgpu.request.dialects.resolve`.
        dialect: the name of the dialect.
        origin: dialect and raw text, for the user.
        foreign: resources to remove from the container's limits and requests.
    """

    container: str
    cards: int = 1
    share: Fraction | None = None
    mib: Mib | None = None
    limit_share: Fraction | None = None
    limit_mib: Mib | None = None
    cores: int = 0
    sources: tuple[str, ...] = ()
    written: tuple[tuple[str, str], ...] = ()
    dialect: str = ""
    origin: str = ""
    foreign: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectReading:
    """What one dialect finds in one pod; without *requests* the pod asks for nothing in it.

    Attributes:
        requests: one for each container that asks for cards.
        models: globs of the allowed card models, and with a leading ``!`` of the excluded ones.
        strategy: which of several fitting cards is preferred.
        warnings: settings that FracGPU does not support.
    """

    requests: tuple[ForeignRequest, ...] = ()
    models: tuple[str, ...] = ()
    strategy: Strategy | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Keys:
    """A set of keys: some by name, some by pattern."""

    exact: frozenset[str] = frozenset()
    patterns: tuple[re.Pattern[str], ...] = ()

    def __contains__(self, key: str) -> bool:
        return key in self.exact or any(pattern.fullmatch(key) for pattern in self.patterns)


def keys(*exact: str, patterns: tuple[str, ...] = ()) -> Keys:
    """Return a set of keys from names and from regular expressions that match a whole key."""
    return Keys(frozenset(exact), tuple(re.compile(pattern, re.ASCII) for pattern in patterns))


def _leaves_none(_pod: PodForDialects, _options: Options) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One dialect; :mod:`fracgpu.request.dialects.registry` lists them all.

    Attributes:
        name: the name by which it is enabled; letters, digits and dashes.
        title: the name of its system in messages.
        limits: the resources that it parses in a container's limits.
        annotations: the pod annotations that it parses.
        read: parses a pod that has only this dialect's limits and annotations, but all labels.
        leaves: reports whether a pod is to be left alone although it has this dialect's keys.
        rivals: resources that no container of a pod with this dialect may ask for.
        quiet: keys that have another meaning, or none, in a cluster without this dialect, so that
            they cause no warning by themselves.
        family: prefixes of this system's keys, also of those that are not parsed; a translated pod
            that keeps such a key gets a warning.
        labels: the pod labels that it evaluates.
        model_keys: those of *annotations* that choose card models.
        schedulers: the schedulers of this system; a translated pod does not go to them.
    """

    name: str
    title: str
    limits: Keys = Keys()
    annotations: Keys = Keys()
    read: Callable[[PodForDialects, Options], DialectReading]
    leaves: Callable[[PodForDialects, Options], bool] = _leaves_none
    rivals: frozenset[str] = frozenset()
    quiet: frozenset[str] = frozenset()
    family: tuple[str, ...] = ()
    labels: frozenset[str] = frozenset()
    model_keys: tuple[str, ...] = ()
    schedulers: frozenset[str] = frozenset()
