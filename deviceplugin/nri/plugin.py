"""The agent as a plugin of the container runtime: connected for ever, on a thread of its own."""

import asyncio
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from deviceplugin.nri.connection import Ended, RuntimeConnection
from deviceplugin.nri.interface import (
    Connection,
    Handler,
    OnStatus,
    RuntimeUnavailable,
    Status,
    Unified,
)
from process.clock import Clock

log = structlog.get_logger()

SOCKET: Final = Path("/var/run/nri/nri.sock")
"""Where containerd and CRI-O listen unless they are configured otherwise."""
_STALL_S: Final = 15.0  # a runtime takes on one plugin at a time, and waits 5 s for each
_STOP_S: Final = 1.0  # far more than a handler may take
_FIRST_WAIT_S: Final = 0.1
_LONGEST_WAIT_S: Final = 2.0  # while we wait, no container of ours can start
_NOT_RUNNING: Final = Status(
    connection=Connection.CONNECTING, problem="the runtime has not been reached yet"
)


class NriPlugin:
    """Answers a runtime through *handler*, and connects again whenever the connection ends.

    Args:
        socket_path: the runtime's NRI socket.
        handler: decides, in the plugin's thread.
        clock: measures how long answers took.
        name: what the runtime calls the plugin in its log and in conflicts.
        index: two digits; plugins are asked in their order.
        stall_s: how long a runtime may take to introduce itself, or to update containers.
        on_status: called in the event loop of ``run`` with each change.
    """

    def __init__(  # noqa: PLR0913 - all by keyword but the first three
        self,
        socket_path: Path,
        handler: Handler,
        clock: Clock,
        *,
        name: str = "fracgpu",
        index: str = "10",
        stall_s: float = _STALL_S,
        on_status: OnStatus = lambda _: None,
    ) -> None:
        self._socket_path = socket_path
        self._handler = handler
        self._clock = clock
        self._name = name
        self._index = index
        self._stall_s = stall_s
        self._on_status = on_status
        self._status = _NOT_RUNNING
        self._logged = ""
        self._connection: RuntimeConnection | None = None

    @property
    def status(self) -> Status:
        """The latest status, from any thread."""
        return self._status

    def update_containers(self, unified: Unified) -> Mapping[str, str]:
        """Set keys of cgroup v2 on running containers; return why it failed, by container id.

        Blocks, so call it neither in an event loop nor in the handler, which returns such keys
        from ``synchronize``. Containers that the runtime does not know count as done.

        Raises:
            RuntimeUnavailable: nothing is known of any of them.
        """
        connection = self._connection
        if connection is None or self._status.connection is not Connection.CONNECTED:
            raise RuntimeUnavailable(self._status.problem or "the runtime is not connected")
        return connection.update_containers(unified, timeout_s=self._stall_s)

    async def run(self) -> None:
        """Answer the runtime until cancelled.

        Raises:
            Exception: whatever the handler raised that it should not have.
        """
        loop = asyncio.get_running_loop()
        failed: asyncio.Future[None] = loop.create_future()
        stopping = threading.Event()

        def in_loop(call: Callable[..., None], *args: object) -> None:
            # After the loop has ended nobody wants to know.
            if not stopping.is_set():
                loop.call_soon_threadsafe(call, *args)

        def work() -> None:
            try:
                self._connect_for_ever(stopping, lambda status: in_loop(self._report, status))
            # Any exception goes to the task, which ends the process.
            except BaseException as error:  # noqa: BLE001
                in_loop(_fail, failed, error)

        thread = threading.Thread(target=work, name="nri", daemon=True)
        thread.start()
        try:
            await failed
        finally:
            stopping.set()
            connection = self._connection
            if connection is not None:
                connection.finish()
            thread.join(_STOP_S)
            if connection is not None:
                connection.close()
            self._status = _NOT_RUNNING

    def _report(self, status: Status) -> None:
        name, version = status.runtime_name, status.runtime_version
        if status.problem is None:
            log.info("nri_connected", runtime=name, version=version)
            self._logged = ""
        elif status.connection is not Connection.CONNECTING and status.problem != self._logged:
            log.warning("nri_unavailable", state=status.connection.value, problem=status.problem)
            self._logged = status.problem
        self._on_status(status)

    def _connect_for_ever(
        self, stopping: threading.Event, report: Callable[[Status], None]
    ) -> None:
        wait_s = _FIRST_WAIT_S
        while not stopping.is_set():
            try:
                self._connect(stopping, report)
            except Ended as end:
                if not stopping.is_set():
                    # What was connected until now is worth an attempt at once.
                    if self._status.connection is Connection.CONNECTED:
                        wait_s = _FIRST_WAIT_S
                    status = replace(self._status, connection=end.reason, problem=str(end))
                    self._set(status, report)
            stopping.wait(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _set(self, status: Status, report: Callable[[Status], None]) -> None:
        if status != self._status:
            self._status = status
            report(status)

    def _connect(self, stopping: threading.Event, report: Callable[[Status], None]) -> None:
        def changed(connection: RuntimeConnection) -> None:
            waits = "the runtime has not listed its containers yet"
            self._set(
                Status(
                    connection=Connection.CONNECTED
                    if connection.synchronized
                    else Connection.CONNECTING,
                    problem=None if connection.synchronized else waits,
                    runtime_name=connection.runtime_name,
                    runtime_version=connection.runtime_version,
                ),
                report,
            )

        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trunk:
            trunk.settimeout(self._stall_s)
            self._reach(trunk)
            connection = RuntimeConnection(trunk, self._handler, self._clock, on_change=changed)
            self._connection = connection
            try:
                if not stopping.is_set():
                    connection.serve(name=self._name, index=self._index)
            finally:
                if self._connection is connection:
                    self._connection = None

    def _reach(self, trunk: socket.socket) -> None:
        path = self._socket_path
        try:
            trunk.connect(str(path))
        except FileNotFoundError as error:
            text = f"there is no NRI socket {path}: the runtime has no NRI, or it is switched off"
            raise Ended(Connection.NO_SOCKET, text) from error
        except OSError as error:
            text = f"no runtime listens on its NRI socket {path}: {error.strerror or error}"
            raise Ended(Connection.NO_LISTENER, text) from error


def _fail(future: asyncio.Future[None], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
