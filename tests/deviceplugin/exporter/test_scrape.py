"""A real Prometheus scrapes the real agent: its series, and the queries of dashboards."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from deviceplugin.exporter.families import DcgmNaming
from fracgpu.disruption.policy import RebalancerPolicy
from kube.client import KubeClient
from process.telemetry import HttpServer
from rebalancer.usage import promql
from simulator.apiserver.server import ApiServer
from simulator.cards.simulated_cards import cards_document, write_cards_file
from simulator.envtest.prometheus import PrometheusFailed, RealPrometheus
from simulator.kubelet.pod_worker import BUSY_KEY
from tests.deviceplugin.exporter.test_families import XIDS_TOTAL, expected
from tests.support.node import Node, a_node
from tests.support.waiting import until
from tests.support.yaml_files import read_yaml

# The eight panels of NVIDIA's dashboard 12239 ask for these, with $instance and $gpu as regular
# expressions; its two variables are filled from the values of a label of DCGM_FI_DEV_GPU_TEMP.
_CHOSEN = 'instance=~".*", gpu=~".*"'
NVIDIA_12239 = (
    f"DCGM_FI_DEV_GPU_TEMP{{{_CHOSEN}}}",
    f"avg(DCGM_FI_DEV_GPU_TEMP{{{_CHOSEN}}})",
    f"DCGM_FI_DEV_POWER_USAGE{{{_CHOSEN}}}",
    f"sum(DCGM_FI_DEV_POWER_USAGE{{{_CHOSEN}}})",
    f"DCGM_FI_DEV_SM_CLOCK{{{_CHOSEN}}} * 1000000",
    f"DCGM_FI_DEV_GPU_UTIL{{{_CHOSEN}}}",
    f"DCGM_FI_DEV_FB_USED{{{_CHOSEN}}}",
    f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{_CHOSEN}}}",
)
# What our own panels and alerts ask of the exporter, in any dialect.
OURS = (
    promql.BUSY,
    promql.AGE,
    promql.COLLECT_AGE,
    promql.FREE_MIB,
    promql.pod_mean(RebalancerPolicy()),
    "fracgpu_pod_sm_util",
    "fracgpu_pod_gpu_memory_used_mib / fracgpu_pod_gpu_memory_limit_mib",
    "fracgpu_card_memory_allocated_mib / fracgpu_card_memory_shareable_mib",
    "sum by (UUID) (fracgpu_unattributed_memory_mib)",
    "sum by (UUID) (fracgpu_unattributed_processes)",
    f"sum by (UUID) (fracgpu_pod_sm_util) / on (UUID) ({promql.BUSY} > 0)",
    "fracgpu_deviceplugin_attribution_degraded",
    "fracgpu_card_healthy",
    "time() - fracgpu_collect_timestamp_seconds",
    "fracgpu_deviceplugin_collect_age_seconds",
    "fracgpu_last_collect_success == 1",
)
OURS_CLASSIC = (
    "100 * DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)",
    "sum without (pod, namespace, container, pod_uid) (fracgpu_pod_card_info)"
    ' * on (UUID) group_left (modelName) DCGM_FI_DEV_GPU_TEMP{pod=""}',
    "DCGM_FI_DEV_XID_ERRORS",
)
RULES = Path(__file__).parents[3] / "deploy" / "alerts" / "fracgpu.rules.yaml"
RECORDED = tuple(
    rule["record"]
    for group in read_yaml(RULES.read_text())["groups"]
    for rule in group["rules"]
    if "record" in rule
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
async def test_prometheus_knows_every_family_with_its_type_and_unit_and_answers_dashboards(
    api: ApiServer, kube: KubeClient, tmp_path: Path, dialect: DcgmNaming
) -> None:
    async with (
        a_busy_node(api, kube, tmp_path, dialect) as node,
        scraped(node, tmp_path / "prometheus") as prometheus,
    ):
        classic = dialect is not DcgmNaming.DCGM_4_9
        host = "Hostname" if dialect is DcgmNaming.CLASSIC else "hostname"
        of_pods = 'count by (pod) ({__name__=~"DCGM_FI_.*"})'
        of_hosts = f'count by ({host}, node) ({{__name__=~"DCGM_.*"}})'
        dashboards = NVIDIA_12239 + OURS_CLASSIC if classic else ()
        questions = (*OURS, *dashboards, of_pods, of_hosts)
        answers: dict[str, list[dict[str, Any]]] = {}

        async def all_are_answered() -> bool:
            for query in questions:
                answers[query] = await ask(prometheus, query) or answers.get(query, [])
            return all(answers.values())

        with suppress(AssertionError):  # which ones are not is said below
            await until(all_are_answered, what="every panel has data")
        metadata = (await prometheus.get("/api/v1/metadata"))["data"]
        families = await prometheus.get("/api/v1/label/__name__/values")
        series = {name for name in families["data"] if name.startswith("DCGM_")}

    by_pod, hosts, busy = answers[of_pods], answers[of_hosts], answers[promql.BUSY]
    rows = [*expected(dialect), (XIDS_TOTAL, "counter", "", 0.0)]
    assert series == {name for name, *_ in rows}
    for name, kind, unit, _ in rows:
        ((known,),) = [metadata[name]]
        assert known["type"] == kind, name
        assert known["help"].endswith(f" ({unit})." if unit else "."), name
    assert [query for query, result in answers.items() if not result] == []
    # Card lines keep their empty pod: the scrape puts nobody else's in.
    assert {series["metric"].get("pod", "") for series in by_pod} == {"", "busy"}
    assert [series["metric"] for series in hosts] == [{host: node.name, "node": node.name}]
    # Each card counts once in what the rebalancer asks.
    found = {series["metric"]["UUID"]: float(series["value"][1]) for series in busy}
    assert set(found) == {card.uuid for card in node.cards}
    assert found[node.uuid(0)] == 0
    assert 75 <= found[node.uuid(1)] <= 85, json.dumps(found)


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
