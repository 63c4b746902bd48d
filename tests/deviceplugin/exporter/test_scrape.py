"""A real Prometheus scrapes the real agent: its series, and the queries of dashboards."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from deviceplugin.exporter.families import DcgmNaming
from kube.client import KubeClient
from process.telemetry import HttpServer
from simulator.apiserver.server import ApiServer
from simulator.cards.simulated_cards import cards_document, write_cards_file
from simulator.envtest.prometheus import PrometheusFailed, RealPrometheus
from simulator.kubelet.pod_worker import BUSY_KEY
from tests.support.node import Node, a_node
from tests.support.waiting import until
from tests.support.yaml_files import read_yaml

RULES = Path(__file__).parents[3] / "deploy" / "alerts" / "fracgpu.rules.yaml"
RECORDED = tuple(
    rule["record"]
    for group in read_yaml(RULES.read_text())["groups"]
    for rule in group["rules"]
    if "record" in rule and "xid" not in rule["record"]  # which cards without errors lack
)


@asynccontextmanager
async def scraped(node: Node, folder: Path, *rule_files: Path) -> AsyncIterator[RealPrometheus]:
    """Run a Prometheus until it has scraped the agent with its pod's use."""
    server = node.service.telemetry if node.service is not None else None
    assert isinstance(server, HttpServer)
    try:
        async with RealPrometheus.start(
            folder,
            {"deviceplugin": f"127.0.0.1:{server.port}"},
            scrape_interval_s=0.5,
            rule_files=rule_files,
        ) as prometheus:

            async def there() -> bool:
                return bool(await ask(prometheus, "fracgpu_pod_sm_util > 0"))

            await until(there, what="the pod's work is in Prometheus")
            yield prometheus
    except PrometheusFailed as error:
        if "no program" not in str(error):
            raise
        pytest.skip(str(error))


async def ask(prometheus: RealPrometheus, query: str) -> list[dict[str, Any]]:
    answer = await prometheus.get(f"/api/v1/query?query={quote(query)}")
    result: list[dict[str, Any]] = answer["data"]["result"]
    return result


@asynccontextmanager
async def a_busy_node(
    api: ApiServer, kube: KubeClient, folder: Path, dialect: DcgmNaming
) -> AsyncIterator[Node]:
    """A node with cards that measure a profile, one of them busy with a pod, one with an error."""
    config = api.kubeconfig(folder / "kubeconfig")
    async with a_node(kube, config, metrics_dialect=dialect.value) as node:
        document = cards_document(node.cards, family="hopper")
        document["cards"][2]["xids"] = [31, 31]
        write_cards_file(node.cards_file, document)
        pod = await node.run_pod("busy", card=1, mib=4000, notes={BUSY_KEY: "0.8"})
        await node.wait_phase(pod, "Running")
        yield node


@pytest.mark.parametrize("dialect", list(DcgmNaming))
async def test_a_cards_figures_are_recorded_by_one_name_and_unit_in_every_dialect(
    api: ApiServer, kube: KubeClient, tmp_path: Path, dialect: DcgmNaming
) -> None:
    async with (
        a_busy_node(api, kube, tmp_path, dialect) as node,
        scraped(node, tmp_path / "prometheus", RULES) as prometheus,
    ):
        found: dict[str, dict[str, float]] = {}

        async def every_figure_of_every_card() -> bool:
            for record in RECORDED:
                series = await ask(prometheus, record)
                assert all(
                    set(one["metric"]) == {"__name__", "node", "UUID", "gpu", "modelName"}
                    for one in series
                )
                found[record] = {one["metric"]["UUID"]: float(one["value"][1]) for one in series}
            busy = found["card:gpu_busy:percent"].get(node.uuid(1), 0)
            return busy > 0 and all(len(cards) == len(node.cards) for cards in found.values())

        await until(every_figure_of_every_card, what="what is recorded")

    card = {record: cards[node.uuid(1)] for record, cards in found.items()}
    assert 75 <= card["card:gpu_busy:percent"] <= 85
    assert 65 <= card["card:gpu_active:percent"] <= 80
    assert 0.9 <= card["card:gpu_attributed:ratio"] <= 1.1
    assert card["card:gpu_memory_allocated:mib"] == 4000
    shareable = card["card:gpu_memory_shareable:mib"]
    used, free = card["card:gpu_memory_used:mib"], card["card:gpu_memory_free:mib"]
    assert 0 < used <= 4000
    assert used + free == pytest.approx(shareable, rel=0.1)
    assert card["card:gpu_memory_used:ratio"] == pytest.approx(used / (used + free))
    assert 30 <= card["card:gpu_temperature:celsius"] <= 90
    assert 60 <= card["card:gpu_power:watts"] <= 400
    assert card["card:gpu_row_remap_failed:max"] == 0
