"""The same requests to the simulator and to a real kube-apiserver must get the same answers.

Compared are the code, the Status' reason and words, and the object that comes back, less what two
servers cannot agree on (uids, times, revisions) and what the simulator leaves out on purpose.
The real one's answers are kept beside this file: `make e2e RECORD=1` writes them.
"""

from __future__ import annotations

import json
import os
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import yaml

from simulator.apiserver.server import ApiServer
from simulator.objects import Json, decode, encode
from tests.contracts.asked import (
    ASKS,
    CONFIGS,
    DEPLOYMENTS,
    LEASES,
    PDBS,
    PODS,
    Ask,
)

RECORD_ENV: Final = "FRACGPU_RECORD"
RECORDED: Final = Path(__file__).with_name("side_by_side")

_LEFT_OUT = frozenset({"managedFields"})
_TIMES = {"creationTimestamp", "deletionTimestamp", "lastTransitionTime"}
_VARIES = frozenset({"uid", "resourceVersion", *_TIMES})
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_GENERATED = re.compile(r"gen-[a-z0-9]{5}")


@dataclass(frozen=True)
class Server:
    """Where to send requests, and as whom."""

    url: str
    headers: dict[str, str]
    trust: ssl.SSLContext | bool

    async def answer(self, session: aiohttp.ClientSession, ask: Ask) -> tuple[int, Any, str | None]:
        body = ask.body if isinstance(ask.body, bytes | None) else encode(ask.body)
        headers = {**self.headers, **({"Content-Type": ask.content_type} if body else {})}
        url = self.url + ask.path.replace("NS", "side-by-side")
        async with session.request(
            ask.method, url, data=body, headers=headers, ssl=self.trust
        ) as response:
            text = await response.read()
            is_json = response.content_type == "application/json"
            found = decode(text) if is_json else text.decode()
            return response.status, found, response.headers.get("Retry-After")


def comparable(value: Any) -> Any:
    """Return *body* without what two servers cannot agree on."""
    match value:
        case dict():
            return {
                key: "..." if key in _VARIES and member is not None else comparable(member)
                for key, member in value.items()
                if key not in _LEFT_OUT
            }
        case list():
            return [comparable(item) for item in value]
        case str():
            return _GENERATED.sub("gen-...", _UID.sub("<uid>", _TIME.sub("<time>", value)))
        case _:
            return value


def gist(value: Any, *, words: bool) -> Any:
    if words or not isinstance(value, dict) or value.get("kind") != "Status":
        return comparable(value)
    return value.get("reason")


@pytest.fixture
def real(real_kubeconfig: Path) -> Server:
    config = yaml.safe_load(real_kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    return Server(
        url=cluster["server"],
        headers={"Authorization": f"Bearer {config['users'][0]['user']['token']}"},
        trust=ssl.create_default_context(cafile=cluster["certificate-authority"]),
    )


in_turn = pytest.mark.parametrize("asks", ASKS)


async def answers(server: Server, asks: list[Ask]) -> list[Json]:
    """Return what is compared of each answer; the namespace is emptied first."""
    async with aiohttp.ClientSession() as session:
        await server.answer(
            session, Ask("POST", "/api/v1/namespaces", {"metadata": {"name": "side-by-side"}})
        )
        for path in (PODS, PDBS, CONFIGS, LEASES, DEPLOYMENTS):
            await server.answer(session, Ask("DELETE", path))
        found = []
        for ask in asks:
            code, body, retry_after = await server.answer(session, ask)
            answer: Json = {"asked": f"{ask.method} {ask.path}", "code": code}
            if retry_after is not None:
                answer["retryAfter"] = retry_after
            found.append({**answer, "body": gist(body, words=ask.words)})
        return found


def recorded(asks: str) -> list[Json]:
    found: list[Json] = json.loads((RECORDED / f"{asks}.json").read_text())
    return found


@in_turn
async def test_the_simulator_answers_as_a_real_server_did(asks: str) -> None:
    async with ApiServer.start() as api:
        ours = await answers(Server(url=api.url, headers={}, trust=True), ASKS[asks])

    recording = recorded(asks)
    assert len(ours) == len(recording)
    assert [pair for pair in zip(ours, recording, strict=True) if pair[0] != pair[1]] == []


@pytest.mark.e2e
@in_turn
async def test_a_real_server_answers_as_is_recorded(asks: str, real: Server) -> None:
    theirs = await answers(real, ASKS[asks])

    if os.environ.get(RECORD_ENV):
        lines = ",\n".join(json.dumps(answer) for answer in theirs)
        (RECORDED / f"{asks}.json").write_text(f"[\n{lines}\n]\n")
    assert theirs == recorded(asks)
