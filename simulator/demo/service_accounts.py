"""The roles' service accounts in the demo, as in a cluster: their RBAC and tokens."""

import copy
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from component.wiring import DEFAULT_WIRING, Wiring
from fracgpu import names
from kube.client import KubeClient
from kube.errors import AlreadyExists, KubeDecodeError
from kube.kinds import (
    NODES,
    SERVICE_ACCOUNTS,
    VALIDATING_POLICIES,
    VALIDATING_POLICY_BINDINGS,
    Kind,
)
from kube.objects import decode_object
from simulator.apiserver.apimachinery.patches import json_patch, strategic_merge_patch

_LIMIT_S: Final = 30.0


async def issue_token(
    client: KubeClient,
    *,
    namespace: str,
    account: str,
    bound_to: Mapping[str, str] | None = None,
    lifetime_s: int = 3600,
) -> str:
    """Request a service account's token (``authentication.k8s.io/v1 TokenRequest``).

    Args:
        client: of the API server.
        namespace: of the service account.
        account: its name.
        bound_to: ``apiVersion``, ``kind``, ``name`` and ``uid`` of the Pod, Node or Secret with
            which the token expires; one bound to a Pod or Node carries the node's name.
        lifetime_s: how long it is valid, in seconds; at least 600.

    Raises:
        NotFound: there is no such account.
        KubeDecodeError: the answer holds no token.
    """
    spec: dict[str, Any] = {"audiences": [], "expirationSeconds": lifetime_s}
    if bound_to is not None:
        spec["boundObjectRef"] = dict(bound_to)
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = SERVICE_ACCOUNTS.path(namespace=namespace, name=account, subresource="token")
    answer = await client.transport.request("POST", path, body=body, timeout_s=_LIMIT_S)
    try:
        token: str = decode_object(answer)["status"]["token"]
    except (ValueError, KeyError, TypeError) as error:
        raise KubeDecodeError(
            verb="POST", path=path, status=200, reason="NoToken", message=str(error)
        ) from error
    return token


DEPLOY: Final = Path(__file__).parents[2] / "deploy"

_RBAC: Final = "rbac.authorization.k8s.io/v1"

# The kinds of deploy/ that grant or restrict access; its workloads run as processes here.
_RIGHTS: Final[Mapping[str, Kind]] = {
    kind.kind: kind
    for kind in (
        SERVICE_ACCOUNTS,
        VALIDATING_POLICIES,
        VALIDATING_POLICY_BINDINGS,
        Kind(_RBAC, "roles", "Role", namespaced=True),
        Kind(_RBAC, "rolebindings", "RoleBinding", namespaced=True),
        Kind(_RBAC, "clusterroles", "ClusterRole", namespaced=False),
        Kind(_RBAC, "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    )
}


def deployed(kind: str, wiring: Wiring = DEFAULT_WIRING) -> list[dict[str, Any]]:
    """Return the objects of one kind in ``deploy/``, so that the demo uses what is installed.

    Raises:
        FileNotFoundError: this is not a checkout, so ``deploy/`` is not here.
    """
    return [copy.deepcopy(body) for body in _documents(wiring) if body["kind"] == kind]


@cache
def _documents(wiring: Wiring) -> tuple[dict[str, Any], ...]:
    """Read ``deploy/`` once, with the component for claims if that is the wiring."""
    found, _ = _kustomization(DEPLOY)
    if wiring is Wiring.CLAIMS:
        added, patches = _kustomization(DEPLOY / "claims")
        found += added
        for patch in patches:
            text = patch.get("patch") or (DEPLOY / "claims" / patch["path"]).read_text()
            found = _patched(found, yaml.safe_load(text), patch.get("target"))
    return tuple(found)


def _kustomization(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the objects and the patches; by libyaml where PyYAML has it, which is far faster."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    documents = [
        document
        for file in kustomization["resources"]
        for document in yaml.load_all((folder / file).read_text(), Loader=loader)
        if document
    ]
    return documents, kustomization.get("patches") or []


def _patched(
    documents: Sequence[dict[str, Any]], patch: Any, target: Mapping[str, str] | None
) -> list[dict[str, Any]]:
    """Apply one patch as kustomize does: to what it names itself, or to its target."""
    whom = target or {"kind": patch["kind"], "name": patch["metadata"]["name"]}
    found = []
    for body in documents:
        if (body["kind"], body["metadata"]["name"]) != (whom["kind"], whom["name"]):
            found.append(body)
        elif isinstance(patch, list):
            found.append(json_patch(body, patch))
        elif patch.get("$patch") != "delete":
            found.append(strategic_merge_patch(body, patch))
    return found


def account_of(role: str) -> str:
    """Return the name of a role's service account in ``deploy/``."""
    return f"fracgpu-{role}"


def user_of(role: str) -> str:
    """Return a role's user name in the API server."""
    return f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:{account_of(role)}"


async def install_rights(
    kube: KubeClient, *, only: tuple[str, ...] = ("",), wiring: Wiring = DEFAULT_WIRING
) -> None:
    """Create service accounts, roles, bindings and admission policies from ``deploy/``.

    Args:
        kube: of an administrator.
        wiring: whose.
        only: how the names of those wanted begin.
    """
    for name, kind in _RIGHTS.items():
        for body in deployed(name, wiring):
            if not body["metadata"]["name"].startswith(only):
                continue
            try:
                await kube.create(kind, body)
            except AlreadyExists:  # e.g. the binding of a built-in role, from an earlier run
                continue


async def token_of(kube: KubeClient, role: str, *, node: str | None = None) -> str:
    """Return a token of the role; with *node* one that names the node of its holder."""
    bound_to = None
    if node is not None:
        metadata = (await kube.get_object(NODES, node))["metadata"]
        bound_to = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": metadata["uid"]}
    return await issue_token(
        kube, namespace=names.SYSTEM_NAMESPACE, account=account_of(role), bound_to=bound_to
    )
