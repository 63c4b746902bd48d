"""Asks the container runtime periodically whether it reads CDI specs."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc
import structlog

from deviceplugin.proto import cri_pb2 as messages
from deviceplugin.proto import cri_pb2_grpc as services
from deviceplugin.sockets import socket_identity
from process.clock import Clock

log = structlog.get_logger()


class RuntimeUnknownError(Exception):
    """The runtime did not report what it was asked for."""


_TIMEOUT_S: Final = 3.0
_RETRY_S: Final = 2.0
# One failed call may be a restart; what was known counts until three in a row have failed.
_FAILURES_UNTIL_UNKNOWN: Final = 3
# containerd reads CDI specs since 1.7, which reports `enableCDI`; a 1.x without it is older.
_CONTAINERD_WITHOUT_CDI: Final = "1."
_WITHOUT_CDI: Final = (
    "the runtime on {socket} reads no CDI specs, so no container gets a card: in containerd 1.7 "
    "set enable_cdi = true, or upgrade to 2.0 (docs/install.md#the-container-runtime)"
)


async def knows_cdi(socket: Path) -> bool:
    """Report whether the runtime on its CRI socket reads CDI specs.

    containerd reports its configuration, in which CDI is off by default before version 2; CRI-O has
    it always on since 1.23 and reports nothing.

    Raises:
        RuntimeUnknownError: there is no runtime, no answer, or one that does not tell.
    """
    options = [("grpc.use_local_subchannel_pool", 1)]
    try:
        async with (
            asyncio.timeout(_TIMEOUT_S),
            grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel,
        ):
            stub = services.RuntimeServiceStub(channel)  # type: ignore[no-untyped-call]
            status: messages.StatusResponse | None = await stub.Status(
                messages.StatusRequest(verbose=True)
            )
            version_info: messages.VersionResponse | None = await stub.Version(
                messages.VersionRequest()
            )
    except grpc.aio.AioRpcError as error:
        raise RuntimeUnknownError(f"{socket} answered {error.code().name}") from error
    except TimeoutError as error:
        raise RuntimeUnknownError(f"{socket} gave no answer in {_TIMEOUT_S:g} s") from error
    if status is None or version_info is None:
        raise RuntimeUnknownError(f"the answer of {socket} is not a CRI message")
    enabled = _cdi_enabled(status.info.get("config", ""))
    return _by_version(socket, version_info) if enabled is None else enabled


def _cdi_enabled(config: str) -> bool | None:
    try:
        found: Any = json.loads(config)
    except ValueError:
        return None
    enabled = found.get("enableCDI") if isinstance(found, dict) else None
    return enabled if isinstance(enabled, bool) else None


def _by_version(socket: Path, version_info: messages.VersionResponse) -> bool:
    """Report whether a runtime that does not report `enableCDI` reads CDI specs, by its version."""
    name, version = version_info.runtime_name, version_info.runtime_version.removeprefix("v")
    if name == "cri-o":
        return True
    if name == "containerd" and version.startswith(_CONTAINERD_WITHOUT_CDI):
        return False
    known = f"{name} {version}".strip() or "an unnamed runtime"
    raise RuntimeUnknownError(
        f"{socket} is {known}, which does not report whether it reads CDI specs; set --injection"
    )


class RuntimeWatch:
    """Knows whether the runtime reads CDI specs; assumes nothing of one that has not answered.

    A runtime can be upgraded, or restarted with CDI off. So it is asked periodically, and before a
    container start if its socket was created anew since it answered.

    Args:
        socket: its CRI socket.
        injection: ``auto``, or ``cdi`` where an administrator knows that it reads them.
        clock: paces the calls.
        period_s: between two calls.
        on_change: called when :attr:`problem` has changed.
    """

    def __init__(
        self,
        socket: Path,
        *,
        injection: str,
        clock: Clock,
        period_s: float,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._socket = socket
        self._clock = clock
        self._period_s = period_s
        self._on_change = on_change
        self._decided = injection != "auto"
        self._asked_of: tuple[int, int] | None = None
        self._failures = 0
        self._problem = None if self._decided else f"the runtime on {socket} has not been asked yet"
        self._asking = asyncio.Lock()

    @property
    def known(self) -> bool:
        """Whether it has answered once, or need not be asked."""
        return self._decided or self._asked_of is not None

    @property
    def problem(self) -> str | None:
        """Why containers would not get their cards from the runtime, or None."""
        return self._problem

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            if not self._decided:
                await self._ask()
            pause_s = self._period_s if not self._failures else min(_RETRY_S, self._period_s)
            await self._clock.sleep(pause_s)

    async def check(self) -> str | None:
        """Return the problem of the runtime that would start a container now, or None."""
        asked_of = self._asked_of
        if self._decided or (asked_of is not None and socket_identity(self._socket) == asked_of):
            return self._problem
        return await self._ask()

    async def _ask(self) -> str | None:
        """Ask, and return what is wrong; one failed call does not yet change :attr:`problem`."""
        async with self._asking:
            asked_of = socket_identity(self._socket)
            try:
                reads_cdi = await knows_cdi(self._socket)
            except RuntimeUnknownError as error:
                self._failures += 1
                if self._asked_of is None or self._failures >= _FAILURES_UNTIL_UNKNOWN:
                    self._set(str(error))
                return str(error)
            self._asked_of, self._failures = asked_of, 0
            self._set(None if reads_cdi else _WITHOUT_CDI.format(socket=self._socket))
            return self._problem

    def _set(self, problem: str | None) -> None:
        if problem == self._problem:
            return
        log.info("runtime_asked", socket=str(self._socket), problem=problem)
        self._problem = problem
        self._on_change()
