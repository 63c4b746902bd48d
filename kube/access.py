"""Connecting to the API server: by kubeconfig, in-cluster credentials, or a plain address."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from kube.client import DEFAULT_TIMEOUT_S, KubeClient
from kube.credentials.in_cluster import HOST, SERVICE_ACCOUNT, in_cluster_server
from kube.credentials.kubeconfig import namespace_of_kubeconfig, server_of_kubeconfig
from kube.errors import AccessError
from kube.transport import ApiServer, open_transport


@asynccontextmanager
async def connect(
    kubeconfig: str | os.PathLike[str] | None = None,
    *,
    context: str | None = None,
    user_agent: str = "fracgpu",
    timeout_s: float = DEFAULT_TIMEOUT_S,
    as_user: str = "",
) -> AsyncIterator[KubeClient]:
    """Open a client: *kubeconfig* if given, else in-cluster, else ``$KUBECONFIG``, ``~/.kube``.

    No request is sent, so this succeeds while the API server is down. A *context* is one of a
    kubeconfig, so with it the in-cluster credentials are not looked at. Each request may take
    *timeout_s*, and impersonates *as_user* if one is named.

    Raises:
        AccessError: there is no configuration, or it cannot be used.
    """
    where = _kubeconfig(kubeconfig, context)
    if where is None:
        server = in_cluster_server(user_agent=user_agent)
    else:
        server = await server_of_kubeconfig(
            _existing(where), context=context, user_agent=user_agent
        )
    async with open_transport(replace(server, as_user=as_user)) as transport:
        yield KubeClient(transport, timeout_s=timeout_s)


def own_namespace(
    kubeconfig: str | os.PathLike[str] | None = None, *, context: str | None = None
) -> str:
    """Return the namespace of the context that :func:`connect` would use, or of the own account.

    Raises:
        AccessError: there is no configuration, or it cannot be used.
    """
    where = _kubeconfig(kubeconfig, context)
    if where is None:
        try:
            return (SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip() or "default"
        except OSError as error:
            raise AccessError(f"cannot use the in-cluster service account: {error}") from error
    return namespace_of_kubeconfig(_existing(where), context=context)


def _kubeconfig(
    named: str | os.PathLike[str] | None, context: str | None
) -> str | os.PathLike[str] | None:
    """Return where the kubeconfig is; None if the in-cluster credentials are to be used."""
    if named is not None:
        return named
    if context is None and HOST in os.environ:
        return None
    return os.environ.get("KUBECONFIG") or "~/.kube/config"


@asynccontextmanager
async def connect_to(
    url: str,
    *,
    token: str | None = None,
    ca_file: str | os.PathLike[str] | None = None,
    user_agent: str = "fracgpu",
    as_user: str = "",
) -> AsyncIterator[KubeClient]:
    """Open a client to the API server at *url*, e.g. one that this process runs itself."""

    async def authorization() -> str:
        return "" if token is None else f"Bearer {token}"

    try:
        tls = None if ca_file is None else ssl.create_default_context(cafile=os.fspath(ca_file))
    except (OSError, ValueError) as error:  # a file that is missing or not PEM
        raise AccessError(f"cannot use the credentials for {url}: {error}") from error
    server = ApiServer(
        url=url.rstrip("/"),
        tls=tls,
        authorization=authorization,
        user_agent=user_agent,
        as_user=as_user,
    )
    async with open_transport(server) as transport:
        yield KubeClient(transport)


def _existing(where: str | os.PathLike[str]) -> str:
    """Return *where* (like ``$KUBECONFIG``, possibly several paths) with ``~`` expanded."""
    # Unlike pathlib's, these raise nothing: a home may be unknown, or another user's.
    parts = os.fspath(where).split(os.pathsep)
    paths = [os.path.expanduser(part) for part in parts if part]  # noqa: PTH111
    if not any(map(os.path.isfile, paths)):
        raise AccessError(
            f"no kubeconfig at {os.fspath(where)!r} that can be read; pass --kubeconfig, set "
            "KUBECONFIG, or run inside a cluster"
        )
    return os.pathsep.join(paths)
