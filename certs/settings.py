"""Settings of the certs role."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from process.settings import ProcessSettings, setting

_LABEL: Final = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_DNS_NAME: Final = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CertsSettings(ProcessSettings):
    """Settings of ``fracgpu run certs``; lives are seconds from issue to expiry."""

    namespace: str = setting("fracgpu-system", "where the Services and Secrets are")
    ca_secret: str = setting("fracgpu-ca", "Secret of the certificate authority and its key")
    mode: str = setting(
        "own",
        "who makes the certificates: this role, or cert-manager; then it only injects the bundle; "
        "node: write those of kube-scheduler into a folder of this control-plane node",
        choices=("own", "cert-manager", "node"),
    )
    services: tuple[str, ...] = setting(
        ("fracgpu-webhook", "fracgpu-scheduler"),
        "Services that get a serving certificate, each in a Secret called SERVICE-tls",
    )
    clients: tuple[str, ...] = setting(
        ("fracgpu-scheduler",),
        "callers that get a client certificate, each in a Secret called CALLER-client",
    )
    extra_names: tuple[str, ...] = setting(
        ("localhost", "127.0.0.1"),
        "further DNS names and IP addresses that every serving certificate is good for",
    )
    cluster_domain: str = setting("cluster.local", "DNS domain of the cluster")
    webhook_configurations: tuple[str, ...] = setting(
        ("fracgpu-webhook",), "mutating and validating webhook configurations to give the CA bundle"
    )
    webhook_service: str = setting(
        "fracgpu-webhook", "Service of the webhook; cert-manager's bundle is in its Secret"
    )
    restarted_deployments: tuple[str, ...] = setting(
        (),
        "Deployments that mount a CA bundle and read it only when they start: "
        "restarted before a new authority signs",
    )
    restarted_daemonsets: tuple[str, ...] = setting(
        (),
        "DaemonSets of this role in mode node, whose kube-schedulers read a CA bundle only when "
        "they start: replaced before a new authority signs",
    )
    node_folder: str = setting(
        "/etc/fracgpu/kube-scheduler",
        "mode node: folder of the node; kube-scheduler sees it at the same path",
    )
    node_configuration: str = setting(
        "/etc/fracgpu-configuration/config.yaml",
        "mode node: the KubeSchedulerConfiguration to write there",
    )
    node_service: str = setting(
        "fracgpu-scheduler-leader", "mode node: Service whose address goes into the configuration"
    )
    node_proc: str = setting("/proc", "mode node: where the processes of the node are")
    ca_life_s: float = setting(365 * 86_400.0, "life of the authority", low=6)
    serving_life_s: float = setting(30 * 86_400.0, "life of a serving or client certificate", low=3)
    overlap_s: float = setting(
        60.0, "how long a new authority is trusted everywhere before it signs", low=0
    )
    retire_after_s: float = setting(
        3600.0,
        "how long, at least, an authority is trusted after its successor has signed everything",
        low=0,
    )
    telemetry_port: int = setting(
        9405, "port of /metrics, /livez, /readyz; 0 takes a free one", low=0, high=65535
    )

    def __post_init__(self) -> None:
        """Raise ValueError for invalid names, and for lives too short for the overlap."""
        for text in (*self.services, *self.clients, *self.extra_names):
            if not is_name(text):
                raise ValueError(f"{text!r} is not a valid name; want a DNS name or an IP address")
        if self.serving_life_s > self.ca_life_s:
            raise ValueError(
                f"--serving-life-s is {self.serving_life_s}; want at most --ca-life-s, "
                f"{self.ca_life_s}"
            )
        # A certificate is renewed with a third of its life left, which must exceed the overlap.
        if self.overlap_s >= self.serving_life_s / 3:
            raise ValueError(
                f"--overlap-s is {self.overlap_s}; want less than a third of --serving-life-s, "
                f"{self.serving_life_s}"
            )


def is_name(text: str) -> bool:
    """Report whether *text* is a DNS name (a leading ``*.`` is allowed) or an IP address."""
    return _address(text) is not None or bool(_DNS_NAME.fullmatch(text))


def normal_name(text: str) -> str:
    """Return a name as certificates have it: lower case, and addresses in canonical form."""
    return _address(text) or text.lower()


def _address(text: str) -> str | None:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None
