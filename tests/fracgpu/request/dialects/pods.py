"""Builders: a pod of one container, its row of a table, and what becomes of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from fracgpu.errors import RequestError
from fracgpu.k8s.container import ContainerSpec
from fracgpu.request.dialects import Options, PodForDialects, Translation, translate_request
from fracgpu.request.need import PodRequest, SliceRequest, Strategy

NAME = "train"


@dataclass(frozen=True, kw_only=True)
class Row:
    """Raw pieces of a pod in, and all that is to come out of them."""

    limits: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    options: Options = field(default_factory=Options)
    part: SliceRequest
    written: Mapping[str, str]
    raw: str
    models: tuple[str, ...] = ()
    strategy: Strategy | None = None
    warnings: tuple[str, ...] = ()


def a_spec(limits: Mapping[str, str] | None = None, *, name: str = NAME) -> ContainerSpec:
    """Build a container as the API server shows it: requests are a copy of the limits."""
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
    return translate_request(pod, enabled=frozenset(enabled), options=options or Options())


def refusal(pod: PodForDialects, *enabled: str, options: Options | None = None) -> str:
    with pytest.raises(RequestError) as refused:
        read(pod, *enabled, options=options)
    return str(refused.value)


def check(dialect: str, row: Row) -> None:
    """Hold the whole outcome against the row."""
    pod = a_pod(row.limits, annotations=row.annotations, labels=row.labels)

    assert read(pod, dialect, options=row.options) == Translation(
        request=PodRequest(slices=(row.part,), models=row.models, strategy=row.strategy),
        annotations={f"fracgpu.io/{key}": text for key, text in row.written.items()},
        removals={NAME: tuple(sorted(row.limits))} if row.limits else {},
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
    """Hold a whole refusal; ``L(key)`` in *sentence* stands for the place of a limit."""
    pod = a_pod(limits, annotations=annotations)
    assert refusal(pod, dialect, options=options) == places(sentence)


def places(sentence: str) -> str:
    """Spell out ``L(key)`` as the place of a limit."""
    pieces = sentence.split("L(")
    spelled = [pieces[0]]
    for piece in pieces[1:]:
        key, _, rest = piece.partition(")")
        spelled.append(f"limits['{key}'] of container '{NAME}'{rest}")
    return "".join(spelled)
