"""The whole role with real transports: an API server, a real Prometheus, and an exporter."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import ClientSession

from fracgpu import names
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.state.move_object import decode_move
from kube.client import KubeClient
from kube.errors import NotFound
from kube.kinds import CONFIGMAPS, LEASES, MOVES, PODS
from process.telemetry import HttpServer
from rebalancer.service import build
from rebalancer.settings import RebalancerSettings
from simulator.apiserver.server import ApiServer
from simulator.envtest.prometheus import RealPrometheus
from tests.fakes.exporter import Exporter
from tests.support.moving import (
    NAMESPACE,
    SHORT_TIMES,
    add_pod,
    cordons_of,
    end_pod,
    events,
    make_cluster,
)
from tests.support.rebalancing import COOL_CARD, HOT_CARD
from tests.support.running_service import running_service
from tests.support.waiting import until

# The exporter is scraped four times as often as the policy expects, so that a busy machine may miss
# most of them; and a move is judged when the short window has nothing of before in it.
SCRAPE_S: Final = 0.25
QUICK: Final = RebalancerPolicy(**SHORT_TIMES, settle_s=6, cordon_s=60, plan_ttl_s=60)
ACTIVE: Final = "mode: active"


@dataclass
class Load:
    """What the exporter reports: per cent of each card, and of each pod on the hot one."""

    cards: dict[str, float]
    pods: dict[str, float] = field(default_factory=dict)

    def page(self) -> str:
        now = time.time()  # noqa: TID251 - as an exporter would
        lines = [f"fracgpu_collect_timestamp_seconds {now}"]
        for uuid, busy in self.cards.items():
            # No busy card's power is the same to the last digit from scrape to scrape.
            lines.append(f'fracgpu_card_power_watts{{UUID="{uuid}",pod=""}} {200 + now % 10}')
            lines.append(f'fracgpu_card_util{{UUID="{uuid}",pod=""}} {busy}')
            lines.append(f'fracgpu_card_memory_free_mib{{UUID="{uuid}",pod=""}} 16000')
        for uid, busy in self.pods.items():
            lines.append(f'fracgpu_pod_sm_util{{UUID="{HOT_CARD}",pod_uid="{uid}"}} {busy}')
        return "\n".join([*lines, ""])


class Role:
    """The rebalancer under test, and its own metrics."""

    def __init__(self, session: ClientSession, server: HttpServer) -> None:
        self._session, self._server = session, server

    async def get(self, path: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self._server.port}{path}"
        async with self._session.get(url) as answer:
            return answer.status, await answer.text()

    async def shows(self, line: str) -> bool:
        """Report whether /metrics has exactly this line."""
        return line in (await self.get("/metrics"))[1].splitlines()


@asynccontextmanager
async def a_role(
    api: ApiServer,
    tmp_path: Path,
    prometheus_url: str,
    *,
    base: RebalancerPolicy = QUICK,
    query_timeout_s: float = 10.0,
) -> AsyncIterator[Role]:
    settings = RebalancerSettings(
        prometheus_url=prometheus_url,
        kubeconfig=str(api.kubeconfig(tmp_path / "kubeconfig")),
        telemetry_host="127.0.0.1",
        telemetry_port=0,
        identity="rebalancer-0",
        query_timeout_s=query_timeout_s,
    )
    service = build(settings, base=base)
    assert isinstance(service.telemetry, HttpServer)
    async with ClientSession() as session, running_service(service):
        role = Role(session, service.telemetry)
        await until(lambda: _answers(role), what="/livez answers")
        yield role


async def _answers(role: Role) -> bool:
    try:
        return (await role.get("/livez"))[0] == 200
    except OSError:
        return False


async def is_ready(role: Role, reason: str = "") -> bool:
    status, text = await role.get("/readyz")
    return status == 200 and reason in text


async def configure(kube: KubeClient, text: str) -> None:
    """Edit the ConfigMap as an administrator would."""
    meta = {"name": names.CONFIG_MAP, "namespace": names.SYSTEM_NAMESPACE}
    try:
        await kube.get(CONFIGMAPS, meta["name"], namespace=meta["namespace"])
    except NotFound:
        await kube.create(CONFIGMAPS, {"metadata": meta, "data": {"rebalancer": text}})
        return
    patch = {"data": {"rebalancer": text}}
    await kube.patch(CONFIGMAPS, meta["name"], patch, namespace=meta["namespace"])


def is_leaving(kube: KubeClient, *pods: str) -> Callable[[], Any]:
    async def ask() -> list[str]:
        found = [await kube.get_object(PODS, name, namespace=NAMESPACE) for name in pods]
        return [pod["metadata"]["name"] for pod in found if "deletionTimestamp" in pod["metadata"]]

    return ask


async def has_reported(kube: KubeClient, reason: str) -> bool:
    return reason in await events(kube)


async def replace_pod(kube: KubeClient, gone: str) -> None:
    """Do what kubelet, ReplicaSet and scheduler would."""
    await end_pod(kube, gone)
    (move,) = (await kube.list(MOVES)).items
    await add_pod(kube, "pod-c", card=COOL_CARD, node="n2", move=decode_move(bytes(move)).name)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_it_follows_its_configuration_and_moves_a_pod_off_a_hot_card(
    api: ApiServer, kube: KubeClient, tmp_path: Path
) -> None:
    await make_cluster(kube, annotations={names.REBALANCE: "evict"})
    pods = {
        name: (await kube.get_object(PODS, name, namespace=NAMESPACE))["metadata"]["uid"]
        for name in ("pod-a", "pod-b")
    }
    load = Load({HOT_CARD: 95, COOL_CARD: 5}, dict.fromkeys(pods.values(), 47))
    leaving = is_leaving(kube, *pods)
    async with AsyncExitStack() as stack:
        exporter = await stack.enter_async_context(Exporter.start())
        exporter.text = Load({}).page  # of no card so far
        start = RealPrometheus.start(
            tmp_path / "prometheus", {"node": exporter.address}, scrape_interval_s=SCRAPE_S
        )
        prometheus = await stack.enter_async_context(start)
        role = await stack.enter_async_context(a_role(api, tmp_path, prometheus.url))
        await until(
            lambda: role.shows('fracgpu_rebalancer_blind{reason="cards_unknown"} 1.0'),
            what="it leads and is blind",
        )
        reason = "0 of 2 cards have trusted readings"
        await until(lambda: is_ready(role, reason), what="it is ready, and says why it is blind")
        await until(lambda: role.shows("fracgpu_rebalancer_config_valid 1.0"), what="defaults")

        await configure(kube, "hotRatio: 80")
        await until(lambda: role.shows("fracgpu_rebalancer_config_valid 0.0"), what="refused")
        # The next cycle reports it, unless it is right again by then.
        await until(lambda: has_reported(kube, "ConfigRefused"), what="the refusal is an Event")
        await configure(kube, f"{ACTIVE}\nfastWindowS: 1200")
        await until(lambda: role.shows("fracgpu_rebalancer_config_valid 1.0"), what="taken")
        exporter.text = load.page
        await until(leaving, what="a pod is evicted", limit_s=90)
        (gone,) = await leaving()
        del load.pods[pods[gone]]
        load.cards |= {HOT_CARD: 47, COOL_CARD: 52}  # before the replacement is seen to run
        assert await cordons_of(kube, "n1") == {HOT_CARD: "hot"}
        await until(lambda: is_ready(role), what="it is still ready")

        await replace_pod(kube, gone)
        await until(
            lambda: role.shows(
                'fracgpu_rebalancer_moves_total{mode="evict",reason="relieved",result="done"} 1.0'
            ),
            what="the move is done and proven",
            limit_s=90,
        )
        assert await role.shows("fracgpu_rebalancer_misplaced_total 0.0")

    reported = await events(kube)
    assert reported.count("ConfigRefused") == reported.count("SettingsIgnored") == 1
    wanted = ["HotCardDetected", "MovePlanned", "Evicted", "MoveCompleted"]
    assert [event for event in reported if event in wanted] == wanted
    lease = await kube.get_object(LEASES, "fracgpu-rebalancer", namespace=names.SYSTEM_NAMESPACE)
    assert lease["spec"]["holderIdentity"] == ""  # given back at the orderly stop


async def test_without_prometheus_it_is_ready_and_says_that_it_is_blind(
    api: ApiServer, kube: KubeClient, tmp_path: Path
) -> None:
    await make_cluster(kube)
    await configure(kube, ACTIVE)
    async with a_role(api, tmp_path, "http://127.0.0.1:9") as role:
        blind = 'fracgpu_rebalancer_blind{reason="unreachable"} 1.0'
        await until(lambda: role.shows(blind), what="blind")

        status, text = await role.get("/readyz")

        assert status == 200
        assert "rebalancing: blind, no pod is moved: unreachable" in text
        assert (await role.get("/livez"))[0] == 200
        assert await is_leaving(kube, "pod-a", "pod-b")() == []
