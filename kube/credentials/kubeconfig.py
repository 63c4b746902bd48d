"""The API server of a kubeconfig: its credentials and plugins are kubernetes-asyncio's to handle.

The library is loaded when a kubeconfig is used, and not before: a pod needs none, and its packages
import all their modules, a thousand generated models among them.
"""

from __future__ import annotations

import asyncio
import ssl
from functools import partial
from typing import TYPE_CHECKING

from kube.credentials.kubeconfig_contents import read_kubeconfig
from kube.errors import AccessError
from kube.transport import ApiServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kubernetes_asyncio.client import Configuration
    from kubernetes_asyncio.config.kube_config import KubeConfigLoader


def _import_library() -> None:
    from kubernetes_asyncio import config  # noqa: F401, PLC0415 - see above


async def server_of_kubeconfig(paths: str, *, context: str | None, user_agent: str) -> ApiServer:
    """Return the API server of a context, or of the current one.

    Args:
        paths: of the files, as in ``$KUBECONFIG``.
        context: a name; None for the current one.
        user_agent: what calls.

    Raises:
        AccessError: it cannot be used.
    """
    found = await asyncio.to_thread(partial(read_kubeconfig, paths, context=context))
    await asyncio.to_thread(_import_library)  # 0.2 s, in which the event loop has its turns
    from kubernetes_asyncio import config  # noqa: PLC0415 - see above
    from kubernetes_asyncio.client import Configuration  # noqa: PLC0415

    configuration = Configuration()
    try:
        loader = await config.load_kube_config_from_dict(found, client_configuration=configuration)
    # kubernetes-asyncio passes on the errors of its base64 and plugin code: assertion, type and
    # attribute errors on odd values among them. All mean an unusable file.
    except Exception as error:
        raise AccessError(f"cannot use kubeconfig {paths!r}: {error}") from error
    if hasattr(loader, "exec_plugin_expiry"):
        configuration.refresh_api_key_hook = _refreshing(loader)

    async def authorization() -> str:
        found = (await configuration.auth_settings()).get("BearerToken", {})
        return str(found.get("value") or "")

    return ApiServer(
        url=str(configuration.host),
        tls=_tls(configuration),
        authorization=authorization,
        user_agent=user_agent,
        tls_server_name=configuration.tls_server_name or "",
        proxy=configuration.proxy or "",
        proxy_headers=configuration.proxy_headers or {},
    )


def namespace_of_kubeconfig(paths: str, *, context: str | None) -> str:
    """Return the namespace of a context, or of the current one.

    Raises:
        AccessError: it cannot be used.
    """
    (found,) = read_kubeconfig(paths, context=context)["contexts"]
    return str(found["context"].get("namespace") or "default")


def _tls(configuration: Configuration) -> ssl.SSLContext | None:
    """Return how to connect; None where the defaults do, and no TLS is to be expected.

    To read the system's authorities takes 30 ms.
    """
    special = configuration.ssl_ca_cert or configuration.cert_file or not configuration.verify_ssl
    if str(configuration.host).startswith("http://") and not special:
        return None
    try:
        tls = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        if configuration.cert_file:
            tls.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    except (OSError, ValueError) as error:  # certificate files that are missing or not PEM
        raise AccessError(
            f"cannot use the credentials for {configuration.host}: {error}"
        ) from error
    if not configuration.verify_ssl:  # insecure-skip-tls-verify
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    if configuration.disable_strict_ssl_verification:
        tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return tls


def _refreshing(loader: KubeConfigLoader) -> Callable[[Configuration], Awaitable[None]]:
    """Return a hook that runs the exec plugin again once its token has expired."""

    async def hook(configuration: Configuration) -> None:
        try:
            await loader.load_from_exec_plugin()
        except Exception as error:  # a plugin can fail in any way
            raise AccessError(f"the exec plugin returned no credentials: {error}") from error
        configuration.api_key["BearerToken"] = loader.token

    return hook
