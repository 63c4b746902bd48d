"""Builders for pods with one container, and checks of their translation."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from msgspec import structs

from fracgpu.errors import RequestError
from fracgpu.k8s.container import ContainerSpec
from fracgpu.request.dialects import Options, PodForDialects, Translation, translate_request
from fracgpu.request.dialects.authors import Authors
from fracgpu.request.need import PodRequest, SliceRequest, Strategy

NAME = "train"


@dataclass(frozen=True, kw_only=True)
class Row:
    """The keys of a pod, and the whole translation that is wanted."""

    limits: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    options: Options = field(default_factory=Options)
    part: SliceRequest
    models: tuple[str, ...] = ()
    strategy: Strategy | None = None
    warnings: tuple[str, ...] = ()
    # What our annotations say, without their prefix, and the author's own words: as most rows
    # have them where none are given.
    written: Mapping[str, str] = field(default_factory=dict)
    raw: str = ""

    def __post_init__(self) -> None:
        if not self.written:
            object.__setattr__(self, "written", self._as_asked())
        if not self.raw:
            keys = sorted(self.limits.items()) or self.annotations.items()
            object.__setattr__(self, "raw", ", ".join(f"{key}={text}" for key, text in keys))

    def _as_asked(self) -> dict[str, str]:
        """Return what our language writes for the part, the models and the strategy."""
        part = self.part
        asked = {
            "fraction": part.share and f"{float(part.share):.9g}",
            "memory": part.mib and f"{part.mib}Mi",
            "cores": part.cores,
            "cards": part.cards if part.cards > 1 else None,
            "model": ", ".join(self.models),
            "placement": self.strategy and self.strategy.value,
        }
        return {key: str(text) for key, text in asked.items() if text}


def a_spec(limits: Mapping[str, str] | None = None, *, name: str = NAME) -> ContainerSpec:
    """Return a container as the API server stores it, with requests copied from the limits."""
    return ContainerSpec(name=name, limits=limits or {}, requests=limits or {})


def a_pod(
    limits: Mapping[str, str] | None = None,
    *more: ContainerSpec,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> PodForDialects:
    return PodForDialects(
        containers=(a_spec(limits), *more), annotations=annotations or {}, labels=labels or {}
    )


def read(pod: PodForDialects, *enabled: str, options: Options | None = None) -> Translation:
    found = translate_request(pod, enabled=frozenset(enabled), options=options or Options())
    return structs.replace(found, authors=Authors())


def refusal(pod: PodForDialects, *enabled: str, options: Options | None = None) -> str:
    with pytest.raises(RequestError) as refused:
        read(pod, *enabled, options=options)
    return str(refused.value)


def check(dialect: str, row: Row) -> None:
    """Assert that the translation is that of the row."""
    pod = a_pod(row.limits, annotations=row.annotations, labels=row.labels)

    assert read(pod, dialect, options=row.options) == Translation(
        request=PodRequest(slices=(row.part,), models=row.models, strategy=row.strategy),
        annotations={f"fracgpu.io/{key}": text for key, text in row.written.items()},
        removals={NAME: tuple(sorted(row.limits))} if row.limits else {},
        dialect=dialect,
        origin=f"{NAME} from {dialect}: {row.raw}",
        warnings=row.warnings,
    )


def check_refused(
    dialect: str,
    limits: Mapping[str, str],
    annotations: Mapping[str, str],
    sentence: str,
    *,
    options: Options | None = None,
) -> None:
    """Assert the error message; ``L(key)`` in *sentence* stands for the name of a limit."""
    pod = a_pod(limits, annotations=annotations)
    assert refusal(pod, dialect, options=options) == places(sentence)


def places(sentence: str) -> str:
    """Return *sentence* with each ``L(key)`` replaced by the name of the limit."""
    pieces = sentence.split("L(")
    spelled = [pieces[0]]
    for piece in pieces[1:]:
        key, _, rest = piece.partition(")")
        spelled.append(f"limits['{key}'] of container '{NAME}'{rest}")
    return "".join(spelled)
