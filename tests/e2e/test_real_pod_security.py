"""Pod Security "restricted", judged by the real API server: every pod of ours but two."""

import re
from pathlib import Path
from typing import Any, Final

import pytest

from tests.deploy.test_certificates import built
from tests.support.kubectl import Kubectl
from tests.support.real_apiserver import real_api_server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

Json = dict[str, Any]

# docs/security.md has the reason of each.
EXCEPTIONS: Final = {
    "fracgpu-deviceplugin": {
        "host namespaces",
        "privileged",
        "allowPrivilegeEscalation != false",
        "unrestricted capabilities",
        "restricted volume types",
        "runAsNonRoot != true",
        "runAsUser=0",
        "seccompProfile",
    },
    "fracgpu-kube-scheduler-files": {
        "host namespaces",
        "restricted volume types",
        "runAsNonRoot != true",
        "runAsUser=0",
    },
}


def pods() -> dict[str, Json]:
    """Return a pod of each workload, with a name and without its account, which is not there."""
    found = {}
    for body in built("overlays/cluster-scheduler/prepare"):
        if body["kind"] in ("Deployment", "DaemonSet"):
            name = body["metadata"]["name"]
            spec = {
                key: value
                for key, value in body["spec"]["template"]["spec"].items()
                if key not in ("serviceAccountName", "priorityClassName")
            }
            metadata = {"name": name, "namespace": "restricted"}
            found[name] = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    return found


def violations(said: str) -> set[str]:
    """Return what PodSecurity found, without the containers and values."""
    _, _, listed = said.partition('violates PodSecurity "restricted:latest": ')
    without = re.sub(r"\([^()]*(?:\([^()]*\)[^()]*)*\)", "", listed)
    return {part.strip() for part in without.split(",")} - {""}


async def test_each_pod_is_restricted_but_those_with_a_reason(tmp_path: Path) -> None:
    async with real_api_server(tmp_path) as api:
        kubectl = Kubectl.find(api.kubeconfig(tmp_path / "kubeconfig"))
        await kubectl("create", "namespace", "restricted")
        level = "pod-security.kubernetes.io/enforce=restricted"
        await kubectl("label", "namespace", "restricted", level)
        found = {}
        for name, body in pods().items():
            answer = await kubectl.ask("create", "--dry-run=server", "-f", "-", stdin=body)
            if not answer.ok:
                assert "PodSecurity" in answer.error, answer.error
                found[name] = violations(answer.error)

    assert len(pods()) == 6
    assert found == EXCEPTIONS
