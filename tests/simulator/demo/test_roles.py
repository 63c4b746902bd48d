"""The demo starts the roles with flags that they accept."""

import importlib
from pathlib import Path

import pytest

from cli.commands.run import ROLES
from component.wiring import Wiring
from process.settings import load
from simulator.demo.roles import (
    NodePaths,
    RoleProcess,
    choose_addresses,
    plugin_name,
    process_spec,
    role_processes,
)
from simulator.demo.supervisor import ProcessSpec
from simulator.kubelet.kubelet import KubeletFolders

NODES = ("gpu-node-1", "gpu-node-2")
ADDRESSES = choose_addresses(NODES)
PLACES = {
    node: NodePaths(folders=KubeletFolders.under(Path("/t") / node), cards_file=Path("/t/cards"))
    for node in NODES
}
PROCESSES = role_processes(ADDRESSES, PLACES, prometheus_url="http://127.0.0.1:9090", times={})
BY_CLAIMS = role_processes(
    ADDRESSES,
    PLACES,
    prometheus_url="http://127.0.0.1:9090",
    times={},
    wiring=Wiring.CLAIMS,
)


def spec_of(process: RoleProcess) -> ProcessSpec:
    return process_spec(
        process,
        telemetry_port=ADDRESSES.telemetry[process.name],
        kubeconfig=Path("/t/kubeconfig"),
    )


def test_every_role_is_there_and_one_agent_for_each_node() -> None:
    assert [process.name for process in PROCESSES] == [
        "certs",
        "webhook",
        "scheduler",
        "rebalancer",
        *map(plugin_name, NODES),
    ]
    assert {process.role for process in PROCESSES} == set(ROLES)


def test_with_the_wiring_by_claims_nothing_serves_an_extender() -> None:
    assert [process.name for process in BY_CLAIMS] == [process.name for process in PROCESSES]
    assert not {"--listen-port", "--tls-secret"} & set(BY_CLAIMS[2].flags)


@pytest.mark.parametrize("process", [*PROCESSES, BY_CLAIMS[2]], ids=lambda process: process.name)
def test_a_role_accepts_its_flags_and_serves_where_prometheus_looks(process: RoleProcess) -> None:
    spec = spec_of(process)
    words = list(spec.argv)
    flags = words[next(n for n, word in enumerate(words) if word.startswith("--")) :]
    settings = vars(importlib.import_module(f"{process.role}.settings"))[
        ROLES[process.role].settings
    ]

    loaded = load(settings, flags, spec.env, program=process.role)

    assert ADDRESSES.scrape_targets()[spec.name] == f"127.0.0.1:{loaded.telemetry_port}"
    assert loaded.kubeconfig == "/t/kubeconfig"


def test_a_role_does_not_inherit_settings_from_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRACGPU_WEBHOOK_LISTEN_PORT", "1")

    assert "FRACGPU_WEBHOOK_LISTEN_PORT" not in spec_of(PROCESSES[1]).env


def test_the_page_has_a_port_of_its_own_which_is_printed_at_the_end() -> None:
    (scheduler,) = (process for process in PROCESSES if process.role == "scheduler")
    flags = list(scheduler.flags)

    assert flags[flags.index("--page-port") + 1] == str(ADDRESSES.page)
    assert ADDRESSES.page not in (ADDRESSES.extender, ADDRESSES.webhook)
