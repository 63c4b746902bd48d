"""A cluster's DNS for tests: the addresses of Services, and nothing else.

Messages are RFC 1035's. The names, ``NAME.NAMESPACE.svc`` below the domain, are
specified in https://github.com/kubernetes/dns/blob/master/docs/specification.md.
"""

import asyncio
import ipaddress
import struct
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, cast

from kube.access import connect
from kube.errors import NotFound
from kube.kinds import SERVICES

DOMAIN: Final = "cluster.local"
_HEADER: Final = struct.Struct("!6H")
_A: Final = 1
_IN: Final = 1
_RESPONSE: Final = 0x8400  # an answer, and authoritative
_RECURSION_DESIRED: Final = 0x0100
_FORMAT_ERROR: Final = 1
_NO_SUCH_NAME: Final = 3
_TTL_S: Final = 5
_POINTER_TO_QUESTION: Final = 0xC00C
_LONGEST_LABEL: Final = 63

Lookup = Callable[[str, str], Awaitable[str | None]]
"""Gives the address of the Service with this namespace and name; "" where it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a message asks.

    Attributes:
        name: in small letters, without a dot at its end.
        end: where the question ends in the message.
    """

    name: str
    kind: int
    end: int


async def answer(message: bytes, lookup: Lookup) -> bytes:
    """Return the answer to a question about a Service; a format error if it is no question."""
    question = read_question(message)
    if question is None:
        return _reply(message, code=_FORMAT_ERROR)
    service = service_of(question.name)
    address = await lookup(*service) if service is not None else None
    if address is None:
        return _reply(message, code=_NO_SUCH_NAME, question=question)
    return _reply(message, question=question, address=address if question.kind == _A else "")


def read_question(message: bytes) -> Question | None:
    """Return the first question, or None if the message has none that can be parsed."""
    if len(message) < _HEADER.size or _HEADER.unpack_from(message)[2] != 1:
        return None
    labels, at = [], _HEADER.size
    try:
        while length := message[at]:
            if length > _LONGEST_LABEL:
                return None
            labels.append(message[at + 1 : at + 1 + length].decode("ascii").lower())
            at += 1 + length
        (kind,) = struct.unpack_from("!H", message, at + 1)
        end = at + 5  # the empty label, type and class
    except (IndexError, struct.error, UnicodeDecodeError):
        return None
    return Question(name=".".join(labels), kind=kind, end=end) if end <= len(message) else None


def service_of(name: str) -> tuple[str, str] | None:
    """Return the namespace and name of the Service of the DNS name *name*."""
    inside = name.removesuffix(f".svc.{DOMAIN}")
    match inside.split("."):
        case [service, namespace] if inside != name:
            return namespace, service
        case _:
            return None


def _reply(
    message: bytes, *, code: int = 0, question: Question | None = None, address: str = ""
) -> bytes:
    number, flags = struct.unpack_from("!2H", message) if len(message) >= 4 else (0, 0)
    wanted = _RESPONSE | (flags & _RECURSION_DESIRED) | code
    header = _HEADER.pack(number, wanted, int(question is not None), int(bool(address)), 0, 0)
    asked = message[_HEADER.size : question.end] if question is not None else b""
    if not address:
        return header + asked
    packed = ipaddress.IPv4Address(address).packed
    record = struct.pack("!3HIH", _POINTER_TO_QUESTION, _A, _IN, _TTL_S, len(packed)) + packed
    return header + asked + record


class _Server(asyncio.DatagramProtocol):
    def __init__(self, lookup: Lookup, group: asyncio.TaskGroup) -> None:
        self._lookup = lookup
        self._group = group
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._group.create_task(self._answer(data, addr), name="dns_answer")

    async def _answer(self, message: bytes, addr: tuple[str, int]) -> None:
        reply = await answer(message, self._lookup)
        if self._transport is not None:
            self._transport.sendto(reply, addr)


async def serve(address: str, kubeconfig: str, *, port: int = 53) -> None:
    """Answer at *address* about the Services of a cluster, until cancelled."""
    async with connect(kubeconfig) as client, asyncio.TaskGroup() as group:

        async def lookup(namespace: str, name: str) -> str | None:
            try:
                found = await client.get_object(SERVICES, name, namespace=namespace)
            except NotFound:
                return None
            cluster_ip: str = found["spec"].get("clusterIP", "")
            return "" if cluster_ip == "None" else cluster_ip

        loop = asyncio.get_running_loop()
        await loop.create_datagram_endpoint(
            lambda: _Server(lookup, group), local_addr=(address, port)
        )
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2]))
