"""The admission policies of deploy/, evaluated without an API server."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import cel

from tests.support.yaml_files import read_documents

DEPLOY = Path(__file__).parents[2] / "deploy"
NODE_CLAIM = "authentication.kubernetes.io/node-name"
SYSTEM = "system:serviceaccount:fracgpu-system"

Json = dict[str, Any]


@cache
def documents() -> tuple[Json, ...]:
    files = sorted(DEPLOY.glob("policies*.yaml"))
    return tuple(document for file in files for document in read_documents(file.read_text()))


def policy(name: str) -> Json:
    kind = "ValidatingAdmissionPolicy"
    (spec,) = [
        document["spec"]
        for document in documents()
        if document["kind"] == kind and document["metadata"]["name"] == name
    ]  # fmt: skip
    found: Json = spec
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Who asks."""

    username: str
    node: str = ""
    """The node its token is bound to, as the API server found."""

    def user_info(self) -> Json:
        extra: Json = {"extra": {NODE_CLAIM: [self.node]}} if self.node else {}
        return {"username": self.username, "groups": ["system:authenticated"], **extra}


ADMIN = Sender(username="admin")
SCHEDULER = Sender(username=f"{SYSTEM}:fracgpu-scheduler")
REBALANCER = Sender(username=f"{SYSTEM}:fracgpu-rebalancer")


def agent_of(node: str) -> Sender:
    return Sender(username=f"{SYSTEM}:fracgpu-deviceplugin", node=node)


def kubelet_of(node: str) -> Sender:
    return Sender(username=f"system:node:{node}")


def refusals(  # noqa: PLR0913 - the parts of a request; all but two have defaults
    name: str,
    new: Json | None,
    *,
    old: Json | None = None,
    sender: Sender = ADMIN,
    params: Mapping[str, Any] | None = None,
    resource: str = "",
    namespace_labels: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the messages with which the policy *name* denies this request; empty if it passes.

    Without *new* it is the deletion of *old*; *resource* may be ``pods/status``; *params* are the
    data of a ConfigMap, or a Lease.
    """
    subject = new or old
    assert subject is not None
    spec = policy(name)
    context: Json = {
        "object": new,
        "oldObject": old,
        "params": dict(params or {}) if spec_of_lease(spec) else {"data": dict(params or {})},
        "namespaceObject": {"metadata": {"labels": dict(namespace_labels or {})}},
        "request": {
            "operation": "DELETE" if new is None else "CREATE" if old is None else "UPDATE",
            "namespace": subject["metadata"].get("namespace", ""),
            "resource": {"resource": resource.partition("/")[0]},
            "subResource": resource.partition("/")[2],
            "userInfo": sender.user_info(),
        },
    }
    conditions = [condition["expression"] for condition in spec.get("matchConditions", ())]
    if not all(cel.evaluate(each, context) for each in conditions):
        return []
    context["variables"] = {}
    for variable in spec.get("variables", ()):
        context["variables"][variable["name"]] = cel.evaluate(variable["expression"], context)
    return [
        cel.evaluate(each.get("messageExpression", repr(each["message"])), context)
        for each in spec["validations"]
        if not cel.evaluate(each["expression"], context)
    ]


def spec_of_lease(spec: Json) -> bool:
    """Report whether a policy's parameter is a Lease."""
    return bool(spec.get("paramKind", {}).get("kind") == "Lease")
