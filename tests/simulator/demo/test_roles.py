"""The demo starts the roles with flags that they accept."""

import importlib
from pathlib import Path

import pytest

from cli.run import ROLES
from process.settings import load
from simulator.demo.roles import Cluster, NodePlace, choose_addresses, plugin_name, role_specs
from simulator.demo.supervisor import ProcessSpec
from simulator.kubelet import KubeletFolders

NODES = ("gpu-node-1", "gpu-node-2")
ADDRESSES = choose_addresses(NODES)
PLACES = {
    node: NodePlace(folders=KubeletFolders.under(Path("/t") / node), cards_file=Path("/t/cards"))
    for node in NODES
}
CLUSTER = Cluster(
    kubeconfig=Path("/t/kubeconfig"), user="someone", prometheus_url="http://127.0.0.1:9090"
)
SPECS = role_specs(ADDRESSES, PLACES, CLUSTER)


def test_every_role_is_there_and_one_agent_for_each_node() -> None:
    assert [spec.name for spec in SPECS] == [
        "certs",
        "webhook",
        "scheduler",
        "rebalancer",
        *map(plugin_name, NODES),
    ]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_role_accepts_its_flags_and_serves_where_prometheus_looks(spec: ProcessSpec) -> None:
    words = list(spec.argv)
    role = words[words.index("run") + 1]
    flags = words[words.index("run") + 2 :]
    settings = vars(importlib.import_module(f"{role}.settings"))[ROLES[role].settings]

    loaded = load(settings, flags, spec.env, program=role)

    assert ADDRESSES.scrape_targets()[spec.name] == f"127.0.0.1:{loaded.telemetry_port}"
    assert loaded.kubeconfig == "/t/kubeconfig"


def test_a_role_does_not_inherit_settings_from_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRACGPU_WEBHOOK_LISTEN_PORT", "1")

    specs = role_specs(ADDRESSES, PLACES, CLUSTER)

    assert not [spec for spec in specs if "FRACGPU_WEBHOOK_LISTEN_PORT" in spec.env]


def test_no_two_servers_share_a_port() -> None:
    ports = [ADDRESSES.webhook, ADDRESSES.extender, *ADDRESSES.telemetry.values()]

    assert len(set(ports)) == len(ports)
