"""The API server as a pod knows it: by two variables and the files of its service account.

Source: https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/ ("Directly accessing
the REST API"), and client-go's rest.InClusterConfig.
"""

import os
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import structlog

from kube.errors import AccessError
from kube.transport import ApiServer

log = structlog.get_logger()

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HOST: Final = "KUBERNETES_SERVICE_HOST"
_PORT: Final = "KUBERNETES_SERVICE_PORT"

# kubelet replaces the token once 80 % of its life, of at least ten minutes, are over; client-go
# reads it again after a minute.
_KEPT_S: Final = 60.0


def in_cluster_server(
    *,
    user_agent: str,
    environment: Mapping[str, str] | None = None,
    folder: Path = SERVICE_ACCOUNT,
    monotonic: Callable[[], float] = time.monotonic,
) -> ApiServer:
    """Return the API server of the cluster that this process is a pod of.

    Args:
        user_agent: what calls.
        environment: None for that of this process.
        folder: of the service account.
        monotonic: seconds on a clock that never goes back.

    Raises:
        AccessError: a variable or a file is missing, or cannot be used.
    """
    found = os.environ if environment is None else environment
    host, port = found.get(HOST, ""), found.get(_PORT, "")
    if not (host and port):
        raise AccessError(
            f"cannot use the in-cluster service account: {HOST} is {host!r} and {_PORT} is "
            f"{port!r}; want both set, as kubelet sets them"
        )
    token = TokenFile(folder / "token", monotonic=monotonic)
    try:
        token.read()
        tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    except (OSError, ValueError) as error:
        raise AccessError(f"cannot use the in-cluster service account: {error}") from error

    async def authorization() -> str:
        return f"Bearer {token.current()}"

    address = f"[{host}]" if ":" in host else host
    return ApiServer(
        url=f"https://{address}:{port}",
        tls=tls,
        authorization=authorization,
        user_agent=user_agent,
    )


class TokenFile:
    """A token in a file that is replaced now and then; it is read again every minute.

    Where it cannot be read any more the last one is presented, as client-go does: the API server
    then says whether it is still good.
    """

    def __init__(self, file: Path, *, monotonic: Callable[[], float]) -> None:
        self._file = file
        self._monotonic = monotonic
        self._token = ""
        self._read_at_s = 0.0

    def read(self) -> None:
        """Read the token.

        Raises:
            OSError: there is no such file, or it may not be read.
            ValueError: it is empty, or no text.
        """
        token = self._file.read_text(encoding="ascii").strip()
        if not token:
            raise ValueError(f"{self._file} is empty; want a token")
        self._token, self._read_at_s = token, self._monotonic()

    def current(self) -> str:
        """Return the token, which is at most a minute old if its file can be read."""
        if self._monotonic() - self._read_at_s >= _KEPT_S:
            try:
                self.read()
            except (OSError, ValueError) as error:
                log.warning("token_not_read", file=str(self._file), error=str(error))
        return self._token
