"""A real etcd and kube-apiserver on loopback, for the demo and for tests that need one.

The binaries come from a folder such as the one in ``KUBEBUILDER_ASSETS``; nothing is downloaded.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from kube.access import connect_to
from kube.errors import KubeError
from kube.retry import RetryPolicy
from simulator.envtest.lifetime import ends_with_us
from simulator.envtest.ports import free_ports
from simulator.kubeconfig import write_kubeconfig

ASSETS_ENV: Final = "KUBEBUILDER_ASSETS"
ADMIN: Final = "admin"
_LOOPBACK: Final = "127.0.0.1"
_START_LIMIT_S: Final = 90.0  # a cold kube-apiserver on two busy cores needs about 20 s
_STOP_LIMIT_S: Final = 2.0  # kube-apiserver waits for open watches, but its state is in etcd
_POLL_S: Final = 0.2
_ETCD_DATA: Final = "etcd"  # below the folder for state
# Without a controller manager nothing creates the default service accounts or removes the
# not-ready taint of a new node.
_ADMISSION_OFF: Final = ("ServiceAccount", "TaintNodesByCondition")
_log = structlog.get_logger()


class ControlPlaneError(Exception):
    """A binary is missing or did not start; the message names its log."""


def find_assets(value: str | None) -> Path:
    """Return the folder that *value* names, if kube-apiserver and etcd are in it.

    Raises:
        ControlPlaneError: it says what is missing.
    """
    if not value:
        raise ControlPlaneError(
            f"{ASSETS_ENV} is not set; want a folder with kube-apiserver and etcd"
        )
    folder = Path(value)
    missing = [name for name in ("kube-apiserver", "etcd") if not (folder / name).is_file()]
    if missing:
        raise ControlPlaneError(f"{ASSETS_ENV}={value} lacks {' and '.join(missing)}")
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlane:
    """A running control plane; all its processes end with :meth:`start`'s block."""

    url: str
    etcd_url: str
    tokens: Mapping[str, str]
    ca_file: Path
    assets: Path
    workdir: Path
    _processes: AsyncExitStack
    _server: _Process
    _etcd: _Process
    _components: list[_Process] = field(default_factory=list)

    @property
    def pids(self) -> Mapping[str, int]:
        """The process of each running component, by the name of its binary."""
        every = (self._etcd, self._server, *self._components)
        return {one.name: one.pid for one in every if one.pid is not None}

    @property
    def token(self) -> str:
        """The administrator's token."""
        return self.tokens[ADMIN]

    @classmethod
    @asynccontextmanager
    async def start(
        cls,
        assets: Path,
        workdir: Path,
        *,
        flags: Mapping[str, str | None] | None = None,
        users: Mapping[str, str] | None = None,
    ) -> AsyncIterator[ControlPlane]:
        """Start etcd and kube-apiserver with their state in *workdir*; stop both at the end.

        Args:
            assets: the folder with the binaries.
            workdir: for state and logs.
            flags: of kube-apiserver, without dashes; they override the defaults, and None omits
                one.
            users: groups by user, besides the administrator; each user gets a token.

        Raises:
            ControlPlaneError: one of them ended, or was not ready within 90 s.
        """
        async with AsyncExitStack() as processes:
            etcd = await _start_etcd(processes, assets=assets, workdir=workdir)
            api = await _start_api(
                processes,
                etcd=etcd,
                assets=assets,
                workdir=workdir,
                flags={"etcd-servers": etcd.url, **(flags or {})},
                users={ADMIN: "system:masters", **(users or {})},
            )
            yield api

    def kubeconfig(self, path: Path, *, user: str = ADMIN) -> Path:
        """Write a kubeconfig of *user* to *path* (mode 0600) and return *path*."""
        return write_kubeconfig(
            path, server=self.url, token=self.tokens[user], ca_file=self.ca_file, user=user
        )

    async def stop_serving(self) -> None:
        """Stop kube-apiserver alone, as in an outage; etcd keeps its data."""
        await self._server.stop()

    async def serve_again(self) -> None:
        """Start kube-apiserver again at the same address, after :meth:`stop_serving`.

        Raises:
            ControlPlaneError: as for :meth:`start`.
        """
        await self._server.start()
        await self.wait_ready()

    async def back_up(self, folder: Path) -> None:
        """Copy etcd's data to *folder*, which must not exist; both programs are stopped for it.

        Raises:
            ControlPlaneError: as for :meth:`start`.
        """
        async with self._stopped() as data:
            await asyncio.to_thread(shutil.copytree, data, folder)

    async def restore(self, folder: Path) -> None:
        """Put the data that :meth:`back_up` wrote in the place of etcd's.

        Raises:
            ControlPlaneError: as for :meth:`start`.
        """
        async with self._stopped() as data:
            await asyncio.to_thread(shutil.rmtree, data)
            await asyncio.to_thread(shutil.copytree, folder, data)

    @asynccontextmanager
    async def _stopped(self) -> AsyncIterator[Path]:
        """Stop kube-apiserver and etcd, yield etcd's data, and start both again."""
        await self._server.stop()
        await self._etcd.stop()
        yield self.workdir / _ETCD_DATA
        await self._etcd.start()
        await self.serve_again()

    async def wait_ready(self) -> None:
        """Wait until the API server is ready, with its default namespace.

        Raises:
            ControlPlaneError: it ended, or was not ready within 90 s.
        """
        try:
            async with asyncio.timeout(_START_LIMIT_S):
                while not await _is_ready(self):
                    self._server.check()
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise ControlPlaneError(
                f"kube-apiserver was not ready within {_START_LIMIT_S:.0f} s; "
                f"see {self._server.log_file}"
            ) from None

    async def start_controller_manager(self, *flags: str) -> None:
        """Start kube-controller-manager: deployments, jobs, disruption budgets, garbage collection.

        Args:
            flags: further flags.

        Raises:
            ControlPlaneError: the binary is missing or ended at once.
        """
        key = str(self.workdir / "certs" / "apiserver.key")
        await self._start_component(
            "kube-controller-manager",
            f"--service-account-private-key-file={key}",
            f"--root-ca-file={self.ca_file}",
            f"--cert-dir={self.workdir / 'certs-kcm'}",
            *flags,
        )

    async def start_scheduler(self, config: Path, *flags: str) -> None:
        """Start kube-scheduler with the KubeSchedulerConfiguration at *config*, and *flags*.

        One that runs is stopped before.

        Its ``clientConnection.kubeconfig`` must be one that :meth:`kubeconfig` wrote.

        Raises:
            ControlPlaneError: the binary is missing or ended at once.
        """
        await self._start_component(
            "kube-scheduler",
            f"--config={config}",
            f"--cert-dir={self.workdir / 'certs-scheduler'}",
            *flags,
        )

    async def _start_component(self, name: str, *flags: str) -> None:
        for before in [one for one in self._components if one.name == name]:
            await before.stop()
            self._components.remove(before)
        (port,) = free_ports(1)
        own = self.kubeconfig(self.workdir / f"{name}.kubeconfig")
        access = [f"--authentication-kubeconfig={own}", f"--authorization-kubeconfig={own}"]
        if name == "kube-controller-manager":  # the scheduler reads it from its configuration
            access += [f"--kubeconfig={own}", "--leader-elect=false"]
        command = [
            str(self.assets / name),
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            *access,
            *flags,
        ]
        child = await _started(self._processes, command, self.workdir)
        self._components.append(child)
        await asyncio.sleep(_POLL_S)  # with flags that it cannot parse it exits at once
        child.check()


class _Etcd(NamedTuple):
    url: str
    process: _Process


async def _start_etcd(processes: AsyncExitStack, *, assets: Path, workdir: Path) -> _Etcd:
    client_port, peer_port = free_ports(2)
    client, peer = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    command = [
        str(assets / "etcd"),
        f"--data-dir={workdir / _ETCD_DATA}",
        "--unsafe-no-fsync",  # the state is temporary
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
    ]
    return _Etcd(client, await _started(processes, command, workdir))


async def _start_api(
    processes: AsyncExitStack,
    *,
    etcd: _Etcd,
    assets: Path,
    workdir: Path,
    flags: Mapping[str, str | None],
    users: Mapping[str, str],
) -> ControlPlane:
    (port,) = free_ports(1)
    tokens = {user: secrets.token_urlsafe(24) for user in users}
    tokens_file, certs = workdir / "tokens.csv", workdir / "certs"
    tokens_file.touch(mode=0o600)
    rows = [f'{tokens[user]},{user},{user},"{group}"\n' for user, group in users.items()]
    tokens_file.write_text("".join(rows))
    # kube-apiserver writes a self-signed certificate to --cert-dir before it reads its service
    # account keys, so that one key can serve as both and no key tool is needed.
    key = certs / "apiserver.key"
    wanted: dict[str, str | None] = {
        "bind-address": _LOOPBACK,
        "advertise-address": _LOOPBACK,
        "secure-port": str(port),
        "cert-dir": str(certs),
        "token-auth-file": str(tokens_file),
        "authorization-mode": "RBAC",
        "endpoint-reconciler-type": "none",
        "service-cluster-ip-range": "10.0.0.0/24",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-key-file": str(key),
        "service-account-signing-key-file": str(key),
        "disable-admission-plugins": ",".join(_ADMISSION_OFF),
        "allow-privileged": "true",
        **flags,
    }
    command = [str(assets / "kube-apiserver")]
    command += [f"--{name}={value}" for name, value in wanted.items() if value is not None]
    api = ControlPlane(
        url=f"https://{wanted['bind-address']}:{wanted['secure-port']}",
        etcd_url=etcd.url,
        tokens=tokens,
        ca_file=certs / "apiserver.crt",
        assets=assets,
        workdir=workdir,
        _processes=processes,
        _server=await _started(processes, command, workdir),
        _etcd=etcd.process,
    )
    await api.wait_ready()
    return api


async def _started(processes: AsyncExitStack, command: Sequence[str], workdir: Path) -> _Process:
    process = _Process(command, workdir)
    processes.push_async_callback(process.stop)
    await process.start()
    return process


async def _is_ready(api: ControlPlane) -> bool:
    if not _written(api.ca_file):
        return False
    try:
        async with connect_to(api.url, token=api.token, ca_file=api.ca_file) as with_retries:
            client = with_retries.with_retry(RetryPolicy(attempts=1))
            await client.get_path("/readyz")
            # The server may be ready before the default namespace exists.
            await client.get_path("/api/v1/namespaces/default")
    except KubeError:
        return False
    return True


def _written(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


class _Process:
    """One child process with its output in ``workdir/NAME.log``."""

    def __init__(self, command: Sequence[str], workdir: Path) -> None:
        self.name = command[0].rpartition("/")[2]
        self.log_file = workdir / f"{self.name}.log"
        self._command = command
        self._workdir = workdir
        self._child: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """Its process id; None while it does not run."""
        child = self._child
        return child.pid if child is not None and child.returncode is None else None

    async def start(self) -> None:
        self._workdir.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as log:
            self._child = await asyncio.create_subprocess_exec(
                *ends_with_us(self._command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._workdir,
            )
        _log.debug("process_started", name=self.name, pid=self._child.pid)

    def check(self) -> None:
        """Raise ControlPlaneError when it has exited by itself."""
        if self._child is not None and self._child.returncode is not None:
            code = self._child.returncode
            raise ControlPlaneError(f"{self.name} ended with {code}; see {self.log_file}")

    async def stop(self) -> None:
        """Terminate the process; kill it if it has not exited within 2 s."""
        child, self._child = self._child, None
        if child is None or child.returncode is not None:
            return
        child.terminate()
        try:
            async with asyncio.timeout(_STOP_LIMIT_S):
                await child.wait()
        except TimeoutError:
            _log.warning("process_killed", name=self.name, pid=child.pid)
            child.kill()
            await child.wait()
