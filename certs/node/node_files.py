"""Keeps the files on a control-plane node with which its kube-scheduler calls the extender.

A static pod can mount neither a Secret nor a ConfigMap and resolves no Service names. So its client
certificate, the CA bundle and its configuration, with the Service's address in it, are written
into a folder of the node. kube-scheduler reloads a new certificate by itself, but reads the bundle
and the configuration only when it starts: it is terminated, and kubelet starts it again. That
happens only when this process starts; the DaemonSet replaces its pods one at a time, so one
kube-scheduler is always running.
"""

import asyncio
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import structlog

from certs.authority import AuthorityError, read
from certs.metrics import CertsMetrics
from certs.node.files import digest, read_note, replace_files, write_note
from certs.node.static_pod import KubeSchedulerProcesses, Process
from certs.store import CertStore
from certs.work_loop import LOOK_AT_LEAST_EVERY, WorkLoop
from kube.client import KubeClient
from kube.errors import NotFound
from kube.kinds import SERVICES
from process.clock import Clock
from process.tls import CA_KEY, CERT_KEY, PRIVATE_KEY_KEY

log = structlog.get_logger()

CONFIGURATION: Final = "config.yaml"
_READ_AT_START: Final = (CA_KEY, CONFIGURATION)
_NOTE: Final = "started-with"
_SOON: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredNodeFiles:
    """The desired files on the node.

    Attributes:
        folder: a folder of the node; the files are in its ``current``.
        secret: the Secret with the client certificate.
        service: the Service whose name in the configuration is replaced by its address.
        configuration: the KubeSchedulerConfiguration to write.
    """

    folder: Path
    secret: str
    service: str
    configuration: Path


class NotYet(Exception):  # noqa: N818 - an answer
    """An object that another component creates does not exist yet; ``str()`` says which."""


def with_address(text: str, *, service: str, namespace: str, address: str) -> str:
    """Return *text* with the Service's name replaced by *address* in its URLs.

    Raises:
        ValueError: no URL has the Service as its host.
    """
    host = f"https://{service}.{namespace}.svc:"
    if host not in text:
        raise ValueError(f"the configuration has no urlPrefix that begins with {host}")
    literal = f"[{address}]" if ipaddress.ip_address(address).version > 4 else address  # noqa: PLR2004 - IPv4
    return text.replace(host, f"https://{literal}:")


class NodeFiles(WorkLoop):
    """Writes the files, and restarts kube-scheduler when it must read them again."""

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        *,
        namespace: str,
        wanted: DesiredNodeFiles,
        kube_scheduler: KubeSchedulerProcesses,
        metrics: CertsMetrics,
    ) -> None:
        super().__init__(clock, metrics)
        self._client = client
        self._namespace = namespace
        self._store = CertStore(client, namespace=namespace)
        self._wanted = wanted
        self._kube_scheduler = kube_scheduler
        self._ended: frozenset[Process] | None = None
        self._started_anew = False

    async def _go_round(self, now: datetime) -> timedelta:
        del now  # the API server has the newest state
        try:
            files = await self._files()
            changed = await asyncio.to_thread(replace_files, self._wanted.folder, files)
            if changed:
                log.info("files_written", folder=str(self._wanted.folder))
            if not self._started_anew:
                await asyncio.to_thread(self._start_anew, files)
                self._started_anew = True
            self._metrics.expires(self._wanted.secret, at=read(files[CERT_KEY]).not_after)
        except (NotYet, ValueError, OSError, AuthorityError) as problem:
            if str(problem) != self.problem:
                log.warning("files_not_ready", reason=str(problem))
            self.problem = str(problem)
            return _SOON
        self.problem = None
        return LOOK_AT_LEAST_EVERY

    async def _files(self) -> Mapping[str, bytes]:
        stored = await self._store.read(self._wanted.secret)
        data = stored.data if stored is not None else {}
        missing = [key for key in (CERT_KEY, PRIVATE_KEY_KEY, CA_KEY) if not data.get(key)]
        if missing:
            raise NotYet(f"Secret {self._wanted.secret} has no {' and no '.join(missing)} yet")
        text = await asyncio.to_thread(self._wanted.configuration.read_text)
        addressed = with_address(
            text,
            service=self._wanted.service,
            namespace=self._namespace,
            address=await self._address(),
        )
        kept = {key: data[key] for key in (CERT_KEY, PRIVATE_KEY_KEY, CA_KEY)}
        return {**kept, CONFIGURATION: addressed.encode()}

    async def _address(self) -> str:
        name = self._wanted.service
        try:
            found: dict[str, Any] = await self._client.get_object(
                SERVICES, name, namespace=self._namespace
            )
        except NotFound:
            raise NotYet(f"there is no Service {name} yet") from None
        address = found["spec"].get("clusterIP") or "None"
        if address == "None":
            raise NotYet(f"Service {name} has no address")
        return str(address)

    def _start_anew(self, files: Mapping[str, bytes]) -> None:
        """Restart kube-scheduler if files that it reads only at its start have changed.

        Raises:
            NotYet: kube-scheduler is still ending or starting.
        """
        wanted = digest({name: files[name] for name in _READ_AT_START})
        if read_note(self._wanted.folder, _NOTE) == wanted:
            return
        if self._ended is None:
            self._ended = self._kube_scheduler.running()
            for process in self._ended:
                log.info("kube_scheduler_restarted", pid=process.pid)
                self._kube_scheduler.end(process)
        running = self._kube_scheduler.running()
        if running & self._ended:
            raise NotYet("kube-scheduler has not terminated yet")
        if self._ended and not running:
            raise NotYet("kube-scheduler has not started again yet")
        write_note(self._wanted.folder, _NOTE, wanted)
