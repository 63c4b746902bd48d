"""Settings of the webhook."""

from dataclasses import dataclass
from typing import Final

from fracgpu.names import SCHEDULER_NAME, SYSTEM_NAMESPACE
from process.settings import ProcessSettings, setting
from process.sockets import ANY_ADDRESS

_AGENT: Final = f"system:serviceaccount:{SYSTEM_NAMESPACE}:fracgpu-deviceplugin"
_REBALANCER: Final = f"system:serviceaccount:{SYSTEM_NAMESPACE}:fracgpu-rebalancer"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings(ProcessSettings):
    """Settings of ``fracgpu run webhook``."""

    # The API server comes from outside the pod.
    listen_host: str = setting(
        ANY_ADDRESS, "address of the HTTPS server; :: means every address of IPv4 and IPv6"
    )
    listen_port: int = setting(
        8443, "port of the HTTPS server; 0 takes a free one", low=0, high=65535
    )
    body_limit_mib: int = setting(3, "largest AdmissionReview that is read, in MiB", low=1, high=64)
    body_timeout_s: float = setting(
        5.0,
        "longest that a body may take to arrive; kube-apiserver waits no longer",
        low=0.1,
        high=30,
    )
    connection_limit: int = setting(
        200, "most connections at once, about 0.5 MiB each", low=2, high=2000
    )
    client_ca_file: str = setting(
        "",
        "PEM file of the authority whose client certificates are asked for; empty asks for none",
    )
    client_names: tuple[str, ...] = setting(
        (), "common names of client certificates that are let in; empty lets in every one"
    )
    namespace: str = setting(
        SYSTEM_NAMESPACE, "namespace of the certificate's Secret and of the ConfigMap"
    )
    tls_secret: str = setting("fracgpu-webhook-tls", "Secret with tls.crt and tls.key")
    service: str = setting(
        "fracgpu-webhook",
        "Service by which the API server calls, for which the certificate must be good; empty: "
        "names are not compared",
    )
    scheduler_name: str = setting(
        SCHEDULER_NAME,
        "scheduler that asks our extender; empty leaves a pod's own; the ConfigMap comes first",
    )
    agent_users: tuple[str, ...] = setting(
        (_AGENT,), "users that may write fracgpu.io/wired on pods: the node agent"
    )
    rebalancer_users: tuple[str, ...] = setting(
        (_REBALANCER,),
        "users that may write fracgpu.io/moved-by and fracgpu.io/move-notice: the rebalancer",
    )

    def __post_init__(self) -> None:
        if self.client_names and not self.client_ca_file:
            raise ValueError(
                f"client_names is {', '.join(self.client_names)} without client_ca_file, so no "
                "certificate is asked for and every client would be refused; want both, or neither"
            )
