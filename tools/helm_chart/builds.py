"""What ``kubectl apply -k`` would send for a folder, read into objects."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import yaml

from tools.helm_chart.template import Expression

Json = dict[str, Any]
Key = tuple[str, str, str]
ROOT: Final = Path(__file__).parents[2]
# What kustomize appends to the names of generated ConfigMaps: ten of these characters.
_HASHED: Final = re.compile(r"(?P<stem>.+)-[25-9bcdfghkmt4]{10}")
_LIMIT_S: Final = 60


class BuildError(Exception):
    """kubectl is missing or refused a folder; the message says which."""


def build(folder: Path) -> list[Json]:
    """Return the objects of one kustomization.

    Raises:
        BuildError: kubectl is not installed, or the kustomization is invalid.
    """
    try:
        done = subprocess.run(  # noqa: S603 - our own folders
            ["kubectl", "kustomize", str(folder)],  # noqa: S607 - whichever is installed
            capture_output=True,
            check=False,
            text=True,
            timeout=_LIMIT_S,
        )
    except FileNotFoundError as error:
        raise BuildError("kubectl is not installed; it builds the kustomizations") from error
    if done.returncode != 0:
        raise BuildError(f"{folder}: {done.stderr.strip()}")
    return [body for body in read_documents(done.stdout) if body]


def read_documents(text: str) -> list[Any]:
    """Return the documents of *text*, read by libyaml where PyYAML has it: ten times as fast."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return list(yaml.load_all(text, Loader=loader))


def key_of(body: Json) -> Key:
    """Return kind, namespace and name."""
    metadata = body["metadata"]
    return body["kind"], metadata.get("namespace", ""), metadata["name"]


def without_hashes(objects: list[Json]) -> dict[Key, Json]:
    """Return objects by key, with generated names as expressions that make the same name."""
    stems = {
        body["metadata"]["name"]: found["stem"]
        for body in objects
        if body["kind"] == "ConfigMap"
        if (found := _HASHED.fullmatch(body["metadata"]["name"]))
    }

    def unhashed(value: Any) -> Any:
        if isinstance(value, str) and value in stems:
            return hashed_name(stems[value])
        return value

    renamed = {}
    for body in objects:
        kind, namespace, name = key_of(body)
        renamed[kind, namespace, stems.get(name, name)] = _mapped(body, unhashed)
    return renamed


def hashed_name(stem: str) -> Expression:
    """Return the name of a generated ConfigMap; ``_helpers.tpl`` computes kustomize's hash."""
    return Expression(f'include "fracgpu.hashedName" (list . "{stem}")')


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    match value:
        case dict():
            return {key: _mapped(inner, change) for key, inner in value.items()}
        case list():
            return [_mapped(inner, change) for inner in value]
        case _:
            return change(value)
