"""What the container runtime can do: whether it reads CDI specs, asked again from time to time."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import grpc
import structlog

from deviceplugin.proto import cri_pb2 as messages
from deviceplugin.proto import cri_pb2_grpc as services
from deviceplugin.sockets import socket_identity
from process.clock import Clock

log = structlog.get_logger()


class RuntimeUnknownError(Exception):
    """The runtime did not say what it can do."""


_TIMEOUT_S: Final = 3.0
_RETRY_S: Final = 2.0
# One question without an answer may meet a restart; what was known counts until three in a row.
_FAILURES_UNTIL_UNKNOWN: Final = 3
# containerd reads CDI specs since 1.7, which tells its switch; a 1.x that tells none is older.
_CONTAINERD_WITHOUT_CDI: Final = "1."


async def knows_cdi(socket: Path) -> bool:
    """Ask the runtime on its CRI socket whether CDI is on.

    containerd tells its configuration, in which CDI is off by default before version 2; CRI-O has
    had it always on since 1.23 and tells nothing.

    Raises:
        RuntimeUnknownError: there is no runtime, no answer, or one that does not say it.
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
            who: messages.VersionResponse | None = await stub.Version(messages.VersionRequest())
    except grpc.aio.AioRpcError as error:
        raise RuntimeUnknownError(f"{socket} answered {error.code().name}") from error
    except TimeoutError as error:
        raise RuntimeUnknownError(f"{socket} gave no answer in {_TIMEOUT_S:g} s") from error
    if status is None or who is None:
        raise RuntimeUnknownError(f"{socket} answered what cannot be read")
    switch = _switch(status.info.get("config", ""))
    return _by_kind(socket, who) if switch is None else switch


def _switch(config: str) -> bool | None:
    try:
        found: Any = json.loads(config)
    except ValueError:
        return None
    switch = found.get("enableCDI") if isinstance(found, dict) else None
    return switch if isinstance(switch, bool) else None


def _by_kind(socket: Path, who: messages.VersionResponse) -> bool:
    """Judge a runtime that has no switch by what it is."""
    name, version = who.runtime_name, who.runtime_version.removeprefix("v")
    if name == "cri-o":
        return True
    if name == "containerd" and version.startswith(_CONTAINERD_WITHOUT_CDI):
        return False
    known = f"{name} {version}".strip() or "a runtime without a name"
    raise RuntimeUnknownError(
        f"{socket} is {known} and does not say whether it reads CDI specs; set --injection"
    )


class RuntimeMetrics(Protocol):
    """Where the state of affairs is told."""

    def runtime_is(self, state: str) -> None: ...


class RuntimeWatch:
    """Keeps what the runtime says of CDI; nothing is assumed of one that has not answered.

    A runtime can be upgraded, or restarted with CDI off. So it is asked at a steady pace, and
    before a container's start if its socket is another one than when it answered.

    Args:
        socket: its CRI socket.
        injection: ``auto``, or what an administrator has decided: ``cdi`` or ``links``.
        clock: paces the questions.
        period_s: between two questions.
        metrics: told the state: ``cdi``, ``links`` or ``unknown``.
        on_change: told that :attr:`problem` is another one.
    """

    def __init__(
        self,
        socket: Path,
        *,
        injection: str,
        clock: Clock,
        period_s: float,
        metrics: RuntimeMetrics,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._socket = socket
        self._clock = clock
        self._period_s = period_s
        self._metrics = metrics
        self._on_change = on_change
        self._decided = injection != "auto"
        self._reads_cdi = injection == "cdi" if self._decided else None
        self._asked_of: tuple[int, int] | None = None
        self._failures = 0
        self._problem = None if self._decided else f"the runtime on {socket} has not been asked yet"
        self._asking = asyncio.Lock()
        self._tell()

    @property
    def problem(self) -> str | None:
        """Why it is not known what the runtime can do, or None."""
        return self._problem

    @property
    def reads_cdi(self) -> bool:
        """Whether the runtime reads CDI specs, as it said last; False before it has answered."""
        return bool(self._reads_cdi)

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            if not self._decided:
                await self._ask()
            pause_s = self._period_s if not self._failures else min(_RETRY_S, self._period_s)
            await self._clock.sleep(pause_s)

    async def sure(self) -> bool:
        """Tell whether the runtime that would start a container now reads CDI specs.

        Raises:
            RuntimeUnknownError: it is another one than the one that answered, and does not answer.
        """
        if self._decided:
            return self.reads_cdi
        if self._reads_cdi is None or socket_identity(self._socket) != self._asked_of:
            error = await self._ask()
            if error is not None:
                raise error
        return self.reads_cdi

    async def _ask(self) -> RuntimeUnknownError | None:
        async with self._asking:
            asked_of = socket_identity(self._socket)
            try:
                reads_cdi = await knows_cdi(self._socket)
            except RuntimeUnknownError as error:
                self._failed(str(error))
                return error
            self._answered(reads_cdi=reads_cdi, asked_of=asked_of)
            return None

    def _answered(self, *, reads_cdi: bool, asked_of: tuple[int, int] | None) -> None:
        if reads_cdi is not self._reads_cdi or self._problem is not None:
            log.info("runtime_asked", socket=str(self._socket), cdi=reads_cdi)
        had_problem, self._problem = self._problem is not None, None
        self._reads_cdi, self._asked_of, self._failures = reads_cdi, asked_of, 0
        self._tell()
        if had_problem:
            self._on_change()

    def _failed(self, reason: str) -> None:
        self._failures += 1
        known = self._reads_cdi is not None and self._failures < _FAILURES_UNTIL_UNKNOWN
        if known or reason == self._problem:
            return
        log.warning("runtime_not_asked", reason=reason)
        self._problem = reason
        self._tell()
        self._on_change()

    def _tell(self) -> None:
        known = "cdi" if self._reads_cdi else "links"
        self._metrics.runtime_is("unknown" if self._problem is not None else known)
