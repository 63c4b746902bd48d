"""How the demo starts the roles: the same command as in a pod, with addresses on loopback.

The rebalancer alone starts by `simulator.demo.rebalancer`, which has shorter times.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from component.wiring import Wiring
from simulator.demo.client_certificate import SERVING_SECRET
from simulator.demo.rebalancer import command as rebalancing
from simulator.demo.supervisor import ProcessSpec, clean_environment
from simulator.envtest.ports import free_ports
from simulator.kubelet.kubelet import KubeletFolders


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Loopback ports of the roles' servers."""

    webhook: int
    extender: int
    page: int
    telemetry: dict[str, int]

    def scrape_targets(self) -> dict[str, str]:
        """Return host:port of each role's /metrics."""
        return {name: f"127.0.0.1:{port}" for name, port in self.telemetry.items()}


def choose_addresses(nodes: Sequence[str]) -> Addresses:
    """Return a free port for each server of each role."""
    names = ["webhook", "scheduler", "certs", "rebalancer"]
    names += [plugin_name(node) for node in nodes]
    ports = free_ports(len(names) + 3)
    return Addresses(
        webhook=ports[0],
        extender=ports[1],
        page=ports[2],
        telemetry=dict(zip(names, ports[3:], strict=True)),
    )


def plugin_name(node: str) -> str:
    """Return the name of one node's device plugin process."""
    return f"deviceplugin-{node}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePaths:
    """The paths by which one node's agent finds kubelet, the runtime and its cards."""

    folders: KubeletFolders
    cards_file: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleProcess:
    """One process to start: which role, on which node if it is an agent, and its own flags.

    Attributes:
        command: what starts it; by default as in a pod.
    """

    name: str
    role: str
    flags: Sequence[str]
    node: str | None = None
    command: Sequence[str] = ()


def role_processes(
    addresses: Addresses,
    nodes: Mapping[str, NodePaths],
    *,
    prometheus_url: str,
    times: Mapping[str, Any],
    wiring: Wiring = Wiring.DEVICE_PLUGIN,
) -> tuple[RoleProcess, ...]:
    """Return every process of the demo; *times* are those of the rebalancer.

    With the wiring by claims there is no extender.
    """
    webhook = ("--listen-host", "127.0.0.1", "--listen-port", str(addresses.webhook))
    by_claims = wiring is Wiring.CLAIMS
    # As deployed: kube-scheduler and the extender speak mutual TLS, and filter names one node.
    extender = ("--listen-port", str(addresses.extender), "--tls-secret", SERVING_SECRET)
    scheduler = (
        *("--identity", "fracgpu-scheduler-0", "--page-port", str(addresses.page)),
        *(() if by_claims else (*extender, "--narrow-filter")),
    )
    rebalancer = RoleProcess(
        name="rebalancer",
        role="rebalancer",
        flags=("--prometheus-url", prometheus_url, "--identity", "fracgpu-rebalancer-0"),
        command=rebalancing(times),
    )
    return (
        RoleProcess(name="certs", role="certs", flags=("--extra-names", "127.0.0.1")),
        RoleProcess(name="webhook", role="webhook", flags=webhook),
        RoleProcess(name="scheduler", role="scheduler", flags=scheduler),
        rebalancer,
        *(
            RoleProcess(
                name=plugin_name(node), role="deviceplugin", flags=_plugin(node, place), node=node
            )
            for node, place in nodes.items()
        ),
    )


def process_spec(process: RoleProcess, *, telemetry_port: int, kubeconfig: Path) -> ProcessSpec:
    """Return the command line of one process."""
    command = process.command or (sys.executable, "-m", "cli", "run", process.role)
    return ProcessSpec(
        name=process.name,
        argv=(
            *command,
            *process.flags,
            *("--kubeconfig", str(kubeconfig), "--telemetry-host", "127.0.0.1"),
            *("--telemetry-port", str(telemetry_port)),
            *("--drain-wait-s", "0", "--drain-timeout-s", "1"),
        ),
        env=clean_environment(),
    )


def _plugin(node: str, place: NodePaths) -> Sequence[str]:
    folders = place.folders
    return (
        *("--node-name", node, "--cards", f"simulated:{place.cards_file}"),
        *("--device-plugins-dir", str(folders.device_plugins)),
        *("--plugins-dir", str(folders.plugins)),
        *("--plugins-registry-dir", str(folders.plugins_registry)),
        *("--pod-resources-socket", str(folders.pod_resources_socket)),
        *("--cdi-dir", str(folders.cdi), "--proc-root", str(folders.proc)),
        # This machine's own runtime is not checked: the simulated one supports CDI.
        *("--injection", "cdi", "--vendor-cdi-dirs", str(folders.cdi)),
        *("--nri-socket", str(folders.nri_socket), "--host-dir", str(folders.host)),
        *("--limits", "auto", "--cgroup-root", str(folders.cgroup)),
        *("--survey-period-s", "2", "--collect-period-s", "1", "--kubelet-poll-s", "0.5"),
        # A demo of two minutes cannot wait for an average over five minutes.
        *("--load-average-s", "10", "--load-report-s", "6"),
    )
