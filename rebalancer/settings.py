"""Settings of the rebalancer; its policy is in the ConfigMap."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from fracgpu import names
from process.settings import REQUIRED, ProcessSettings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalancerSettings(ProcessSettings):
    """Flags ``--prometheus-url`` and so on, or ``FRACGPU_REBALANCER_...``."""

    prometheus_url: str = setting(
        REQUIRED, "where Prometheus answers, e.g. http://prometheus.monitoring:9090/prefix"
    )
    prometheus_credentials_dir: Path | None = setting(
        None,
        "a mounted Secret for Prometheus: token, or username and password; headers; ca.crt; "
        "tls.crt and tls.key; read anew for each query",
    )
    prometheus_token_file: Path | None = setting(
        None, "file with a bearer token for Prometheus, read anew for each query"
    )
    prometheus_ca_file: Path | None = setting(
        None, "CA certificates that Prometheus' own must be signed by, read anew for each query"
    )
    prometheus_server_name: str = setting(
        "", "the name that Prometheus' certificate must have; default: the host in the URL"
    )
    query_timeout_s: float = setting(5.0, "longest wait for one query's answer", low=0.1, high=60)
    answer_limit_mib: int = setting(64, "largest answer that is read", low=1, high=1024)
    namespace: str = setting(
        names.SYSTEM_NAMESPACE, "where the ConfigMaps and the Lease of the rebalancer live"
    )
    lease_duration_s: int = setting(
        15,
        "how long others wait once the leader is silent; it stops by itself after two thirds",
        low=3,
        high=120,
    )
    identity: str | None = setting(
        None, "this replica's name among several; default: the host's name, in a pod the pod's"
    )
    scheduler_name: str = setting(
        names.SCHEDULER_NAME, "the scheduler whose pods may be moved: it knows cards and cordons"
    )
    telemetry_port: int = setting(
        9404, "port of /metrics, /livez, /readyz; 0 takes a free one", low=0, high=65535
    )

    def __post_init__(self) -> None:
        mistake = _url_mistake(self.prometheus_url)
        if mistake:
            raise ValueError(f"--prometheus-url {mistake}")


def _url_mistake(url: str) -> str:
    """Return what is wrong with the address of Prometheus; never its password."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # a port out of range raises here
    except ValueError as error:
        return f"cannot be read: {error}"
    if parts.username is not None or parts.password is not None:
        return "has credentials; want them in files, see --prometheus-credentials-dir"
    if parts.scheme not in ("http", "https") or not host:
        return f"is {url!r}; want http://... or https://..."
    if parts.query or parts.fragment:
        return f"is {url!r}; want it without what begins with '?' or '#'"
    return ""
