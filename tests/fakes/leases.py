"""Leases in memory behind the client's transport, with optimistic locking and faults on demand."""

import asyncio
import copy
from collections.abc import AsyncGenerator, Mapping
from enum import Enum, auto
from typing import Any

import msgspec

from kube.errors import Unavailable, error_from_status

Json = dict[str, Any]


class Fault(Enum):
    """What happens to a request from now on."""

    NONE = auto()
    REFUSED = auto()
    """It never reaches the server."""
    ANSWER_LOST = auto()
    """It is carried out, but the answer never arrives."""
    HANGS = auto()
    """Nothing comes back until the caller gives up."""


class Leases:
    """One server's Leases; make one :class:`LeaseTransport` per candidate."""

    def __init__(self) -> None:
        self.version = 0
        self.stored: dict[str, Json] = {}

    def holder(self, path: str) -> str | None:
        spec: Json = self.stored[path]["spec"]
        holder: str | None = spec["holderIdentity"]
        return holder

    def write(self, path: str, body: Json) -> Json:
        self.version += 1
        new = copy.deepcopy(body)
        new["metadata"]["resourceVersion"] = str(self.version)
        self.stored[path] = new
        return new


class LeaseTransport:
    """One candidate's way to the server; :attr:`fault` breaks it."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self.fault = Fault.NONE
        self.requests = 0

    async def request(self, verb: str, path: str, *, body: Any = None, **_: Any) -> bytes:
        self.requests += 1
        lost = Unavailable(verb=verb, path=path, status=None, reason="NoAnswer", message="fault")
        if self.fault is Fault.HANGS:
            await asyncio.Event().wait()
        if self.fault is Fault.REFUSED:
            raise lost
        answer = self._answer(verb, path, body)
        if self.fault is Fault.ANSWER_LOST:
            raise lost
        return msgspec.json.encode(answer)

    def _answer(self, verb: str, path: str, body: Any) -> Json:
        if verb == "POST":
            path = f"{path}/{body['metadata']['name']}"
            if path in self._leases.stored:
                raise self._refusal(verb, path, 409, "AlreadyExists")
            body = {
                **body,
                "metadata": {**body["metadata"], "uid": f"lease-{self._leases.version}"},
            }
            return self._leases.write(path, body)
        if path not in self._leases.stored:
            raise self._refusal(verb, path, 404, "NotFound")
        found = self._leases.stored[path]
        if verb == "GET":
            return found
        assert verb == "PUT", verb
        if body["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
            raise self._refusal(verb, path, 409, "Conflict")
        return self._leases.write(path, body)

    @staticmethod
    def _refusal(verb: str, path: str, status: int, reason: str) -> Exception:
        return error_from_status(verb=verb, path=path, status=status, reason=reason, message=reason)

    def stream_lines(
        self, path: str, *, query: Mapping[str, str], inactivity_s: float
    ) -> AsyncGenerator[bytes, None]:
        raise NotImplementedError("nobody watches leases")
