"""The admission policies of deploy/, evaluated without an API server."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import cel

from fracgpu.k8s.selectors import label_selector
from simulator.apiserver.admission.match_conditions import context as cel_context
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


def refusals(  # noqa: PLR0913 - a request's parts, nearly all by keyword
    name: str,
    new: Json | None,
    *,
    old: Json | None = None,
    sender: Sender = ADMIN,
    params: Mapping[str, Any] | None = None,
    resource: str = "",
    spec: Json | None = None,
) -> list[str]:
    """Return the messages with which the policy *name* denies this request; empty if it passes.

    Without *new* it is the deletion of *old*; *resource* may be ``pods/status``; *params* is a
    Lease; *spec* is the policy's where the file of deploy/ is not meant.
    """
    subject = new or old
    assert subject is not None
    spec = policy(name) if spec is None else spec
    context: Json = {
        "object": new,
        "oldObject": old,
        "params": dict(params or {}),
        "request": {
            "operation": "DELETE" if new is None else "CREATE" if old is None else "UPDATE",
            "namespace": subject["metadata"].get("namespace", ""),
            "resource": {"resource": resource.partition("/")[0]},
            "subResource": resource.partition("/")[2],
            "userInfo": sender.user_info(),
        },
    }
    conditions = [condition["expression"] for condition in spec.get("matchConditions", ())]
    if not all(_value(each, context) for each in conditions):
        return []
    context["variables"] = {}
    for variable in spec.get("variables", ()):
        context["variables"][variable["name"]] = _value(variable["expression"], context)
    return [
        _value(each.get("messageExpression", repr(each["message"])), context)
        for each in spec["validations"]
        if not _value(each["expression"], context)
    ]


def _value(expression: str, variables: Json) -> Any:
    return cel.evaluate(expression, cel_context(variables))


def actions(name: str, *, labels: Mapping[str, str]) -> list[str]:
    """Return what the bindings of the policy *name* do in a namespace with *labels*."""
    return [
        action
        for document in documents()
        if document["kind"] == "ValidatingAdmissionPolicyBinding"
        and document["spec"]["policyName"] == name
        and _selects(document["spec"].get("matchResources", {}), labels)
        for action in document["spec"]["validationActions"]
    ]


def _selects(resources: Json, labels: Mapping[str, str]) -> bool:
    selector = label_selector(resources.get("namespaceSelector") or {})
    return selector is None or selector.matches(labels)
