"""What a dialect is: the keys it owns, and one pure function that reads them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from typing import Final

from fracgpu.k8s.container import ContainerSpec
from fracgpu.request.need import Strategy
from fracgpu.units import Mib

WHOLE: Final = Fraction(1)


class MemoryUnit(Enum):
    """What one ``aliyun.com/gpu-mem`` is; the pod does not say, the cluster's plugin decides."""

    MIB = "MiB"
    GIB = "GiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a pod of another system leaves to its cluster, so an administrator has to say it.

    Attributes:
        gpushare_unit: what one ``aliyun.com/gpu-mem`` is.
        hami_memory_factor: MiB in one ``nvidia.com/gpumem``.
        hami_default_count: cards of a HAMi container that states memory or cores but no count.
        volcano_memory_factor: MiB in one ``volcano.sh/vgpu-memory``.
        nvidia_replicas: into how many one card was cut for ``nvidia.com/gpu.shared``; None refuses.
        aws_vgpus_per_card: into how many one card was cut for ``k8s.amazonaws.com/vgpu``.
        tensor_fusion_runs: whether that operator serves pods labelled for it, so we do not.
        kai_runs: whether that scheduler serves the pods that name it, so we do not.
    """

    gpushare_unit: MemoryUnit = MemoryUnit.GIB
    hami_memory_factor: int = 1
    hami_default_count: int = 1
    volcano_memory_factor: int = 1
    nvidia_replicas: int | None = None
    aws_vgpus_per_card: int = 10
    tensor_fusion_runs: bool = False
    kai_runs: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PodForDialects:
    """The parts of a pod, and of its namespace, that can carry a request."""

    containers: tuple[ContainerSpec, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    scheduler_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignRequest:
    """What one container asks, in our own terms: a share or MiB on each of *cards* cards.

    Attributes:
        share: exact share of a card, 1 for a whole one; None where *mib* says it.
        mib: MiB per card; None where *share* says it.
        cores: percent of one card's compute, 0 where it is shared freely.
        sources: pod annotations it was read from, beside the container's limits.
        written: the keys that its author wrote, with their texts; filled in, like what follows, by
            the reader of the whole pod.
        origin: dialect and raw text, for the user.
        foreign: resources to take out of the container's limits and requests.
    """

    container: str
    cards: int = 1
    share: Fraction | None = None
    mib: Mib | None = None
    cores: int = 0
    sources: tuple[str, ...] = ()
    written: tuple[tuple[str, str], ...] = ()
    origin: str = ""
    foreign: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectReading:
    """What one dialect asks of one pod; without *requests* it asks for nothing.

    Attributes:
        models: globs of the card models allowed, with a leading ``!`` of those excluded.
        strategy: which of several fitting cards is preferred.
        warnings: what was understood and cannot be had here.
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
    """Build a set of keys from names and from regular expressions that match a key in full."""
    return Keys(frozenset(exact), tuple(re.compile(it, re.ASCII) for it in patterns))


def _leaves_nothing(_pod: PodForDialects, _options: Options) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One row of the table.

    Attributes:
        name: how an administrator turns it on; letters, digits and dashes.
        title: whose language it is.
        limits: the resources it reads in a container's limits.
        annotations: the pod annotations it reads.
        read: gives what is asked; sees only the dialect's own limits and annotations, every label.
        leaves: tells that a pod is none of our business, however it asks.
        rivals: resources that no container of the pod may ask beside it.
        quiet: keys that mean something else, or nothing, to a cluster without this dialect, so they
            are not worth a warning alone.
        family: how keys begin that are this system's, known to us or not; a pod that is taken over
            keeps none of them without a word.
        labels: the pod labels it reads.
        model_keys: those of *annotations* that choose card models.
        schedulers: the schedulers of this system; a pod that is taken over does not go to them.
    """

    name: str
    title: str
    limits: Keys = Keys()
    annotations: Keys = Keys()
    read: Callable[[PodForDialects, Options], DialectReading]
    leaves: Callable[[PodForDialects, Options], bool] = _leaves_nothing
    rivals: frozenset[str] = frozenset()
    quiet: frozenset[str] = frozenset()
    family: tuple[str, ...] = ()
    labels: frozenset[str] = frozenset()
    model_keys: tuple[str, ...] = ()
    schedulers: frozenset[str] = frozenset()
