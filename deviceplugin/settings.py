"""The settings of the node agent."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deviceplugin.exporter.families import DIALECTS, DcgmNaming
from fracgpu.names import SYSTEM_NAMESPACE
from process.settings import REQUIRED, ProcessSettings, setting

# The most calls of NVML that one pass over the cards waits for, each up to its time limit.
_CALLS_IN_A_ROUND: Final = 12
AUTO: Final = "auto"
AGENT: Final = "agent"
MPS: Final = "mps"


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePluginSettings(ProcessSettings):
    """Flags ``--node-name``, ...; variables ``FRACGPU_DEVICEPLUGIN_NODE_NAME``, ..."""

    node_name: str = setting(REQUIRED, "the node this agent runs on, as the API server names it")
    namespace: str = setting(SYSTEM_NAMESPACE, "where the ConfigMap with the pool catalogue is")
    read_pods_as_node: bool = setting(
        False, "read pods as the node itself, which may read its own alone; Kubernetes 1.36"
    )
    cards: str = setting(
        AUTO, "whose cards: auto (all that the node has), nvml, amd, or simulated:FILE"
    )
    nvml_timeout_s: float = setting(
        5.0,
        "longest wait for one call of NVML, or for the files of one AMD card; a card may take "
        "twice that",
        low=0.1,
        high=60,
    )
    sys_root: Path = setting(Path("/sys"), "the host's /sys, to find the cards")
    telemetry_port: int = setting(
        9400, "port of /metrics, /livez, /readyz; 0 takes a free one", low=0, high=65535
    )
    device_plugins_dir: Path = setting(
        Path("/var/lib/kubelet/device-plugins"), "folder with kubelet's registration socket"
    )
    plugins_dir: Path = setting(
        Path("/var/lib/kubelet/plugins"), "kubelet's folder of plugins, with the wiring by claims"
    )
    plugins_registry_dir: Path = setting(
        Path("/var/lib/kubelet/plugins_registry"),
        "the folder in which kubelet looks for plugins, with the wiring by claims",
    )
    pod_resources_socket: Path = setting(
        Path("/var/lib/kubelet/pod-resources/kubelet.sock"), "kubelet's PodResources socket"
    )
    cdi_dir: Path = setting(Path("/var/run/cdi"), "folder where the runtime looks for CDI specs")
    vendor_cdi_dirs: tuple[str, ...] = setting(
        ("/etc/cdi", "/var/run/cdi"), "folders with the CDI spec that nvidia-ctk generates"
    )
    injection: str = setting(
        "auto",
        "whether the runtime reads CDI specs: ask it, or cdi if it does and cannot say so",
        choices=("auto", "cdi"),
    )
    nri_socket: Path = setting(
        Path("/var/run/nri/nri.sock"),
        "the runtime's NRI socket, by which it says whose container starts",
    )
    cri_socket: Path = setting(
        Path("/run/containerd/containerd.sock"),
        "the runtime's CRI socket, to ask whether it reads CDI specs",
    )
    runtime_period_s: float = setting(
        30.0, "time between two checks whether the runtime reads CDI specs", low=0.2, high=3600
    )
    host_dir: Path = setting(
        Path("/var/lib/fracgpu"),
        "our folder on the host, under the same path: the hook for runtimes without NRI",
    )
    mode: str = setting(
        AGENT,
        "the node's agent, or mps: run an MPS daemon for each card, in a pod of its own",
        choices=(AGENT, MPS),
    )
    limits: str = setting(
        "none",  # until a card with such a driver, or a kernel with dmem, has shown that it works
        "limit the memory of each container on its cards by the driver or the kernel: auto where "
        "they can, which needs NRI; or none",
        choices=(AUTO, "none"),
    )
    cgroup_root: Path = setting(
        Path("/sys/fs/cgroup"), "the host's cgroups, version 2, to limit containers"
    )
    mps_dir: Path = setting(
        Path("/run/fracgpu/mps"), "folder for MPS pipes and logs, the same on the host"
    )
    mps_program: str = setting("nvidia-cuda-mps-control", "the MPS control daemon's program")
    proc_root: Path = setting(Path("/proc"), "the host's /proc, to find the pod of a process")
    dev_root: Path = setting(Path("/dev"), "the host's /dev, to find the device files")
    slots_per_card: int = setting(
        32, "most containers that share one card at a time", low=1, high=1024
    )
    headroom_mib: int = setting(
        0,
        "MiB of each card that are never shared; with MPS on the node 128 for its servers",
        low=0,
        high=1024 * 1024,
    )
    survey_period_s: float = setting(
        10.0, "time between two listings of the cards", low=0.2, high=600
    )
    collect_period_s: float = setting(
        5.0, "time between two readings of the cards' metrics", low=0.2, high=300
    )
    load_average_s: float = setting(
        300.0, "time over which the heat on the node object is averaged", low=0.2, high=3600
    )
    load_report_s: float = setting(
        60.0,
        "shortest time between two reports of heat and foreign memory on the node object; a sixth "
        "of it for what gets worse",
        low=0.2,
        high=3600,
    )
    metrics_dialect: str = setting(
        DcgmNaming.CLASSIC.value,
        "names of NVIDIA's metrics: as in dcgm-exporter up to 4.8.2, 4.8.3, or 4.9",
        choices=DIALECTS,
    )
    health_hold_s: float = setting(
        600.0, "how long an XID or memory error keeps its card unhealthy", low=1, high=86_400
    )
    audit_period_s: float = setting(
        60.0,
        "time between two comparisons of assignment, kubelet, device files and processes",
        low=0.2,
        high=3600,
    )
    kubelet_poll_s: float = setting(
        1.0, "time between two checks of kubelet's socket", low=0.1, high=60
    )
    pod_resources_timeout_s: float = setting(
        5.0, "longest wait for kubelet's PodResources answer", low=0.1, high=20
    )

    @property
    def reads_pods_as(self) -> str:
        """The user that pods are read as; empty for the agent's own account."""
        return f"system:node:{self.node_name}" if self.read_pods_as_node else ""

    def standstill_s(self, *, period_s: float) -> float:
        """Return after how many seconds a loop over the cards, or the driver, counts as stuck.

        It is longer than the three passes after which the cards are reported unhealthy.

        Args:
            period_s: between two passes of the loop.
        """
        return _CALLS_IN_A_ROUND * self.nvml_timeout_s + 3 * period_s
