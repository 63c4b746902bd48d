"""deploy/ has what the certificates role needs, and cert-manager can replace it."""

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from certs.service import adopted_of, desired_of
from certs.settings import CertsSettings
from process.settings import load
from tests.support.yaml_files import read_documents

ROOT = Path(__file__).parents[2]
Json = dict[str, Any]


@cache
def built(folder: str) -> tuple[Json, ...]:
    """Return the manifests that ``kubectl apply -k`` would send."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    command = [kubectl, "kustomize", str(ROOT / folder)]
    out = subprocess.run(command, capture_output=True, check=False, timeout=60, text=True)  # noqa: S603 - our own folders
    assert out.returncode == 0, out.stderr
    return tuple(read_documents(out.stdout))


def named(folder: str, kind: str, name: str) -> Json:
    (found,) = [
        manifest
        for manifest in built(folder)
        if (manifest["kind"], manifest["metadata"]["name"]) == (kind, name)
    ]
    return found


def settings_in(folder: str) -> CertsSettings:
    pod = named(folder, "Deployment", "fracgpu-certs")["spec"]["template"]["spec"]
    role, *flags = pod["containers"][0]["args"][1:]
    assert role == "certs"
    return load(CertsSettings, flags, {}, program="certs")


def rules_on(folder: str, resource: str) -> list[Json]:
    rules = named(folder, "Role", "fracgpu-certs")["rules"]
    return [rule for rule in rules if resource in rule["resources"]]


def test_the_role_may_write_its_own_secrets_and_read_no_others() -> None:
    wanted = desired_of(settings_in("deploy"))
    create, named_ones = rules_on("deploy", "secrets")

    assert (create["verbs"], "resourceNames" in create) == (["create"], False)
    assert set(named_ones["resourceNames"]) == {wanted.ca_secret, *wanted.leaves}
    assert set(named_ones["verbs"]) == {"get", "list", "watch", "update"}
    assert rules_on("deploy", "endpointslices")[0]["verbs"] == ["list"]


def test_who_reads_an_authority_only_at_its_start_is_restarted_by_a_role_that_may() -> None:
    readers = desired_of(settings_in("deploy")).readers
    (rule,) = rules_on("deploy", "deployments")
    mounting = [
        manifest["metadata"]["name"]
        for manifest in built("deploy")
        if manifest["kind"] == "Deployment"
        for volume in manifest["spec"]["template"]["spec"].get("volumes", ())
        if volume.get("secret", {}).get("secretName") == "fracgpu-scheduler-client"
    ]

    assert list(readers) == mounting == rule["resourceNames"]
    assert set(rule["verbs"]) == {"get", "patch"}


def test_with_cert_manager_the_role_writes_no_secret_and_never_sees_the_authoritys_key() -> None:
    folder = "overlays/cert-manager"
    settings = settings_in(folder)
    (rule,) = rules_on(folder, "secrets")

    assert settings.mode == "cert-manager"
    assert set(rule["verbs"]) == {"get", "list", "watch"}
    assert set(rule["resourceNames"]) == set(adopted_of(settings).secrets)


def test_cert_manager_writes_the_secrets_that_the_roles_read() -> None:
    certificates = [
        manifest for manifest in built("overlays/cert-manager") if manifest["kind"] == "Certificate"
    ]
    wanted = desired_of(settings_in("overlays/cert-manager"))
    made = {certificate["spec"]["secretName"]: certificate["spec"] for certificate in certificates}

    assert set(made) == {"fracgpu-cert-manager-ca", *wanted.leaves}
    webhook = made["fracgpu-webhook-tls"]
    assert "fracgpu-webhook.fracgpu-system.svc" in webhook["dnsNames"]
    assert "server auth" in webhook["usages"]
    assert made["fracgpu-scheduler-client"]["usages"] == ["digital signature", "client auth"]


def test_the_rest_is_the_same_with_cert_manager() -> None:
    def rest(folder: str) -> list[Json]:
        changed = [("Deployment", "fracgpu-certs"), ("Role", "fracgpu-certs")]
        return [
            manifest
            for manifest in built(folder)
            if (manifest["kind"], manifest["metadata"]["name"]) not in changed
            and not manifest["apiVersion"].startswith("cert-manager.io/")
        ]

    assert rest("overlays/cert-manager") == rest("deploy")
