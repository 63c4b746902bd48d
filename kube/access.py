"""Connecting to the API server: by kubeconfig, in-cluster credentials, or a plain address."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast

from kube.client import DEFAULT_TIMEOUT_S, KubeClient
from kube.errors import AccessError
from kube.lean import ApiClient, Configuration, KubeConfigLoader, config
from kube.transport import ApiTransport, ask_environment_once

_OWN_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@asynccontextmanager
async def connect(
    kubeconfig: str | os.PathLike[str] | None = None,
    *,
    context: str | None = None,
    user_agent: str = "fracgpu",
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> AsyncIterator[KubeClient]:
    """Open a client: *kubeconfig* if given, else in-cluster, else ``$KUBECONFIG``, ``~/.kube``.

    No request is sent, so this succeeds while the API server is down. A *context* is one of a
    kubeconfig, so with it the in-cluster credentials are not looked at. Each request may take
    *timeout_s*.

    Raises:
        AccessError: there is no configuration, or it cannot be used.
    """
    configuration = Configuration()
    where = _kubeconfig(kubeconfig, context)
    if where is None:
        _from_cluster(configuration)
    else:
        await _from_file(configuration, where, context=context)
    async with _client(configuration, user_agent=user_agent, timeout_s=timeout_s) as client:
        yield client


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
            return _OWN_NAMESPACE.read_text(encoding="utf-8").strip() or "default"
        except OSError as error:
            raise AccessError(f"cannot use the in-cluster service account: {error}") from error
    paths = _existing(where)
    try:
        contexts, current = config.list_kube_config_contexts(config_file=paths)
        chosen: Any = next((each for each in contexts if each["name"] == context), current)
        return str(chosen["context"].get("namespace") or "default")
    except Exception as error:  # as below: the library passes on whatever an odd file causes
        raise AccessError(f"cannot use kubeconfig {paths!r}: {error}") from error


def _kubeconfig(
    named: str | os.PathLike[str] | None, context: str | None
) -> str | os.PathLike[str] | None:
    """Return where the kubeconfig is; None if the in-cluster credentials are to be used."""
    if named is not None:
        return named
    if context is None and "KUBERNETES_SERVICE_HOST" in os.environ:
        return None
    return os.environ.get("KUBECONFIG") or "~/.kube/config"


@asynccontextmanager
async def connect_to(
    url: str,
    *,
    token: str | None = None,
    ca_file: str | os.PathLike[str] | None = None,
    user_agent: str = "fracgpu",
) -> AsyncIterator[KubeClient]:
    """Open a client to the API server at *url*, e.g. one that this process runs itself."""
    configuration = Configuration()
    configuration.host = url.rstrip("/")
    if token is not None:
        configuration.api_key["BearerToken"] = f"Bearer {token}"
    if ca_file is not None:
        configuration.ssl_ca_cert = os.fspath(ca_file)
    async with _client(configuration, user_agent=user_agent) as client:
        yield client


@asynccontextmanager
async def _client(
    configuration: Configuration, *, user_agent: str, timeout_s: float = DEFAULT_TIMEOUT_S
) -> AsyncIterator[KubeClient]:
    try:
        api = ApiClient(configuration)
    except (OSError, ValueError) as error:  # certificate files that are missing or not PEM
        raise AccessError(
            f"cannot use the credentials for {configuration.host}: {error}"
        ) from error
    async with api:
        api.user_agent = user_agent
        ask_environment_once(api)
        yield KubeClient(ApiTransport(api), timeout_s=timeout_s)


async def _from_file(
    configuration: Configuration, where: str | os.PathLike[str], *, context: str | None
) -> None:
    paths = _existing(where)
    try:
        loader = await config.load_kube_config(
            config_file=paths,
            context=context,
            client_configuration=configuration,
            persist_config=False,
        )
    # kubernetes-asyncio passes on the errors of its YAML, base64 and plugin code: assertion,
    # type and attribute errors on odd files among them. All mean an unusable file.
    except Exception as error:
        raise AccessError(f"cannot use kubeconfig {paths!r}: {error}") from error
    if hasattr(loader, "exec_plugin_expiry"):
        configuration.refresh_api_key_hook = _refreshing(loader)


def _existing(where: str | os.PathLike[str]) -> str:
    """Return *where* (like ``$KUBECONFIG``, possibly several paths) with ``~`` expanded."""
    paths = [Path(part).expanduser() for part in os.fspath(where).split(os.pathsep) if part]
    if not any(path.is_file() for path in paths):
        raise AccessError(
            f"no kubeconfig at {os.fspath(where)!r}; pass --kubeconfig, set KUBECONFIG, "
            "or run inside a cluster"
        )
    return os.pathsep.join(str(path) for path in paths)


def _refreshing(loader: KubeConfigLoader) -> Callable[[Configuration], Awaitable[None]]:
    """Return a hook that runs the exec plugin again once its token has expired."""

    async def hook(configuration: Configuration) -> None:
        try:
            await loader.load_from_exec_plugin()
        except Exception as error:  # a plugin can fail in any way
            raise AccessError(f"the exec plugin returned no credentials: {error}") from error
        configuration.api_key["BearerToken"] = loader.token

    return hook


def _from_cluster(configuration: Configuration) -> None:
    untyped: Any = config
    try:
        untyped.load_incluster_config(client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        raise AccessError(f"cannot use the in-cluster service account: {error}") from error
    # Reads the mounted token again once a minute: kubelet rotates it.
    reload_token = cast("Callable[[Configuration], None]", configuration.refresh_api_key_hook)

    def hook(current: Configuration) -> None:
        try:
            reload_token(current)
        except (config.ConfigException, OSError) as error:
            raise AccessError(f"cannot read the service account's token: {error}") from error

    configuration.refresh_api_key_hook = hook
