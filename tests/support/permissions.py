"""What the roles may do by ``deploy/``, and what they did by the API server's audit log."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from component.wiring import DEFAULT_WIRING, Wiring
from simulator.demo.service_accounts import deployed, user_of

Json = dict[str, Any]
ROLES: Final = ("webhook", "certs", "scheduler", "deviceplugin", "rebalancer")
_LOG: Final = "audit.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request: who asked for what."""

    user: str
    verb: str
    group: str
    resource: str
    namespace: str
    name: str
    allowed: bool


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Permission:
    """One verb on one resource, for one account.

    Attributes:
        role: as in ``fracgpu run``.
        namespace: where it counts; empty: everywhere.
        name: the only object, or empty for all.
    """

    role: str
    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def covers(self, call: Call) -> bool:
        """Report whether this permission allows *call*."""
        return (
            (self.verb, self.group, self.resource) == (call.verb, call.group, call.resource)
            and user_of(self.role) == call.user
            and self.namespace in ("", call.namespace)
            and self.name in ("", call.name)
        )

    def __str__(self) -> str:
        what = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.role}: {self.verb} {what}{f' {self.name}' if self.name else ''}"


def audit_flags(folder: Path) -> Mapping[str, str]:
    """Return kube-apiserver's flags for a log of what our accounts ask, in *folder*.

    https://kubernetes.io/docs/tasks/debug/debug-cluster/audit/
    """
    ours = {"level": "Metadata", "users": [user_of(role) for role in ROLES]}
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        # A watch may outlive the test: its start is enough.
        "omitStages": ["RequestReceived"],
        "rules": [ours, {"level": "None"}],
    }
    file = folder / "audit-policy.json"
    file.write_text(json.dumps(policy))
    return {"audit-policy-file": str(file), "audit-log-path": str(folder / _LOG)}


def calls(folder: Path) -> set[Call]:
    """Return what our accounts asked of the API server, from the log in *folder*."""
    lines = (folder / _LOG).read_text().splitlines()
    return {_call(event) for line in lines if "objectRef" in (event := json.loads(line))}


def _call(event: Json) -> Call:
    about = event["objectRef"]
    subresource = about.get("subresource")
    decision = event.get("annotations", {}).get("authorization.k8s.io/decision")
    return Call(
        user=event["user"]["username"],
        verb=event["verb"],
        group=about.get("apiGroup", ""),
        resource=about["resource"] + (f"/{subresource}" if subresource else ""),
        namespace=about.get("namespace", ""),
        name=about.get("name", ""),
        allowed=decision != "forbid",
    )


def permissions(wiring: Wiring = DEFAULT_WIRING) -> set[Permission]:
    """Return what ``deploy/`` grants by roles of ours; built-in roles are not ours to shrink."""
    rules = {
        (kind, body["metadata"]["name"]): body["rules"]
        for kind in ("Role", "ClusterRole")
        for body in deployed(kind, wiring)
    }
    return {
        permission
        for kind in ("RoleBinding", "ClusterRoleBinding")
        for binding in deployed(kind, wiring)
        for permission in _granted(binding, rules)
    }


def _granted(binding: Json, rules: Mapping[tuple[str, str], list[Json]]) -> Iterable[Permission]:
    reference = binding["roleRef"]
    for subject in binding["subjects"]:
        for rule in rules.get((reference["kind"], reference["name"]), ()):
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        for name in rule.get("resourceNames", [""]):
                            yield Permission(
                                role=subject["name"].removeprefix("fracgpu-"),
                                verb=verb,
                                group=group,
                                resource=resource,
                                namespace=binding["metadata"].get("namespace", ""),
                                name=name,
                            )


def spare(granted: Iterable[Permission], made: Iterable[Call]) -> set[Permission]:
    """Return what is granted and covers no call."""
    found = list(made)
    return {each for each in granted if not any(each.covers(call) for call in found)}


def missing(made: Iterable[Call]) -> set[Call]:
    """Return the calls that were forbidden."""
    return {call for call in made if not call.allowed}
