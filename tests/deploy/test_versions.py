"""Every supported version of Kubernetes serves every field of every object that ships.

The table is made by ``kubernetes_fields.py``. A field that a version does not know would be
dropped there without a word, by ``kubectl apply`` as by the API server.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.deploy.test_certificates import ROOT, built

OLDEST, NEWEST = 30, 36
SINCE: Final = {"overlays/claims": 36}  # of what needs a newer version
FIELDS: Final[dict[str, dict[str, tuple[str, int]]]] = json.loads(
    (Path(__file__).parent / "kubernetes_fields.json").read_text()
)
FOLDERS = (
    "deploy",
    *sorted(
        str(path.parent.relative_to(ROOT)) for path in ROOT.glob("overlays/**/kustomization.yaml")
    ),
)
_LIST: Final = re.compile(r"list\[(\w+)\]")
_MAP: Final = re.compile(r"dict\(str, (\w+)\)")


def unknown(body: Any, definition: str, *, minor: int, path: str) -> Iterator[str]:
    """Yield each field of *body* that Kubernetes 1.*minor* does not have."""
    for name, value in body.items():
        kind, since = FIELDS[definition].get(name, ("", NEWEST + 1))
        if since > minor:
            yield f"{path}.{name}"
            continue
        for part, inner in parts(value, kind):
            yield from unknown(part, inner, minor=minor, path=f"{path}.{name}")


def parts(value: Any, kind: str) -> list[tuple[Any, str]]:
    """Return the objects inside a field of this type, each with its definition."""
    if found := _LIST.fullmatch(kind):
        inside, kind = list(value or ()), found[1]
    elif found := _MAP.fullmatch(kind):
        inside, kind = list((value or {}).values()), found[1]
    else:
        inside = [value]
    return [(part, kind) for part in inside if kind in FIELDS and isinstance(part, dict)]


def definition_of(body: dict[str, Any]) -> str:
    version = body["apiVersion"].rpartition("/")[2].capitalize()
    return f"{version}{body['kind']}"


@pytest.mark.parametrize(
    ("folder", "minor"),
    [
        (folder, minor)
        for folder in FOLDERS
        for minor in range(SINCE.get(folder, OLDEST), NEWEST + 1)
    ],
)
def test_each_supported_version_serves_what_ships(folder: str, minor: int) -> None:
    for body in built(folder):
        if body["apiVersion"].startswith(("cert-manager.io/", "monitoring.coreos.com/")):
            continue  # served by cert-manager and the Prometheus operator
        path = f"{body['kind']} {body['metadata']['name']}"
        assert definition_of(body) in FIELDS, "add it to ROOTS in kubernetes_fields.py"
        assert list(unknown(body, definition_of(body), minor=minor, path=path)) == []


@pytest.mark.parametrize(
    ("field", "since"), [("hostnameOverride", 34), ("podGroupName", None), ("hostPID", 30)]
)
def test_a_field_is_unknown_to_the_versions_before_it(field: str, since: int | None) -> None:
    body = {"template": {"spec": {field: "x", "containers": []}}}

    served = [
        minor
        for minor in range(OLDEST, NEWEST + 1)
        if not list(unknown(body, "V1DeploymentSpec", minor=minor, path="spec"))
    ]

    assert served == ([] if since is None else list(range(since, NEWEST + 1)))


def test_what_kustomize_names_is_the_version_that_was_tested() -> None:
    (image,) = [
        container["image"]
        for body in built("deploy")
        if body["kind"] == "Deployment"
        for container in body["spec"]["template"]["spec"]["containers"]
        if container["name"] == "kube-scheduler"
    ]
    kustomization = yaml.safe_load((ROOT / "deploy" / "kustomization.yaml").read_text())
    (version,) = [
        image["newTag"] for image in kustomization["images"] if image["name"] == "kube-scheduler"
    ]

    assert image == f"registry.k8s.io/kube-scheduler:{version}"
    assert version.startswith(f"v1.{NEWEST}.")
