"""Tokens of service accounts, asked for as kubelet asks for those of its pods."""

from collections.abc import Mapping
from typing import Any, Final

from kube.client import KubeClient
from kube.errors import KubeDecodeError
from kube.kinds import SERVICE_ACCOUNTS
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
