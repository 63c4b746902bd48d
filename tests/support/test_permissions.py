"""The judgement of permissions: what is used, what is spare, what is missing."""

import json
from pathlib import Path
from typing import Any

from simulator.demo.service_accounts import user_of
from tests.support.permissions import Call, Permission, calls, missing, permissions, spare


def a_call(**changes: Any) -> Call:
    return Call(
        **{
            "user": user_of("webhook"),
            "verb": "get",
            "group": "",
            "resource": "secrets",
            "namespace": "fracgpu-system",
            "name": "fracgpu-webhook-tls",
            "allowed": True,
            **changes,
        }
    )


GRANTED = Permission(
    role="webhook",
    verb="get",
    group="",
    resource="secrets",
    namespace="fracgpu-system",
    name="fracgpu-webhook-tls",
)


def test_a_permission_is_spare_unless_exactly_it_was_used() -> None:
    assert spare([GRANTED], [a_call()]) == set()
    for changes in (
        {"user": user_of("certs")},
        {"verb": "list"},
        {"group": "apps"},
        {"resource": "secrets/status"},
        {"namespace": "default"},
        {"name": "other"},
    ):
        assert spare([GRANTED], [a_call(**changes)]) == {GRANTED}, changes


def test_a_forbidden_call_is_missing() -> None:
    denied = a_call(allowed=False)

    assert missing([a_call(), denied]) == {denied}


def test_an_audit_log_is_read_into_calls(tmp_path: Path) -> None:
    event = {
        "user": {"username": "u"},
        "verb": "patch",
        "objectRef": {"resource": "pods", "subresource": "status", "namespace": "n", "name": "p"},
        "annotations": {"authorization.k8s.io/decision": "forbid"},
    }
    path_only = {"user": {"username": "u"}, "verb": "get", "requestURI": "/readyz"}
    lines = "\n".join(json.dumps(line) for line in (event, path_only))
    (tmp_path / "audit.log").write_text(f"{lines}\n")

    assert calls(tmp_path) == {
        Call(
            user="u",
            verb="patch",
            group="",
            resource="pods/status",
            namespace="n",
            name="p",
            allowed=False,
        )
    }


def test_deploys_roles_are_read() -> None:
    known = {str(permission) for permission in permissions()}

    assert "scheduler: create pods/binding" in known
    assert "webhook: watch secrets fracgpu-webhook-tls" in known
