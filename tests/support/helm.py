"""Helm, as a user would run it."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from simulator.envtest.control_plane import ASSETS_ENV
from tests.support.yaml_files import read_documents

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "charts" / "fracgpu"
SYSTEM: Final = "fracgpu-system"
HELM_ENV: Final = "HELM"
OPERATOR: Final = "monitoring.coreos.com/v1/PodMonitor"
_LIMIT_S: Final = 300
# As the kube-scheduler that deploy/ names.
TESTED_VERSION: Final = "1.36.2"
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The result of one call of helm."""

    ok: bool
    out: str
    error: str


def helm_or_skip() -> Path:
    """Return the program, or skip the test with where it was looked for."""
    named = os.environ.get(HELM_ENV)
    if named:
        assert Path(named).is_file(), f"{HELM_ENV}={named} is not a file"
        return Path(named)
    beside = Path(os.environ.get(ASSETS_ENV, "/nonexistent")) / "helm"
    found = str(beside) if beside.is_file() else shutil.which("helm")
    if found is None:
        pytest.skip(f"no helm: not in {HELM_ENV}, nor in {ASSETS_ENV}, nor on the PATH")
    return Path(found)


def helm(*words: str, values: Mapping[str, Any] | None = None) -> Done:
    """Run helm with *values* on its standard input."""
    given = ["--values=-"] if values is not None else []
    done = subprocess.run(  # noqa: S603 - the helm of the developer's choice
        [str(helm_or_skip()), *words, *given],
        input=json.dumps(values or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_S,
    )
    return Done(ok=done.returncode == 0, out=done.stdout, error=done.stderr)


def template(
    values: Mapping[str, Any] | None = None,
    *,
    version: str = TESTED_VERSION,
    serves: Sequence[str] = (),
) -> Done:
    """Render the chart as for a cluster of that version, which serves these further kinds."""
    return helm(
        *("template", "fracgpu", str(CHART), f"--namespace={SYSTEM}", f"--kube-version={version}"),
        *(f"--api-versions={kind}" for kind in serves),
        values=values or {},
    )


def rendered(
    values: Mapping[str, Any] | None = None,
    *,
    version: str = TESTED_VERSION,
    serves: Sequence[str] = (),
) -> tuple[Json, ...]:
    """Return the objects that the chart renders to."""
    done = template(values, version=version, serves=serves)
    assert done.ok, done.error
    return tuple(body for body in read_documents(done.out) if body)


def by_key(objects: Sequence[Json]) -> dict[str, Json]:
    """Return objects by kind, namespace and name, without the order that means nothing.

    kustomize puts what an overlay adds to a list of named items before the others, Helm after them.
    Our environment variables do not refer to each other, so theirs means nothing either.
    """
    found = {}
    for body in objects:
        metadata = body["metadata"]
        key = f"{body['kind']} {metadata.get('namespace', '')}/{metadata['name']}"
        assert key not in found, f"{key} is there twice"
        found[key] = _without_order(body)
    return found


def _text(item: Any) -> str:
    return json.dumps(item, sort_keys=True)


def _without_order(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _without_order(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        items = [_without_order(item) for item in value]
        return sorted(items, key=_text) if key in ("volumes", "volumeMounts", "env") else items
    return value
