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

RECORD_ENV: Final = "FRACGPU_RECORD"
RECORDED: Final = Path(__file__).with_name("side_by_side")

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
NS = "/api/v1/namespaces/NS"
PODS = f"{NS}/pods"
CONFIGS = f"{NS}/configmaps"
PDBS = "/apis/policy/v1/namespaces/NS/poddisruptionbudgets"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/NS/leases"
DEPLOYMENTS = "/apis/apps/v1/namespaces/NS/deployments"
JOBS = "/apis/batch/v1/namespaces/NS/jobs"
HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"

_LEFT_OUT = frozenset({"managedFields"})
_TIMES = {"creationTimestamp", "deletionTimestamp", "lastTransitionTime"}
_VARIES = frozenset({"uid", "resourceVersion", *_TIMES})
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}")
_GENERATED = re.compile(r"gen-[a-z0-9]{5}")


@dataclass(frozen=True)
class Ask:
    """One request. ``words`` False compares the code and the reason alone."""

    method: str
    path: str
    body: Any = None
    content_type: str = "application/json"
    words: bool = True


def a_pod(name: str = "", *, meta: Json | None = None, **spec: Any) -> Json:
    container = {"name": "main", "image": "x:1"}
    return {
        "metadata": {**({"name": name} if name else {}), **(meta or {})},
        "spec": {"schedulerName": "nobody", "containers": [container], **spec},
    }


def demanding(name: str, **amounts: Any) -> Json:
    container = {"name": "main", "image": "x:1", "resources": amounts}
    return a_pod(name, containers=[container])


def mem(amount: Any) -> Json:
    return {"fracgpu.io/gpu-mem": amount}


def labelled(labels: Json, selector: Json) -> Json:
    template = {"metadata": {"labels": labels}, "spec": a_pod()["spec"]}
    spec = {"replicas": 0, "selector": {"matchLabels": selector}, "template": template}
    return {"metadata": {"name": "d"}, "spec": spec}


def a_job(**spec: Any) -> Json:
    return {"metadata": {"name": "j"}, "spec": {"template": a_pod(**spec)}}


def a_hook(**parts: Any) -> Json:
    rule = {
        "apiGroups": ["example.org"],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["things"],
    }
    hook = {
        "name": "a.example.org",
        "clientConfig": {"url": "https://127.0.0.1:1/x"},
        "rules": [rule],
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        **parts,
    }
    return {"metadata": {"name": "side-by-side"}, "webhooks": [hook]}


def bound(name: str, node: str = "n1", **meta: Any) -> Json:
    return {"metadata": {"name": name, **meta}, "target": {"kind": "Node", "name": node}}


ADD = {"op": "add", "value": "1"}
OTHER_IMAGE = {"name": "main", "image": "y:1"}
READY = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
COUNTED = {"observedGeneration": 1, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}

WRITES_AND_READS = [
    Ask("POST", PODS, a_pod("p")),
    Ask("POST", PODS, a_pod("p")),
    Ask("GET", f"{PODS}/p"),
    Ask("GET", f"{PODS}/none"),
    Ask("POST", PODS, a_pod(meta={"generateName": "gen-"})),
    Ask("POST", PODS, a_pod()),
    Ask("POST", f"{PODS}?dryRun=All", a_pod("dry")),
    Ask("GET", f"{PODS}/dry"),
    Ask("POST", PODS, a_pod("q", meta={"namespace": "other"})),
    Ask("POST", "/api/v1/namespaces/nowhere/pods", a_pod("q")),
    Ask("PUT", f"{PODS}/p", a_pod("other")),
    Ask("PUT", f"{PODS}/p", a_pod("p", meta={"resourceVersion": "1"})),
    Ask("PUT", f"{PODS}/p", a_pod("p", meta={"uid": "other"})),
    Ask("PUT", f"{PODS}/p", a_pod("p", nodeName="n9"), words=False),
    Ask("DELETE", f"{PODS}/p", {"preconditions": {"uid": "other"}}),
    Ask("DELETE", f"{PODS}/p"),
    Ask("DELETE", f"{PODS}/p"),
    Ask("POST", CONFIGS, {"metadata": {"name": "c"}, "data": {"a": "1"}}),
    Ask("PUT", f"{CONFIGS}/c", {"metadata": {"name": "c"}, "data": {"a": "2"}}),
    Ask("DELETE", f"{CONFIGS}/c"),
    Ask("POST", CONFIGS, {"metadata": {"name": "c"}, "data": {"a": 1}}),
    Ask("POST", CONFIGS, {"metadata": {"name": "f", "finalizers": ["example.org/f"]}}),
    Ask("DELETE", f"{CONFIGS}/f"),
    Ask("PATCH", f"{CONFIGS}/f", {"metadata": {"finalizers": None}}, MERGE),
    Ask("GET", f"{CONFIGS}/f"),
    Ask("POST", LEASES, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "x"}}),
    Ask("PUT", f"{LEASES}/l", {"metadata": {"name": "l"}, "spec": {}}),
    Ask("PUT", f"{LEASES}/new", {"metadata": {"name": "new"}, "spec": {}}),
    Ask("POST", f"{NS}/secrets", {"metadata": {"name": "s"}, "stringData": {"a": "b"}}),
    Ask("PATCH", f"{NS}/secrets/s", {"type": "x"}, MERGE),
    Ask("DELETE", "/api/v1/namespaces/default"),
]
ROUTES = [
    Ask("GET", "/api/v1/things"),
    Ask("GET", "/apis/example.org/v1/things"),
    Ask("GET", "/nothing"),
    Ask("GET", f"{PODS}/p/nothing"),
    Ask("POST", f"{PODS}/p", {}),
    Ask("PUT", PODS, {}),
    Ask("POST", "/api/v1/pods", a_pod("q")),
    Ask("GET", f"{PODS}?fieldSelector=spec.x%3D1"),
    Ask("GET", f"{PODS}?labelSelector=a%20b%20c", words=False),
    Ask("GET", f"{PODS}?limit=x", words=False),
    Ask("GET", f"{PODS}?resourceVersion=x", words=False),
    Ask("GET", f"{PODS}?resourceVersion=99999999", words=False),
    Ask("GET", f"{PODS}?continue=abc", words=False),
    Ask("POST", PODS, b"{not json", words=False),
    Ask("POST", PODS, b"[]", words=False),
    Ask("POST", PODS, a_pod("q"), "text/plain", words=False),
    Ask("POST", PODS, {**a_pod("q"), "kind": "Node"}, words=False),
    Ask("POST", PODS, {**a_pod("q"), "apiVersion": "v2"}, words=False),
]
VALIDATION = [
    Ask("POST", PODS, demanding("ok", limits={**mem(8000), "cpu": 0.5, "memory": "1024Mi"})),
    Ask("POST", PODS, demanding("q", limits=mem("1.5"))),
    Ask("POST", PODS, demanding("q", limits=mem("abc"))),
    Ask("POST", PODS, demanding("q", limits=mem("-1"))),
    Ask("POST", PODS, demanding("q", requests=mem("4"))),
    Ask("POST", PODS, demanding("q", limits=mem("4"), requests=mem("3"))),
    Ask("POST", PODS, demanding("q", limits={"cpu": "1"}, requests={"cpu": "2"})),
    Ask("POST", PODS, demanding("q", limits={"gpumem": "1"}), words=False),
    Ask("POST", PODS, {"metadata": {"name": "q"}}),
    Ask("POST", PODS, a_pod("q", containers=[{}])),
    Ask("POST", PODS, a_pod("q", containers=[{"name": "a", "image": "x"}] * 2)),
    Ask("POST", PODS, a_pod("Bad_Name")),
    Ask("POST", PODS, a_pod("q", meta={"annotations": {"a": 0.5}})),
    Ask("POST", PODS, a_pod("q", meta={"annotations": {"bad key": "x"}})),
    Ask("POST", PODS, a_pod("q", meta={"labels": {"a": "bad value"}})),
    Ask("POST", DEPLOYMENTS, labelled({"app": "a"}, {"app": "b"})),
    Ask("POST", DEPLOYMENTS, labelled({"app": "a"}, {})),
    Ask("POST", DEPLOYMENTS, labelled({"app": "a"}, {"app": "a"})),
    Ask("GET", f"{DEPLOYMENTS}/d/scale"),
    Ask("PATCH", f"{DEPLOYMENTS}/d/scale", {"spec": {"replicas": -1}}, MERGE),
    Ask("PATCH", f"{DEPLOYMENTS}/d/scale", {"spec": {"replicas": 2}}, MERGE),
    Ask("PATCH", f"{DEPLOYMENTS}/d", {"spec": {"selector": {"matchLabels": {"x": "y"}}}}, MERGE),
    Ask("POST", JOBS, a_job()),
    Ask(
        "POST",
        JOBS,
        {"metadata": {"name": "j"}, "spec": {"template": a_pod(restartPolicy="Never")}},
    ),
    Ask("POST", HOOKS, a_hook(name="short")),
    Ask("POST", HOOKS, a_hook(sideEffects="Some")),
    Ask("POST", HOOKS, a_hook(timeoutSeconds=60)),
    Ask("POST", HOOKS, a_hook(clientConfig={})),
    Ask("POST", HOOKS, a_hook(clientConfig={"url": "http://x/"})),
    Ask("POST", HOOKS, a_hook(admissionReviewVersions=["v2"])),
    Ask("POST", HOOKS, a_hook(failurePolicy="Maybe")),
    Ask(
        "POST",
        HOOKS,
        a_hook(matchConditions=[{"name": "x", "expression": "object.metadata.name == "}]),
        words=False,
    ),
    Ask("POST", HOOKS, a_hook(matchConditions=[{"name": "x", "expression": "f(1)"}]), words=False),
    Ask("POST", HOOKS, a_hook()),
    Ask("DELETE", f"{HOOKS}/side-by-side"),
]
PATCHES = [
    Ask("POST", PODS, a_pod("p")),
    Ask("PATCH", f"{PODS}/p", {"metadata": {"labels": {"a": None, "b": "c"}}}, MERGE),
    Ask("PATCH", f"{PODS}/p", {"metadata": {"resourceVersion": "1"}}, MERGE),
    Ask("PATCH", f"{PODS}/p", {"metadata": {"name": "other"}}, MERGE),
    Ask("PATCH", f"{PODS}/p", {"metadata": {"uid": "other"}}, MERGE, words=False),
    Ask("PATCH", f"{PODS}/p", {"spec": {"nodeName": "n"}}, MERGE, words=False),
    Ask("PATCH", f"{PODS}/p", [1], MERGE, words=False),
    Ask("PATCH", f"{PODS}/p", b"{", MERGE, words=False),
    Ask("PATCH", f"{PODS}/p", {}, "application/json"),
    Ask("PATCH", f"{PODS}/none", {"metadata": {}}, MERGE),
    Ask("PATCH", f"{PODS}/p", [{"op": "test", "path": "/kind", "value": "x"}], JSON_PATCH),
    Ask("PATCH", f"{PODS}/p", [{**ADD, "path": "/gone/x"}], JSON_PATCH),
    Ask("PATCH", f"{PODS}/p", [{"op": "frob", "path": "/kind"}], JSON_PATCH),
    Ask("PATCH", f"{PODS}/p", {}, JSON_PATCH, words=False),
    Ask(
        "PATCH",
        f"{PODS}/p",
        [{"op": "add", "path": "/metadata/labels/z", "value": "1"}],
        JSON_PATCH,
    ),
    Ask("PATCH", f"{PODS}/p", {"spec": {"containers": [{"image": "y"}]}}, STRATEGIC),
    Ask("PATCH", f"{PODS}/p", {"metadata": {"$patch": "frob"}}, STRATEGIC),
    Ask(
        "PATCH",
        f"{PODS}/p",
        {"spec": {"containers": [{"name": "main", "image": "y:1"}]}},
        STRATEGIC,
    ),
    Ask("PATCH", f"{PODS}/p/status", {**READY, "metadata": {"labels": {"via": "status"}}}, MERGE),
    Ask("PATCH", f"{PODS}/p", {"status": {"phase": "Failed"}}, MERGE),
]
BINDING_AND_EVICTION = [
    Ask("POST", PODS, a_pod("p", meta={"labels": {"app": "a"}})),
    Ask("POST", f"{PODS}/none/binding", bound("none")),
    Ask("POST", f"{PODS}/p/binding", bound("other")),
    Ask("POST", f"{PODS}/p/binding", {"metadata": {"name": "p"}, "target": {}}),
    Ask("POST", f"{PODS}/p/binding", bound("p", uid="other")),
    Ask("POST", f"{PODS}/p/binding", bound("p", resourceVersion="1"), words=False),
    Ask("POST", f"{PODS}/p/binding", bound("p", annotations={"example.org/a": "b"})),
    Ask("POST", f"{PODS}/p/binding", bound("p", "n2")),
    Ask("GET", f"{PODS}/p"),
    Ask("PATCH", f"{PODS}/p/status", READY, STRATEGIC),
    Ask("POST", f"{PODS}/none/eviction", {"metadata": {"name": "none"}}),
    Ask("POST", f"{PODS}/p/eviction", {"metadata": {"name": "other"}}),
    Ask(
        "POST",
        f"{PODS}/p/eviction",
        {"metadata": {"name": "p"}, "deleteOptions": {"preconditions": {"uid": "other"}}},
    ),
    Ask(
        "POST",
        PDBS,
        {
            "metadata": {"name": "b"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}},
        },
    ),
    Ask("POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}}),
    Ask("PATCH", f"{PDBS}/b/status", {"status": {**COUNTED, "disruptionsAllowed": 0}}, MERGE),
    Ask("POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}}),
    Ask("PATCH", f"{PDBS}/b/status", {"status": {"desiredHealthy": 0}}, MERGE),
    Ask("POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}}),
    Ask("PATCH", f"{PDBS}/b/status", {"status": {"disruptionsAllowed": 1}}, MERGE),
    Ask("POST", f"{PODS}/p/eviction?dryRun=All", {"metadata": {"name": "p"}}),
    Ask("POST", PDBS, {"metadata": {"name": "c"}, "spec": {"minAvailable": 1, "selector": {}}}),
    Ask("POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}}),
    Ask("DELETE", f"{PDBS}/c"),
    Ask("POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}}),
    Ask("GET", f"{PODS}/p"),
    Ask("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 0}),
    Ask("POST", PODS, a_pod("g", schedulingGates=[{"name": "example.org/g"}])),
    Ask("POST", f"{PODS}/g/binding", bound("g")),
]


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
            told = response.content_type == "application/json"
            found = decode(text) if told else text.decode()
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
            return _GENERATED.sub("gen-...", _UID.sub("<uid>", value))
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


ASKS: Final = {
    "writes-and-reads": WRITES_AND_READS,
    "routes": ROUTES,
    "validation": VALIDATION,
    "patches": PATCHES,
    "binding-and-eviction": BINDING_AND_EVICTION,
}
in_turn = pytest.mark.parametrize("asks", ASKS)


async def answers(server: Server, asks: list[Ask]) -> list[Json]:
    """Return what is compared of each answer; the namespace is emptied first."""
    async with aiohttp.ClientSession() as session:
        await server.answer(
            session, Ask("POST", "/api/v1/namespaces", {"metadata": {"name": "side-by-side"}})
        )
        for path in (PODS, PDBS, CONFIGS, LEASES, DEPLOYMENTS, JOBS):
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

    told = recorded(asks)
    assert len(ours) == len(told)
    assert [pair for pair in zip(ours, told, strict=True) if pair[0] != pair[1]] == []


@pytest.mark.e2e
@in_turn
async def test_a_real_server_answers_as_is_recorded(asks: str, real: Server) -> None:
    theirs = await answers(real, ASKS[asks])

    if os.environ.get(RECORD_ENV):
        lines = ",\n".join(json.dumps(answer) for answer in theirs)
        (RECORDED / f"{asks}.json").write_text(f"[\n{lines}\n]\n")
    assert theirs == recorded(asks)
