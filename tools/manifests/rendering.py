"""Render the chart with Helm into the files of ``deploy/`` and ``overlays/``.

A template becomes the file of the same path in ``deploy/``, with the comments of the template. A
file that kustomize puts into a ConfigMap, so that pods restart when it changes, is taken out of the
chart's ConfigMap. What an overlay changes in other objects is a patch beside them, written by hand;
tests compare what it builds with what the chart renders (``tests/deploy/test_chart.py``).
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "charts" / "fracgpu"
HELM_ENV: Final = "HELM"
_LIMIT_S: Final = 120
_FIXED: Final = {"creator": "kustomize", "namespace": {"create": True}}
# The oldest version that the chart allows: no template depends on a newer one.
_KUBERNETES: Final = "1.30.0"
_DOCUMENT: Final = re.compile(r"^---\n# Source: fracgpu/templates/(.+)\n", re.MULTILINE)
_COPIES: Final[Mapping[str, str]] = {
    "files/fracgpu.rules.yaml": "deploy/alerts/fracgpu.rules.yaml",
    **{
        str(path.relative_to(CHART)): f"deploy/grafana/{path.name}"
        for path in sorted(CHART.glob("files/dashboards/*.json"))
    },
}


class RenderError(Exception):
    """Helm is missing or refused the chart; the text says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Render:
    """One call of Helm.

    Attributes:
        values: besides those of every call.
        files: the template of each file that is written.
        data: the template of each file that is the only entry of a ConfigMap.
    """

    values: Mapping[str, Any]
    files: Mapping[str, str]
    data: Mapping[str, str]


def _same(*paths: str) -> dict[str, str]:
    return {f"deploy/{path}": path for path in paths}


RENDERS: Final = (
    Render(
        values={},
        files=_same(
            "certs.yaml",
            "config.yaml",
            "crds/moves.yaml",
            "deviceplugin.yaml",
            "flowschemas.yaml",
            "namespace.yaml",
            "networkpolicies.yaml",
            "policies-devices.yaml",
            "policies-hints.yaml",
            "policies-rebalancer.yaml",
            "policies.yaml",
            "rebalancer.yaml",
            "scheduler.yaml",
            "webhook.yaml",
        ),
        data=_same("scheduler-profile.yaml"),
    ),
    Render(
        values={"certificates": {"mode": "cert-manager"}},
        files=_same("cert-manager/certificates.yaml"),
        data={},
    ),
    Render(
        values={"scheduler": {"mode": "prepare"}},
        files=_same(
            "cluster-scheduler/files/agent.yaml", "cluster-scheduler/files/networkpolicy.yaml"
        ),
        data=_same("cluster-scheduler/files/config.yaml"),
    ),
    Render(
        values={"wiring": "claims"},
        files=_same("claims/classes.yaml", "claims/policies.yaml"),
        data={},
    ),
    Render(
        values={"platform": "openshift"},
        files=_same("platforms/openshift/constraints.yaml"),
        data={},
    ),
    Render(
        values={"prometheus": {"operator": {"enabled": "always"}}},
        files=_same("prometheus-operator/podmonitor.yaml", "prometheus-operator/rules.yaml"),
        data={},
    ),
    Render(values={"mps": {"enabled": True}}, files={"overlays/mps/mps.yaml": "mps.yaml"}, data={}),
    Render(
        values={"simulatedCards": {"enabled": True}},
        files={},
        data={"overlays/simulated-cards/cards.yaml": "simulated-cards.yaml"},
    ),
)


def manifests() -> dict[str, str]:
    """Return the text of each file that is rendered or copied, by its path in the repository.

    Raises:
        RenderError: there is no Helm, it refused the chart, or a template rendered nothing.
    """
    found = {path: (CHART / name).read_text() for name, path in _COPIES.items()}
    for render in RENDERS:
        documents = _rendered(render.values)
        for path, template in render.files.items():
            text = "---\n".join(_of(documents, template))
            origin = f"charts/fracgpu/templates/{template}"
            found[path] = (
                f"# Rendered by `make manifests` from {origin}: change that instead.\n{text}"
            )
        for path, template in render.data.items():
            (document,) = _of(documents, template)
            (found[path],) = yaml.safe_load(document)["data"].values()
    return found


def _of(documents: Mapping[str, list[str]], template: str) -> list[str]:
    if template not in documents:
        raise RenderError(f"templates/{template} rendered nothing; want at least one object")
    return documents[template]


def _rendered(values: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the documents of each template in Helm's order."""
    helm = os.environ.get(HELM_ENV) or shutil.which("helm")
    if helm is None:
        raise RenderError(f"no helm: neither in {HELM_ENV} nor on the PATH")
    done = subprocess.run(  # noqa: S603 - the helm of the developer's choice
        [
            *(helm, "template", "fracgpu", str(CHART), "--namespace=fracgpu-system"),
            *(f"--kube-version={_KUBERNETES}", "--values=-"),
        ],
        input=json.dumps({**_FIXED, **values}),
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_S,
    )
    if done.returncode:
        raise RenderError(done.stderr.strip())
    _, *parts = _DOCUMENT.split(done.stdout)
    found: dict[str, list[str]] = {}
    for template, text in zip(parts[::2], parts[1::2], strict=True):
        lines = [line.rstrip() for line in text.strip().splitlines()]
        found.setdefault(template, []).append("\n".join(lines) + "\n")
    return found
