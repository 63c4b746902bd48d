"""A gate between one process and the API server: a test sees each write, and when it is answered.

A process is killed exactly between what it had written and what it would have done next, without
any hook in the process itself: the answer of the write that the test names is never delivered.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from fracgpu import names
from fracgpu.disruption.candidates import HASH_LABEL, RELEASED_SUFFIX
from fracgpu.state.move_object import MovePhase
from tests.support.tcp import a_connection, a_tcp_server

_CHUNK: Final = 65536
_MARK: Final = names.MOVED_BY.replace("/", "~1").encode()  # in a JSON pointer
_REFUSED: Final = 300  # statuses from which on nothing was written


@dataclass(slots=True)
class Write:
    """One write of the process.

    Attributes:
        verb: the HTTP method.
        target: path and query.
        body: as it was sent.
        status: of the API server's answer; None before there is one.
    """

    verb: str
    target: str
    body: bytes
    status: int | None = None

    @property
    def of_lease(self) -> bool:
        """Whether it is about leader election alone."""
        return "/leases" in self.target

    @property
    def for_real(self) -> bool:
        """Whether it is no dry run."""
        return "dryRun" not in urlsplit(self.target).query

    @property
    def succeeded(self) -> bool:
        """Whether something may have been written."""
        return self.for_real and (self.status is None or self.status < _REFUSED)

    def __str__(self) -> str:
        return f"{self.verb} {self.target} -> {self.status}"


Trigger = Callable[[Write], bool]
"""Selects the write at which something happens."""


def creating(write: Write) -> bool:
    """Select the creation of a Move, which has no status yet."""
    return write.verb == "POST" and write.target.endswith("/moves")


def claiming(write: Write) -> bool:
    """Select the creation of a ResourceClaim."""
    return write.verb == "POST" and write.target.endswith("/resourceclaims")


def entering(phase: MovePhase) -> Trigger:
    """Select the write by which a Move enters a phase."""

    def matches(write: Write) -> bool:
        if write.verb != "PUT" or "/moves/" not in write.target:
            return False
        return bool(_json(write)["status"]["phase"] == phase.value)

    return matches


def releasing(write: Write) -> bool:
    """Select the change of the label by which a ReplicaSet lets a pod go."""
    return _patches_label(write) and RELEASED_SUFFIX.encode() in write.body


def restoring(write: Write) -> bool:
    """Select the change by which a pod gets that label back."""
    return _patches_label(write) and RELEASED_SUFFIX.encode() not in write.body


def unmarking(write: Write) -> bool:
    """Select the change by which a pod loses the mark of a move, once it has its owner again."""
    patched = write.for_real and write.verb == "PATCH" and "/pods/" in write.target
    return patched and not _patches_label(write) and _MARK in write.body and b"remove" in write.body


def evicting(write: Write) -> bool:
    """Select an eviction."""
    return write.for_real and write.target.endswith("/eviction")


def kind_of(write: Write) -> str:
    """Return what a write does to a move or its pod; for any other, its verb and its object."""
    for trigger in (creating, releasing, restoring, unmarking, evicting):
        if trigger(write):
            return trigger.__name__
    kind = next((kind for kind in ("moves", "events", "pods", "nodes") if kind in write.target), "")
    if kind == "moves" and write.verb == "PUT":
        return f"entering {_json(write)['status']['phase']}"
    return f"{write.verb} {kind or write.target}"


def _patches_label(write: Write) -> bool:
    patched = write.for_real and write.verb == "PATCH" and "/pods/" in write.target
    return patched and HASH_LABEL.encode() in write.body


def _json(write: Write) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(write.body)
    return found


class ApiGate:
    """Passes requests on to the API server, and its answers back.

    Attributes:
        writes: every write so far, the oldest first.
        url: where the process connects to, in plain HTTP.
    """

    def __init__(self, server: str, *, ca_file: Path | None) -> None:
        self.writes: list[Write] = []
        self.url = ""
        self._server = urlsplit(server)
        self._tls = None if ca_file is None else ssl.create_default_context(cafile=str(ca_file))
        self._trap: _Trap | None = None
        self._delay: Trigger | None = None
        self._delayed = b""
        self._refusals: tuple[Trigger, list[tuple[int, Mapping[str, Any]]]] = (creating, [])
        self.sprung = asyncio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Serve on loopback until the block ends."""
        async with a_tcp_server(self._talk) as (host, port):
            self.url = f"http://{host}:{port}"
            yield

    def set_trap(
        self,
        trigger: Trigger,
        act: Callable[[], None] = lambda: None,
        *,
        deliver: bool = False,
        held: asyncio.Event | None = None,
    ) -> None:
        """Call *act* once the first write that *trigger* selects has succeeded.

        The process cannot go on before *act* has returned; it learns of the success afterwards if
        its answer is to be delivered, or once *held* is set, and never otherwise.
        """
        self.sprung.clear()
        self._trap = _Trap(trigger, act, deliver or held is not None, held)

    def refuse(self, trigger: Trigger, *answers: tuple[int, Mapping[str, Any]]) -> None:
        """Answer the next writes that *trigger* selects here: with status and body, in order."""
        self._refusals = trigger, list(answers)

    def delay(self, trigger: Trigger) -> None:
        """Keep the next write that *trigger* selects back, until `arrive`; nobody answers it."""
        self.sprung.clear()
        self._delay = trigger

    async def arrive(self) -> int:
        """Let the write that was kept back reach the API server now; returns the status."""
        host, port = self._server.hostname, self._server.port
        assert host is not None
        assert port is not None
        async with a_connection(host, port, tls=self._tls) as (answers, requests):
            requests.write(self._delayed)
            await requests.drain()
            head = await answers.readuntil(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1])

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._server.hostname, self._server.port
        assert host is not None
        assert port is not None
        with suppress(OSError):
            async with a_connection(host, port, tls=self._tls) as (answers, requests):
                under_way: list[Write] = []
                async with asyncio.TaskGroup() as group:
                    halves = [
                        group.create_task(self._ask(reader, requests, writer, under_way)),
                        group.create_task(self._answer(answers, writer, under_way)),
                    ]
                    await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
                    for half in halves:
                        half.cancel()

    async def _ask(
        self,
        reader: asyncio.StreamReader,
        server: asyncio.StreamWriter,
        writer: asyncio.StreamWriter,
        under_way: list[Write],
    ) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(_length(head))
                verb, target, _ = head.split(b" ", 2)
                if verb != b"GET":
                    write = Write(verb.decode(), target.decode(), body)
                    self.writes.append(write)
                    if self._is_refused(write, writer) or self._keeps_back(write, head + body):
                        continue
                    under_way.append(write)
                server.write(head + body)
                await server.drain()

    def _is_refused(self, write: Write, writer: asyncio.StreamWriter) -> bool:
        trigger, answers = self._refusals
        if not answers or not trigger(write):
            return False
        write.status, status = answers[0]
        del answers[0]
        body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", **status}
        writer.write(_http(write.status, body))
        return True

    def _keeps_back(self, write: Write, request: bytes) -> bool:
        if self._delay is None or not self._delay(write):
            return False
        self._delay, self._delayed = None, request
        self.sprung.set()
        return True

    async def _answer(
        self, server: asyncio.StreamReader, writer: asyncio.StreamWriter, under_way: list[Write]
    ) -> None:
        with suppress(OSError):
            while chunk := await server.read(_CHUNK):
                if under_way:  # one request at a time: this is the head of its answer
                    write = under_way.pop()
                    write.status = int(chunk.split(b" ", 2)[1])
                    trap = self._sprung_by(write)
                    if trap is not None and not trap.deliver:
                        return
                    if trap is not None and trap.held is not None:
                        await trap.held.wait()
                writer.write(chunk)
                await writer.drain()

    def _sprung_by(self, write: Write) -> "_Trap | None":
        trap = self._trap
        if trap is None or (write.status or 0) >= _REFUSED or not trap.trigger(write):
            return None
        self._trap = None
        trap.act()
        self.sprung.set()
        return trap


@dataclass(frozen=True, slots=True)
class _Trap:
    trigger: Trigger
    act: Callable[[], None]
    deliver: bool
    held: asyncio.Event | None


def _http(status: int, body: Mapping[str, Any]) -> bytes:
    text = json.dumps(body)
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(text)}\r\n\r\n{text}".encode()


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0
