"""Reviews that come in one piece are answered at once, and as those that come in pieces."""

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import structlog

from benchmarks.fixtures.http_caller import request_bytes
from certs.authority import Pair, make_client
from tests.certs.tls_harness import HOUR, a_ca, now, trusting
from tests.support.waiting import until_true
from tests.webhook.builders import RULES, Json, a_pod, a_review
from tests.webhook.harness import Harness, a_webhook

A_DEPLOYMENT = {"group": "apps", "version": "v1", "kind": "Deployment"}
REVIEWS: dict[str, tuple[str, Json]] = {
    "granted": ("/mutate", a_review(a_pod(fraction="0.5"))),
    "refused": ("/mutate", a_review(a_pod(fraction="2"))),
    "nothing": ("/mutate", a_review(a_pod())),
    "update": (
        "/mutate",
        a_review(a_pod(wired="x"), operation="UPDATE", oldObject=a_pod(fraction="0.5")),
    ),
    "excluded": ("/mutate", a_review(a_pod(fraction="2"), namespace="excluded")),
    "workload": ("/validate", a_review({"spec": {"template": a_pod()}}, kind=A_DEPLOYMENT)),
    "wrong kind": ("/mutate", a_review({"spec": {}}, kind=A_DEPLOYMENT)),
    "no review": ("/mutate", {}),
    "no such path": ("/other", a_review(a_pod())),
}
AT_ONCE = {"granted", "refused", "nothing", "update", "excluded", "workload"}


@pytest.fixture
async def server() -> AsyncIterator[Harness]:
    async with a_webhook() as server:
        server.rules = replace(RULES, excluded_namespaces=frozenset({"excluded"}))
        yield server


async def answered(
    server: Harness,
    path: str,
    review: Json,
    *,
    by_aiohttp: bool = False,
    client: Pair | None = None,
) -> tuple[bool, int, bytes]:
    """Return whether aiohttp answered a review, which its answers say, the status and the body."""
    host, port = server.url.removeprefix("https://").split(":")
    reader, writer = await asyncio.open_connection(
        host, int(port), ssl=trusting(server.ca.cert_pem, client=client)
    )
    request = request_bytes(path, json.dumps(review).encode())
    if by_aiohttp:  # a header that only aiohttp knows
        request = request.replace(b"Accept:", b"X-Other: 1\r\nAccept:", 1)
    try:
        async with asyncio.timeout(20):
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.split(b"\r\n") if b"Content-Length: " in line)
            body = await reader.readexactly(int(length.split()[1]))
    finally:
        writer.close()
    return b"\r\nServer: " in head, int(head.split()[1]), body


@pytest.mark.parametrize("name", REVIEWS)
async def test_a_review_gets_the_same_answer_line_and_count_at_once_as_by_aiohttp(
    server: Harness, name: str
) -> None:
    path, review = REVIEWS[name]
    answers, told = [], []
    for by_aiohttp in (False, True):
        before = counts(server)
        with structlog.testing.capture_logs() as lines:
            answers.append(await answered(server, path, review, by_aiohttp=by_aiohttp))
            if path != "/other":
                await until_true(partial(bool, lines), what="the line is written")
        shown = [{**line, "took_us": 0, "timestamp": ""} for line in lines]
        told.append((shown, {each: counts(server)[each] - before[each] for each in before}))

    assert [by_aiohttp for by_aiohttp, _, _ in answers] == [name not in AT_ONCE, True]
    assert answers[0][1] == answers[1][1]
    assert without_seal(answers[0][2]) == without_seal(answers[1][2])
    assert told[0] == told[1]


def counts(server: Harness) -> dict[str, float]:
    samples = [
        sample
        for metric in server.registry.collect()
        if metric.name == "fracgpu_webhook_decisions"
        for sample in metric.samples
        if sample.name.endswith("_total")
    ]
    labels = {"untouched", "granted", "unchanged", "refused", "malformed"}
    return {
        outcome: sum(each.value for each in samples if each.labels["outcome"] == outcome)
        for outcome in labels
    }


def without_seal(body: bytes) -> Json:
    """Return an answer without what depends on the second that it is made in."""
    try:
        answer: Json = json.loads(body)["response"]
    except ValueError:
        return {"text": body.decode()}
    patch = base64.b64decode(answer.pop("patch", "")).decode()
    return {**answer, "edits": re.sub(r'\\"(at|seal)\\":\\"[^"]*"', "", patch)}


async def test_a_namespace_that_is_not_known_yet_is_asked_for_by_aiohttps_way(
    server: Harness,
) -> None:
    server.labels["ml"] = {"fracgpu.io/dialects": "kai"}
    server.young.add("ml")
    pod = a_pod()
    pod["metadata"]["annotations"] = {"gpu-fraction": "0.5"}

    by_aiohttp, status, body = await answered(server, "/mutate", a_review(pod))

    assert (by_aiohttp, status) == (True, 200)
    assert without_seal(body)["edits"]


async def test_who_may_not_ask_gets_403_at_once_as_well(tmp_path: Path) -> None:
    file, clients = tmp_path / "clients.crt", a_ca()
    file.write_bytes(clients.cert_pem)
    path, review = REVIEWS["granted"]
    known, other = (make_client(clients, name=name, now=now(), life=HOUR) for name in "ab")
    async with a_webhook(client_ca_file=str(file), client_names=("a",)) as server:
        allowed = await answered(server, path, review, client=known)
        refused = await answered(server, path, review, client=other)

    assert allowed[:2] == (False, 200)
    assert refused[:2] == (True, 403)
