"""Settings of the scheduler extender."""

import ipaddress
from dataclasses import dataclass
from typing import Final

from fracgpu import names
from process.settings import ProcessSettings, setting

_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings(ProcessSettings):
    """Settings of ``fracgpu run scheduler``; what administrators tune is in the ConfigMap."""

    telemetry_port: int = setting(
        9403, "port of /metrics, /livez, /readyz; 0 takes a free one", low=0, high=65535
    )
    listen_host: str = setting(
        "127.0.0.1", "address of the extender; kube-scheduler runs in the same pod"
    )
    tls_secret: str = setting(
        "", "Secret with the certificate and the CA of callers; empty: plain HTTP, loopback only"
    )
    listen_port: int = setting(9404, "port of the extender; 0 takes a free one", low=0, high=65535)
    page_port: int = setting(
        0, "port of the page for people, on loopback only; 0: no page", low=0, high=65535
    )
    body_limit_mib: int = setting(
        64, "largest request; whole nodes are sent where nodeCacheCapable is false", low=1, high=512
    )
    namespace: str = setting(names.SYSTEM_NAMESPACE, "where the ConfigMap and the Lease are")
    config_map: str = setting(names.CONFIG_MAP, "ConfigMap whose key 'placement' is followed")
    lease: str = setting("fracgpu-scheduler-extender", "Lease that elects the one active replica")
    lease_duration_s: int = setting(
        15,
        "how long others wait once the leader is silent; it stops by itself after two thirds",
        low=3,
        high=120,
    )
    identity: str = setting(
        "", "name of this replica, the same after a restart; default: the host's name"
    )
    announce_service: str = setting(
        "",
        "Service without a selector whose EndpointSlice the leader writes, so that it has the "
        "leader alone; empty: none",
    )
    announce_address: str = setting("", "IP address of this replica for that EndpointSlice")
    announce_node: str = setting("", "node of this replica for that EndpointSlice; empty: left out")
    own_pod: str = setting(
        "",
        "this replica's pod: the kube-scheduler in it must fit the API server; empty: not checked",
    )
    stale_cache_timeout_s: float = setting(
        0.05, "longest wait for a lagging watch before a pod is refused again", low=0, high=1
    )
    narrow_filter: bool = setting(
        False,
        "answer filter with the best node alone for a pod that prefers no node itself; only if no "
        "other extender filters after this one",
    )
    bind_timeout_s: float = setting(
        4.0, "longest wait for one Binding; below what a lost lease leaves", low=0.1, high=30
    )
    bind_pause_s: float = setting(
        0.1,
        "Bindings of a burst, more than five within this time, are written in groups this far "
        "apart, which spares the API server much of its work; 0: each at once",
        low=0,
        high=1,
    )
    assumption_timeout_s: float = setting(
        60.0, "how long a placement counts that nothing confirms or denies", low=5, high=3600
    )
    cache_comparison_period_s: float = setting(
        60.0,
        "pause between two comparisons of the cache with a rebuild from scratch",
        low=1,
        high=3600,
    )
    fence_timeout_s: float = setting(
        75.0,
        "longest wait of a new leader for marks on the pending pods; above kube-apiserver's "
        "--request-timeout",
        low=1,
        high=600,
    )
    assumption_check_s: float = setting(
        10.0, "a placement not confirmed after this is looked up", low=1, high=600
    )

    def __post_init__(self) -> None:
        if not self.tls_secret and self.listen_host not in _LOOPBACK:
            raise ValueError(
                f"listen_host is {self.listen_host!r} without tls_secret: whoever reaches it could "
                f"bind pods; want a tls_secret, or one of {', '.join(_LOOPBACK)}"
            )
        if self.announce_service and not _is_address(self.announce_address):
            raise ValueError(
                f"announce_address is {self.announce_address!r}; want this replica's IP address, "
                f"for announce_service is {self.announce_service!r}"
            )
        if self.announce_service and not self.listen_port:
            raise ValueError(
                "listen_port is 0, a free port that cannot be known beforehand; want the port of "
                f"the Service that announce_service names, {self.announce_service!r}"
            )
        if not self.bind_timeout_s < self.lease_duration_s / 3:
            raise ValueError(
                f"bind_timeout_s is {self.bind_timeout_s:g}: a Binding could be written after "
                "another replica has taken over; want less than a third of lease_duration_s, "
                f"{self.lease_duration_s}"
            )
        longest_s = self.bind_pause_s + 2 * self.bind_timeout_s  # the Lease, and the Binding
        if not longest_s < self.assumption_check_s < self.assumption_timeout_s:
            raise ValueError(
                "want bind_pause_s + 2 * bind_timeout_s < assumption_check_s < "
                f"assumption_timeout_s; got {self.bind_pause_s} + 2 * {self.bind_timeout_s}, "
                f"{self.assumption_check_s}, "
                f"{self.assumption_timeout_s}"
            )


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
