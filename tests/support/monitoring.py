"""A real Prometheus of a real cluster, where ``deploy/`` expects it, with the job of our page.

Debian builds Prometheus without discovery in Kubernetes, so a task stands in for that alone: it
writes the pods' ports to a file, with the labels that the real one gives them.
"""

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from process.clock import SystemClock
from simulator.background import background
from simulator.envtest.prometheus import RealPrometheus, Web
from tests.support.documented import documented_file
from tests.support.promtool import RULES
from tests.support.real_cluster import ADDRESS, RealCluster

Json = dict[str, Any]

_PAGE: Final = "docs/prometheus.md"
_NAMESPACE: Final = "monitoring"
_SERVICE: Final = "prometheus-operated"
_PORT: Final = 9090
# Three scrapes fit into the shortest window of our rules and queries, and a test has no time.
_INTERVAL_S: Final = 5.0
_LOOK_S: Final = 1.0


@asynccontextmanager
async def a_prometheus(cluster: RealCluster) -> AsyncIterator[RealPrometheus]:
    """Run Prometheus on the node; pods reach it by its Service."""
    found = cluster.root / "targets.json"
    (job,) = scrape_jobs()
    async with RealPrometheus.start(
        cluster.root / "prometheus",
        {},
        scrape_interval_s=_INTERVAL_S,
        scrape_configs=[with_targets_of(job, found)],
        rule_files=[RULES],
        web=Web(host="0.0.0.0"),  # noqa: S104 - in a network of the test's own
    ) as prometheus:
        objects = _service(urlsplit(prometheus.url).port or 0)
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        await cluster.kubectl("apply", "-f", "-", stdin=listed)
        (sought,) = job["kubernetes_sd_configs"]
        assert sought["role"] == "pod"
        (namespace,) = sought["namespaces"]["names"]
        async with background(_discover(cluster, namespace, found)):
            yield prometheus


def scrape_jobs() -> list[Json]:
    """Return the scrape jobs of the page on Prometheus."""
    written = yaml.safe_load(documented_file(_PAGE, "prometheus.yml"))
    assert [Path(file).name for file in written["rule_files"]] == [RULES.name]
    jobs: list[Json] = written["scrape_configs"]
    return jobs


def with_targets_of(job: Json, file: Path) -> Json:
    """Return *job* with the targets of *file* in place of those that Kubernetes would list.

    Its interval is left out as well: a test has no time.
    """
    left_out = ("kubernetes_sd_configs", "scrape_interval")
    kept = {key: value for key, value in job.items() if key not in left_out}
    return {**kept, "file_sd_configs": [{"files": [str(file)]}]}


async def _discover(cluster: RealCluster, namespace: str, file: Path) -> None:
    """Keep *file* up to date with the ports of the pods of *namespace*."""
    last = ""
    while True:
        fresh = json.dumps(list(_targets(await cluster.pods(namespace))))
        if fresh != last:
            written = file.with_suffix(".new")
            written.write_text(fresh)
            written.rename(file)
            last = fresh
        await SystemClock().sleep(_LOOK_S)


def _targets(pods: Iterable[Json]) -> Iterable[Json]:
    """Return one target for each port that a container declares, as the role ``pod`` does.

    https://prometheus.io/docs/prometheus/latest/configuration/configuration/#pod
    """
    for pod in pods:
        address = pod.get("status", {}).get("podIP")
        for container in pod["spec"]["containers"] if address else ():
            for port in container.get("ports", ()):
                labels = {
                    "container_name": container["name"],
                    "container_port_name": port["name"],
                    "node_name": pod["spec"]["nodeName"],
                }
                yield {
                    "targets": [f"{address}:{port['containerPort']}"],
                    "labels": {
                        f"__meta_kubernetes_pod_{label}": text for label, text in labels.items()
                    },
                }


def _service(port: int) -> list[Json]:
    """Return the Service, and that it leads to the node's own Prometheus."""
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": _SERVICE, "namespace": _NAMESPACE},
            "spec": {"ports": [{"name": "web", "port": _PORT}]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"{_SERVICE}-node",
                "namespace": _NAMESPACE,
                "labels": {"kubernetes.io/service-name": _SERVICE},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": [ADDRESS], "conditions": {"ready": True}}],
            "ports": [{"name": "web", "port": port, "protocol": "TCP"}],
        },
    ]
