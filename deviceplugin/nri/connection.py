"""One connection to a runtime: it registers the plugin, then answers what the runtime asks."""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Protobuf

from deviceplugin.nri.framing import (
    ConnectionId,
    FrameError,
    FrameReader,
    Message,
    MessageType,
    encode,
)
from deviceplugin.nri.interface import (
    Connection,
    Container,
    Handler,
    PodSandbox,
    Refused,
    RuntimeUnavailable,
    Unified,
)
from deviceplugin.nri.messages import read_container, read_pod, write_adjustment, write_updates
from deviceplugin.proto import nri_pb2 as wire
from deviceplugin.proto import ttrpc_pb2 as ttrpc
from process.clock import Clock

_M = TypeVar("_M", ttrpc.Request, ttrpc.Response)

PLUGIN_SERVICE: Final = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"
_ASKED_FOR: Final = (
    wire.CREATE_CONTAINER,
    wire.START_CONTAINER,
    wire.STOP_CONTAINER,
    wire.REMOVE_CONTAINER,
)
EVENTS: Final = sum(1 << (event - 1) for event in _ASKED_FOR)
# gRPC's codes. A plugin in Go answers its errors as UNKNOWN, so every runtime knows what to do.
UNKNOWN: Final = 2
_INVALID_ARGUMENT: Final = 3
UNIMPLEMENTED: Final = 12
_INTERNAL: Final = 13
_CHUNK: Final = 1 << 16


class Ended(Exception):  # noqa: N818 - expected: runtimes restart
    """The connection is over; *reason* and the text say why."""

    def __init__(self, reason: Connection, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class _CallFailedError(Exception):
    """The runtime answered with an error."""


class RuntimeConnection:
    """A connected socket, and what is known of the runtime behind it.

    Args:
        trunk: the socket; its timeout is how long the runtime may be silent within a message, or
            before it has introduced itself.
        handler: decides.
        clock: measures how long an answer took.
        on_change: called when the runtime has introduced itself, and when it is synchronized.
    """

    def __init__(
        self,
        trunk: socket.socket,
        handler: Handler,
        clock: Clock,
        *,
        on_change: Callable[["RuntimeConnection"], None],
    ) -> None:
        self._trunk = trunk
        self._handler = handler
        self._clock = clock
        self._on_change = on_change
        self._reader = FrameReader()
        self._sending = threading.Lock()
        self._next_stream = 1
        self._waiting: dict[int, Future[bytes]] = {}
        self._pods: list[PodSandbox] = []
        self._containers: list[Container] = []
        self.runtime_name = ""
        self.runtime_version = ""
        self.synchronized = False
        """The runtime asks before it creates a container."""
        self._methods: Final[dict[str, Callable[[bytes], Protobuf]]] = {
            "Configure": self._configure,
            "Synchronize": self._synchronize,
            "CreateContainer": self._create_container,
            "StartContainer": self._start_container,
            "StopContainer": self._stop_container,
            "RemoveContainer": self._remove_container,
            "StateChange": self._state_change,
        }

    def serve(self, *, name: str, index: str) -> None:
        """Register as *name* and answer until the connection ends.

        Raises:
            Ended: always, unless the handler makes a mistake, which goes through.
        """
        try:
            registration = self._send(
                "RegisterPlugin", wire.RegisterPluginRequest(plugin_name=name, plugin_idx=index)
            )
            for message in self._messages():
                kind = (message.connection, message.type)
                if kind == (ConnectionId.TO_PLUGIN, MessageType.REQUEST):
                    self._take_request(message)
                elif kind == (ConnectionId.TO_RUNTIME, MessageType.RESPONSE):
                    self._take_response(message)
                if registration.done() and (error := registration.exception()) is not None:
                    raise Ended(Connection.REFUSED, f"the runtime refuses the plugin: {error}")
        except FrameError as error:
            raise Ended(Connection.BROKEN, f"the runtime does not speak NRI: {error}") from error
        finally:
            self._end_calls()

    def finish(self) -> None:
        """End the connection once what has arrived is answered, from any thread."""
        with suppress(OSError):
            self._trunk.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """End the connection, from any thread."""
        with suppress(OSError):
            self._trunk.shutdown(socket.SHUT_RDWR)

    def update_containers(self, unified: Unified, *, timeout_s: float) -> Mapping[str, str]:
        """Set keys of cgroup v2, with a call for each container: an error names none.

        Raises:
            RuntimeUnavailable: the runtime did not answer.
        """
        failures = {}
        for container, keys in unified.items():
            request = wire.UpdateContainersRequest(update=write_updates({container: keys}))
            try:
                self._send("UpdateContainers", request).result(timeout_s)
            except _CallFailedError as error:
                failures[container] = str(error)
            except TimeoutError as error:
                text = f"the runtime has not updated {container} in {timeout_s:g} s"
                raise RuntimeUnavailable(text) from error
            except Ended as error:
                raise RuntimeUnavailable(str(error)) from error
        return failures

    # ---- calls of ours

    def _send(self, method: str, request: Protobuf) -> Future[bytes]:
        call = ttrpc.Request(
            service=RUNTIME_SERVICE, method=method, payload=request.SerializeToString()
        )
        body, answer = call.SerializeToString(), Future[bytes]()
        # Streams must appear on the wire in the order of their numbers.
        with self._sending:
            stream, self._next_stream = self._next_stream, self._next_stream + 2
            self._waiting[stream] = answer
            self._write(encode(Message(ConnectionId.TO_RUNTIME, stream, MessageType.REQUEST, body)))
        return answer

    def _write(self, data: bytes) -> None:
        try:
            self._trunk.sendall(data)
        except OSError as error:
            # Half a message may be out, so nothing may follow it.
            self.close()
            raise Ended(Connection.CLOSED, f"the runtime takes no messages: {error}") from error

    def _take_response(self, message: Message) -> None:
        response = _parsed(ttrpc.Response, message.body)
        answer = self._waiting.pop(message.stream, None)
        if answer is None:
            return
        if response.status.code:
            answer.set_exception(_CallFailedError(response.status.message))
        else:
            answer.set_result(response.payload)

    def _end_calls(self) -> None:
        with self._sending:
            waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            answer.set_exception(RuntimeUnavailable("the connection to the runtime ended"))

    # ---- calls of the runtime

    def _messages(self) -> Iterator[Message]:
        while True:
            try:
                data = self._trunk.recv(_CHUNK)
            except TimeoutError:
                if self._reader.in_message:
                    text = "the runtime stopped within a message"
                    raise Ended(Connection.SILENT, text) from None
                if not self.runtime_name:
                    text = "the runtime took the connection and does not answer"
                    raise Ended(Connection.SILENT, text) from None
                continue
            except OSError as error:
                text = f"the connection to the runtime broke: {error}"
                raise Ended(Connection.CLOSED, text) from error
            if not data and self._reader.in_message:
                raise Ended(Connection.BROKEN, "the runtime closed the connection within a message")
            if not data:
                raise Ended(Connection.CLOSED, "the runtime closed the connection")
            yield from self._reader.feed(data)

    def _take_request(self, message: Message) -> None:
        began_s = self._clock.monotonic()
        request = _parsed(ttrpc.Request, message.body)
        if request.service != PLUGIN_SERVICE:
            text = f"this plugin has no service {request.service}"
            self._respond(_encoded(message.stream, failed(UNIMPLEMENTED, text)))
            return
        try:
            data = _encoded(message.stream, ttrpc.Response(payload=self._answer(request)))
        except Refused as refusal:
            data = _encoded(message.stream, failed(UNKNOWN, str(refusal)))
        except DecodeError as error:
            text = f"{request.method} cannot be read: {error}"
            data = _encoded(message.stream, failed(_INVALID_ARGUMENT, text))
        except Exception as error:
            # A container that started without its adjustment would be worse than one that failed.
            text = f"the plugin failed: {type(error).__name__}: {error}"
            with suppress(Ended):
                self._respond(_encoded(message.stream, failed(_INTERNAL, text)))
            raise
        took_s, limit_s = self._clock.monotonic() - began_s, request.timeout_nano / 1e9
        if 0 < limit_s < took_s:
            raise Ended(
                Connection.LATE,
                f"{request.method} took {took_s:.1f} s; the runtime waits {limit_s:.1f} s",
            )
        self._respond(data)
        if request.method in {"Configure", "Synchronize"}:
            self._on_change(self)

    def _respond(self, data: bytes) -> None:
        with self._sending:
            self._write(data)

    def _answer(self, request: ttrpc.Request) -> bytes:
        method = self._methods.get(request.method)
        # What we did not ask for, later runtimes' calls among it: an empty message is every
        # response of NRI in which a plugin wants nothing.
        return method(request.payload).SerializeToString() if method is not None else b""

    def _configure(self, payload: bytes) -> Protobuf:
        request = wire.ConfigureRequest.FromString(payload)
        self.runtime_name = request.runtime_name or "unknown"
        self.runtime_version = request.runtime_version
        return wire.ConfigureResponse(events=EVENTS)

    def _synchronize(self, payload: bytes) -> Protobuf:
        request = wire.SynchronizeRequest.FromString(payload)
        self._pods += map(read_pod, request.pods)
        self._containers += map(read_container, request.containers)
        if request.more:
            return wire.SynchronizeResponse(more=True)
        pods, self._pods = self._pods, []
        containers, self._containers = self._containers, []
        update = write_updates(self._handler.synchronize(pods, containers))
        self.synchronized = True
        return wire.SynchronizeResponse(update=update)

    def _create_container(self, payload: bytes) -> Protobuf:
        request = wire.ContainerRequest.FromString(payload)
        adjustment = self._handler.create_container(
            read_pod(request.pod), read_container(request.container)
        )
        return wire.CreateContainerResponse(adjust=write_adjustment(adjustment))

    def _start_container(self, payload: bytes) -> Protobuf:
        request = wire.ContainerRequest.FromString(payload)
        self._handler.start_container(read_pod(request.pod), read_container(request.container))
        return wire.Empty()

    def _stop_container(self, payload: bytes) -> Protobuf:
        request = wire.ContainerRequest.FromString(payload)
        self._handler.stop_container(read_pod(request.pod), read_container(request.container))
        return wire.Empty()

    def _remove_container(self, payload: bytes) -> Protobuf:
        request = wire.ContainerRequest.FromString(payload)
        self._handler.remove_container(read_pod(request.pod), read_container(request.container))
        return wire.Empty()

    def _state_change(self, payload: bytes) -> Protobuf:
        """Take a call as runtimes before NRI 0.12 make it; other events are not for us."""
        request = wire.StateChangeEvent.FromString(payload)
        pod, container = read_pod(request.pod), read_container(request.container)
        if request.event == wire.START_CONTAINER:
            self._handler.start_container(pod, container)
        elif request.event == wire.STOP_CONTAINER:
            self._handler.stop_container(pod, container)
        elif request.event == wire.REMOVE_CONTAINER:
            self._handler.remove_container(pod, container)
        return wire.Empty()


def failed(code: int, text: str) -> ttrpc.Response:
    """Return the response that fails a call."""
    return ttrpc.Response(status=ttrpc.Status(code=code, message=text))


def _encoded(stream: int, response: ttrpc.Response) -> bytes:
    body = response.SerializeToString()
    return encode(Message(ConnectionId.TO_PLUGIN, stream, MessageType.RESPONSE, body))


def _parsed(kind: type[_M], body: bytes) -> _M:
    try:
        return kind.FromString(body)
    except DecodeError as error:
        raise FrameError(f"a message that is no {kind.__name__} of ttrpc") from error
