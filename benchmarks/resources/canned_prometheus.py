"""A Prometheus that answers the rebalancer's queries for a cluster of ``objects``.

``python -m benchmarks.resources.canned_prometheus PORT NODES PODS_PER_NODE``

Every card has an hour of samples; one in a hundred is hot. The samples are drawn once, so that this
process needs little CPU time of its own; only their time goes on.
"""

import json
import sys
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from aiohttp import web

from benchmarks.fixtures.judged_prometheus import Floats, JudgedPrometheus
from benchmarks.fixtures.objects import (
    CARD_MIB,
    CARDS,
    POD_MIB,
    a_pod,
    card_uuid,
    node_name,
)
from fracgpu.disruption.policy import RebalancerPolicy
from process.clock import SystemClock
from rebalancer.usage import promql

HOT_EVERY: Final = 100  # one card in so many is hot
_SEED: Final = 1
_HOT: Final = 0.97
_WARM: Final = 0.35
_NOISE: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What ``JudgedCard`` wants of a card."""

    id: str
    node: str
    samples: Floats
    free_mib: int
    model: str = "NVIDIA A100-SXM4-80GB"
    capacity_mib: int = CARD_MIB
    age_s: float = 0.0
    collect_age_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """What ``JudgedPod`` wants of a pod."""

    id: str
    card: str
    samples: Floats
    owner: str = ""
    mib: int = POD_MIB
    ready: bool = True
    started_s: float = 0.0


def canned(policy: RebalancerPolicy, *, nodes: int, pods_per_node: int) -> JudgedPrometheus:
    """Return the answers for all cards and pods of a cluster, for one policy's queries."""
    rng = np.random.default_rng(_SEED)
    scrapes = 1 + round(max(policy.slow_window_s, policy.forecast_window_s) / policy.step_s)
    cards: list[Card] = []
    pods: list[Pod] = []
    for node in range(nodes):
        for index in range(CARDS):
            number = node * CARDS + index
            level = _HOT if number % HOT_EVERY == 0 else _WARM
            samples = np.clip(rng.normal(level, _NOISE, scrapes), 0.0, 1.0)
            here = range(index, pods_per_node, CARDS)
            free = CARD_MIB - POD_MIB * len(here)
            uuid = card_uuid(node, index)
            cards.append(Card(id=uuid, node=node_name(node), samples=samples, free_mib=free))
            pods += [
                Pod(id=a_pod(node, pod)["metadata"]["uid"], card=uuid, samples=samples / len(here))
                for pod in here
            ]
    now_s = SystemClock().now().timestamp()
    # What the cards did before the samples that are shown is not known.
    return JudgedPrometheus(policy, cards, pods, now_s)


class CannedPrometheus:
    """The handlers; each answer is made once."""

    def __init__(self, answers: JudgedPrometheus) -> None:
        self._answers = answers
        self._bodies: dict[str, bytes] = {}
        self.app = web.Application()
        self.app.router.add_get("/api/v1/query", self._query)

    async def _query(self, request: web.Request) -> web.Response:
        query = request.query["query"]
        if query == promql.SERVER_TIME:
            now_s = SystemClock().now().timestamp()
            body = _body("scalar", [now_s, f"{now_s:.3f}"])
        else:
            body = self._bodies.get(query) or await self._made(query)
        return web.Response(body=body, content_type="application/json")

    async def _made(self, query: str) -> bytes:
        try:
            samples = await self._answers.query(query)
        except KeyError:
            raise web.HTTPBadRequest(text=f"no answer to {query}") from None
        result = [
            {"metric": dict(sample.labels), "value": [0, f"{sample.value:g}"]} for sample in samples
        ]
        return self._bodies.setdefault(query, _body("vector", result))


def _body(kind: str, result: Any) -> bytes:
    data = {"resultType": kind, "result": result}
    return json.dumps({"status": "success", "data": data}).encode()


def main(port: str, nodes: str, pods_per_node: str) -> None:
    """Serve until the process is stopped."""
    answers = canned(RebalancerPolicy(), nodes=int(nodes), pods_per_node=int(pods_per_node))
    web.run_app(
        CannedPrometheus(answers).app,
        host="127.0.0.1",
        port=int(port),
        access_log=None,
        print=None,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
