"""An API server that only lists: nodes with cards and bound pods, as many as one likes.

``python -m benchmarks._canned_api PORT NODES PODS_PER_NODE SECRET_FILE``

Behind the bound pods it lists :data:`PENDING` that wait.

It serves lists in pages and watches that stay silent, takes the extender's lease and its Bindings,
and keeps nothing else. A page is written when it is asked for, so its own memory stays small.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import web

from fracgpu import names
from fracgpu.cards.annotations import write_cards
from fracgpu.cards.card import Card, CardUuid
from fracgpu.units import Mib

CARDS: Final = 8
CARD_MIB: Final = 81_920
POD_MIB: Final = 8_000
PENDING: Final = 2_000
_SILENCE_S: Final = 3600.0

# What makes pods as long as they are, and nobody here reads.
_MANAGED: Final = [{"manager": "kubelet", "fieldsV1": {f"f:field-{n}": {} for n in range(60)}}]
_ENV: Final = [{"name": f"SETTING_{n}", "value": f"value-{n}"} for n in range(10)]


def node_name(number: int) -> str:
    return f"gpu-node-{number:05d}.cluster.example"


def _uuid(node: int, card: int) -> CardUuid:
    return CardUuid(f"GPU-{node:08x}-0000-4000-8000-{card:012x}")


def a_node(number: int) -> dict[str, Any]:
    """A node of eight cards, about as long as kubelets write them."""
    uuids = [_uuid(number, card) for card in range(CARDS)]
    cards = [
        Card(
            uuid=uuid,
            index=index,
            model="NVIDIA A100-SXM4-80GB",
            total_mib=Mib(CARD_MIB),
            links={other: 1 for other in uuids if other != uuid},
        )
        for index, uuid in enumerate(uuids)
    ]
    resources = {
        names.GPU_MEM: str(CARDS * CARD_MIB),
        names.GPU_COUNT: str(CARDS),
        names.GPU_SLOT: "256",
        "cpu": "128",
        "memory": "1024Gi",
        "pods": "110",
    }
    return {
        "metadata": {
            "name": node_name(number),
            "uid": f"node-{number}",
            "resourceVersion": str(number + 1),
            "labels": {names.SHARE_LABEL: "true", "kubernetes.io/hostname": node_name(number)},
            "annotations": {names.NODE_CARDS: write_cards(cards)},
        },
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True"}],
            "images": [
                {"names": [f"registry.example/image-{n}@sha256:{n:064x}"], "sizeBytes": 10**9}
                for n in range(20)
            ],
        },
    }


def a_pod(node: int, number: int) -> dict[str, Any]:
    """A bound pod, about as long as real ones are with all their managed fields."""
    amounts = {names.GPU_MEM: str(POD_MIB), names.GPU_SLOT: "1", "cpu": "4", "memory": "16Gi"}
    slices = {"train": [{"card": _uuid(node, number % CARDS), "mib": POD_MIB}]}
    return {
        "metadata": {
            "name": f"train-{node}-{number}-7c5d8b",
            "namespace": f"team-{node % 50}",
            "uid": f"{node:08x}-{number:04x}-4000-8000-000000000000",
            "resourceVersion": str(10**6 + node * 1000 + number),
            "labels": {"app": f"train-{node % 50}", "pod-template-hash": "7c5d8b"},
            "annotations": {
                names.MEMORY: f"{POD_MIB}Mi",
                names.GRANTED: f"train: {POD_MIB} MiB on 1 card",
                names.ASSIGNMENT: json.dumps(slices),
            },
            "managedFields": _MANAGED,
        },
        "spec": {
            "nodeName": node_name(node),
            "schedulerName": names.SCHEDULER_NAME,
            "containers": [
                {
                    "name": "train",
                    "image": "registry.example/train:1",
                    "env": _ENV,
                    "resources": {"limits": amounts, "requests": amounts},
                }
            ],
        },
        "status": {
            "phase": "Running",
            "startTime": "2026-01-01T00:00:00Z",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def a_pending_pod(number: int, *, mib: int = 4_000) -> dict[str, Any]:
    """A pod that waits to be scheduled."""
    pod = a_pod(0, 0)
    amounts = {names.GPU_MEM: str(mib), names.GPU_SLOT: "1", "cpu": "1", "memory": "4Gi"}
    pod["metadata"] |= {
        "name": f"pending-{number}",
        "namespace": "default",
        "uid": f"pending-{number}",
        "annotations": {names.MEMORY: f"{mib}Mi"},
    }
    del pod["spec"]["nodeName"]
    pod["spec"]["containers"][0]["resources"] = {"limits": amounts, "requests": amounts}
    pod["status"] = {"phase": "Pending"}
    return pod


class CannedApi:
    """The handlers, over so many nodes with so many pods each."""

    def __init__(self, nodes: int, pods_per_node: int, secret: dict[str, Any]) -> None:
        self._secret = secret
        self._nodes = nodes
        self._per_node = pods_per_node
        self._version = 10**9
        self._leases: dict[str, dict[str, Any]] = {}
        self.app = web.Application()
        self.app.router.add_get("/api/v1/nodes", self._list_nodes)
        self.app.router.add_get("/api/v1/pods", self._list_pods)
        self.app.router.add_get("/api/v1/namespaces/{namespace}/pods/{name}", self._get_pod)
        self.app.router.add_post("/api/v1/namespaces/{namespace}/pods/{name}/binding", self._bind)
        self.app.router.add_get("/{group:.*}/leases/{name}", self._get_lease)
        self.app.router.add_post("/{group:.*}/leases", self._put_lease)
        self.app.router.add_put("/{group:.*}/leases/{name}", self._put_lease)
        self.app.router.add_get("/api/v1/namespaces/{namespace}/secrets", self._list_secret)
        self.app.router.add_get("/{rest:.*}", self._list_nothing)

    async def _list_nodes(self, request: web.Request) -> web.StreamResponse:
        return await self._page(request, self._nodes, a_node)

    async def _list_pods(self, request: web.Request) -> web.StreamResponse:
        bound = self._nodes * self._per_node

        def item(at: int) -> dict[str, Any]:
            if at < bound:
                return a_pod(at // self._per_node, at % self._per_node)
            return a_pending_pod(at - bound)

        return await self._page(request, bound + PENDING, item)

    async def _list_secret(self, request: web.Request) -> web.StreamResponse:
        return await self._page(request, 1, lambda _: self._secret)

    async def _list_nothing(self, request: web.Request) -> web.StreamResponse:
        return await self._page(request, 0, a_node)

    async def _page(self, request: web.Request, total: int, item: Any) -> web.StreamResponse:
        if request.query.get("watch") in {"1", "true"}:
            answer = web.StreamResponse(headers={"Content-Type": "application/json"})
            await answer.prepare(request)
            await asyncio.sleep(_SILENCE_S)
            return answer
        start = int(request.query.get("continue") or 0)
        end = min(total, start + int(request.query.get("limit") or total or 1))
        metadata = {"resourceVersion": str(self._version)}
        if end < total:
            metadata["continue"] = str(end)
        items = [item(at) for at in range(start, end)]
        body = msgspec.json.encode({"metadata": metadata, "items": items})
        return web.Response(body=body, content_type="application/json")

    async def _get_pod(self, request: web.Request) -> web.Response:
        _, _, number = request.match_info["name"].partition("-")
        return web.json_response(a_pending_pod(int(number)))

    async def _bind(self, request: web.Request) -> web.Response:
        await request.read()
        return web.json_response({"kind": "Status", "status": "Success"}, status=201)

    async def _get_lease(self, request: web.Request) -> web.Response:
        lease = self._leases.get(request.match_info["name"])
        if lease is None:
            return web.json_response(
                {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404},
                status=404,
            )
        return web.json_response(lease)

    async def _put_lease(self, request: web.Request) -> web.Response:
        lease = await request.json()
        self._version += 1
        lease["metadata"]["resourceVersion"] = str(self._version)
        self._leases[lease["metadata"]["name"]] = lease
        return web.json_response(lease, status=201 if request.method == "POST" else 200)


def main(port: str, nodes: str, pods_per_node: str, secret_file: str) -> None:
    """Serve until somebody ends the process."""
    secret = json.loads(Path(secret_file).read_text())
    api = CannedApi(int(nodes), int(pods_per_node), secret)
    web.run_app(api.app, host="127.0.0.1", port=int(port), access_log=None, print=None)


if __name__ == "__main__":
    main(*sys.argv[1:])
