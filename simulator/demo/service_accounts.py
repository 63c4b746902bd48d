"""Each role of the demo as the service account it has in a cluster: its rights and its token."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

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

_LIMIT_S: Final = 30.0


async def issue_token(
    client: KubeClient,
    *,
    namespace: str,
    account: str,
    bound_to: Mapping[str, str] | None = None,
    lifetime_s: int = 3600,
) -> str:
    """Ask for a service account's token (``authentication.k8s.io/v1 TokenRequest``).

    Args:
        client: speaks to the API server.
        namespace: of the service account.
        account: its name.
        bound_to: ``apiVersion``, ``kind``, ``name`` and ``uid`` of the Pod, Node or Secret with
            which the token ends; one bound to a Pod or Node carries the node's name.
        lifetime_s: how long it is good for, in seconds; at least 600.

    Raises:
        NotFound: no such account.
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

# What of deploy/ gives rights and takes them away; the workloads of it run as processes here.
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


def deployed(kind: str) -> list[dict[str, Any]]:
    """Read the objects of one kind from ``deploy/``, so that the demo runs what is installed.

    Raises:
        FileNotFoundError: this is not a checkout, so ``deploy/`` is not here.
    """
    kustomization = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())
    return [
        document
        for file in kustomization["resources"]
        for document in yaml.safe_load_all((DEPLOY / file).read_text())
        if document and document["kind"] == kind
    ]


def account_of(role: str) -> str:
    """Name the service account of a role, as ``deploy/`` does."""
    return f"fracgpu-{role}"


def user_of(role: str) -> str:
    """Name a role as the API server sees it."""
    return f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:{account_of(role)}"


async def install_rights(kube: KubeClient) -> None:
    """Create accounts, roles, bindings and admission policies as an administrator would."""
    for name, kind in _RIGHTS.items():
        for body in deployed(name):
            try:
                await kube.create(kind, body)
            except AlreadyExists:  # a built-in role's binding, say, of an earlier run
                continue


async def token_of(kube: KubeClient, role: str, *, node: str | None = None) -> str:
    """Ask for the role's token; with *node* one that says which node its holder runs on."""
    bound_to = None
    if node is not None:
        metadata = (await kube.get_object(NODES, node))["metadata"]
        bound_to = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": metadata["uid"]}
    return await issue_token(
        kube, namespace=names.SYSTEM_NAMESPACE, account=account_of(role), bound_to=bound_to
    )


def write_kubeconfig(path: Path, *, server: str, token: str, ca_file: Path | None) -> Path:
    """Write a kubeconfig (mode 0600) for the holder of *token*, and return *path*."""
    cluster = {"server": server}
    if ca_file is not None:
        cluster["certificate-authority"] = str(ca_file)
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "demo", "cluster": cluster}],
        "users": [{"name": "role", "user": {"token": token}}],
        "contexts": [{"name": "demo", "context": {"cluster": "demo", "user": "role"}}],
        "current-context": "demo",
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(content))  # JSON is YAML
    return path
