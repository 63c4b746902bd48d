"""Asks the container runtime which containers run, and periodically whether it reads CDI specs."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc
import structlog

from deviceplugin.claims import RuntimeContainers
from deviceplugin.metrics import DevicePluginMetrics
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
# Labels that kubelet sets on every container (k8s.io/kubelet/pkg/types/labels.go).
_POD_UID_LABEL: Final = "io.kubernetes.pod.uid"
_CONTAINER_LABEL: Final = "io.kubernetes.container.name"
# A node of 1,000 containers answers with less than 4 MiB, gRPC's default; as many may have exited.
_MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024


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


async def containers(socket: Path) -> RuntimeContainers:
    """Return the containers of pods that the runtime has.

    Raises:
        RuntimeUnknownError: there is no runtime on its CRI socket, or no answer.
    """
    options = [
        ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    try:
        async with (
            asyncio.timeout(_TIMEOUT_S),
            grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel,
        ):
            stub = services.RuntimeServiceStub(channel)  # type: ignore[no-untyped-call]
            answer: messages.ListContainersResponse | None = await stub.ListContainers(
                messages.ListContainersRequest()
            )
    except grpc.aio.AioRpcError as error:
        raise RuntimeUnknownError(f"{socket} answered {error.code().name}") from error
    except TimeoutError as error:
        raise RuntimeUnknownError(f"{socket} gave no answer in {_TIMEOUT_S:g} s") from error
    if answer is None:
        raise RuntimeUnknownError(f"the answer of {socket} is not a CRI message")
    return _containers_in(answer)


def _containers_in(answer: messages.ListContainersResponse) -> RuntimeContainers:
    states: dict[tuple[str, str], set[int]] = {}
    ids: dict[tuple[str, str], set[str]] = {}
    for container in answer.containers:
        whose = (container.labels[_POD_UID_LABEL], container.labels[_CONTAINER_LABEL])
        states.setdefault(whose, set()).add(container.state)
        ids.setdefault(whose, set()).add(container.id)
    return RuntimeContainers(
        running=frozenset(
            whose for whose, found in states.items() if messages.CONTAINER_RUNNING in found
        ),
        exited=frozenset(
            (*whose, container_id)
            for whose, found in states.items()
            if found == {messages.CONTAINER_EXITED}
            for container_id in ids[whose]
        ),
    )


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
        injection: ``auto``, or what an administrator has decided: ``cdi`` or ``links``.
        clock: paces the calls.
        period_s: between two calls.
        metrics: records the state: ``cdi``, ``links`` or ``unknown``.
        on_change: called when :attr:`problem` has changed.
    """

    def __init__(
        self,
        socket: Path,
        *,
        injection: str,
        clock: Clock,
        period_s: float,
        metrics: DevicePluginMetrics,
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
        self._record()

    @property
    def problem(self) -> str | None:
        """Why it is unknown whether the runtime reads CDI specs, or None."""
        return self._problem

    @property
    def reads_cdi(self) -> bool:
        """Whether the runtime reads CDI specs, by its last answer; False before the first."""
        return bool(self._reads_cdi)

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            if not self._decided:
                await self._ask()
            pause_s = self._period_s if not self._failures else min(_RETRY_S, self._period_s)
            await self._clock.sleep(pause_s)

    async def sure(self) -> bool:
        """Report whether the runtime that would start a container now reads CDI specs.

        Raises:
            RuntimeUnknownError: the runtime has restarted since it answered, and does not answer.
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
        self._record()
        if had_problem:
            self._on_change()

    def _failed(self, reason: str) -> None:
        self._failures += 1
        known = self._reads_cdi is not None and self._failures < _FAILURES_UNTIL_UNKNOWN
        if known or reason == self._problem:
            return
        log.warning("runtime_not_asked", reason=reason)
        self._problem = reason
        self._record()
        self._on_change()

    def _record(self) -> None:
        known = "cdi" if self._reads_cdi else "links"
        self._metrics.runtime_is("unknown" if self._problem is not None else known)
