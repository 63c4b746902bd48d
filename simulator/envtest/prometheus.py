"""Runs a real Prometheus, the distribution's own binary, on a free loopback port."""

import asyncio
import http.client
import json
import shutil
import signal
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

import structlog
import yaml

from simulator.envtest.lifetime import ends_with_us
from simulator.envtest.ports import free_ports

log = structlog.get_logger()

_START_LIMIT_S: Final = 20.0
_STOP_LIMIT_S: Final = 4.0
_POLL_S: Final = 0.05
_GET_LIMIT_S: Final = 5.0
_LOG_TAIL_CHARS: Final = 800
_WEB_FILE: Final = "web.yml"
_ATTEMPTS: Final = 3  # another program may take the port before Prometheus does


class PrometheusFailed(Exception):  # noqa: N818 - says what happened
    """Prometheus is missing or did not start; the message says what to do or has its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Web:
    """How Prometheus serves its API.

    Attributes:
        config: of its web configuration file: TLS and passwords.
        prefix: a path before that of the API, such as ``/prometheus``.
        host: the address it listens on: 127.0.0.1 or 0.0.0.0.
        context: for our own requests, where *config* has TLS.
        headers: for our own requests, where *config* has passwords.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = ""
    host: str = "127.0.0.1"
    context: ssl.SSLContext | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def address(self, port: int) -> str:
        scheme = "https" if self.context else "http"
        return f"{scheme}://127.0.0.1:{port}{self.prefix}"

    def get(self, url: str, path: str) -> tuple[int, bytes]:
        """GET *path* under *url*; return the status and the body."""
        base = urlsplit(url)
        connection = (
            http.client.HTTPSConnection(base.netloc, timeout=_GET_LIMIT_S, context=self.context)
            if self.context
            else http.client.HTTPConnection(base.netloc, timeout=_GET_LIMIT_S)
        )
        try:
            connection.request("GET", base.path + path, headers=dict(self.headers))
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


_PLAIN: Final = Web()


class RealPrometheus:
    """A running Prometheus; make one with :meth:`start`."""

    def __init__(self, url: str, *, pid: int, log_file: Path, web: Web = _PLAIN) -> None:
        self.url: Final = url
        self._web = web
        self.pid: Final = pid
        self.log_file: Final = log_file

    @classmethod
    @asynccontextmanager
    async def start(
        cls,
        workdir: Path,
        targets: Mapping[str, str | Sequence[str]],
        *,
        scrape_interval_s: float = 1.0,
        scrape_configs: Sequence[Mapping[str, Any]] = (),
        rule_files: Sequence[Path] = (),
        web: Web = _PLAIN,
    ) -> AsyncIterator[Self]:
        """Scrape *targets* until the block ends; Prometheus exits within 5 s after it.

        Args:
            workdir: for its configuration, log and data. Blocks already in ``data`` are served as
                well.
            targets: one or several ``host:port`` with ``/metrics`` by role; each series gets the
                label ``role``.
            scrape_interval_s: scrape interval in seconds, and how often rules are evaluated.
            scrape_configs: further jobs, as in Prometheus' own configuration.
            rule_files: rules to evaluate.
            web: how it serves its API.

        Raises:
            PrometheusFailed: there is no binary, or Prometheus did not become ready.
        """
        binary = shutil.which("prometheus")
        if binary is None:
            raise PrometheusFailed(
                "no program 'prometheus' in PATH; install it, e.g. with 'make setup' "
                "or 'apt-get install prometheus'"
            )
        configuration = _configuration(targets, scrape_interval_s, scrape_configs, rule_files)
        _prepare(workdir, configuration, web)
        process, port = await _start(binary, workdir, web)
        try:
            log_file = workdir / "prometheus.log"
            log.info("prometheus_started", port=port, pid=process.pid)
            yield cls(web.address(port), pid=process.pid, log_file=log_file, web=web)
        finally:
            await _stop(process)

    async def get(self, path: str) -> Any:
        """GET a path of its API, e.g. ``/api/v1/targets``, and return the decoded JSON.

        Raises:
            OSError: it does not answer.
        """
        status, body = await asyncio.to_thread(self._web.get, self.url, path)
        if status != http.HTTPStatus.OK:
            raise OSError(f"Prometheus answered {status} to {path}")
        return json.loads(body)

    async def targets_up(self) -> dict[str, bool]:
        """Return for each scrape target's role whether Prometheus reports it up."""
        answer = await self.get("/api/v1/targets?state=active")
        return {
            target["labels"]["role"]: target["health"] == "up"
            for target in answer["data"]["activeTargets"]
        }


def _configuration(
    targets: Mapping[str, str | Sequence[str]],
    interval_s: float,
    scrape_configs: Sequence[Mapping[str, Any]],
    rule_files: Sequence[Path],
) -> str:
    interval = f"{round(interval_s * 1000)}ms"
    groups = [
        {
            "targets": [addresses] if isinstance(addresses, str) else list(addresses),
            "labels": {"role": role},
        }
        for role, addresses in targets.items()
    ]
    # The exporter writes pod="" on the series of a card; keep its labels.
    static = {"job_name": "fracgpu", "honor_labels": True, "static_configs": groups}
    return yaml.safe_dump(
        {
            "global": {
                "scrape_interval": interval,
                "scrape_timeout": interval,
                "evaluation_interval": interval,
            },
            "rule_files": [str(file.resolve()) for file in rule_files],
            "scrape_configs": [*([static] if groups else ()), *map(dict, scrape_configs)],
        }
    )


async def _start(binary: str, workdir: Path, web: Web) -> tuple[asyncio.subprocess.Process, int]:
    for _ in range(_ATTEMPTS - 1):
        try:
            return await _start_once(binary, workdir, web)
        except PrometheusFailed as error:
            if "address already in use" not in str(error):
                raise
    return await _start_once(binary, workdir, web)


async def _start_once(
    binary: str, workdir: Path, web: Web
) -> tuple[asyncio.subprocess.Process, int]:
    (port,) = free_ports(1)
    log_file = workdir / "prometheus.log"
    with log_file.open("wb") as output:
        command = (
            binary,
            f"--config.file={workdir / 'prometheus.yml'}",
            f"--storage.tsdb.path={workdir / 'data'}",
            f"--web.listen-address={web.host}:{port}",
            f"--web.config.file={workdir / _WEB_FILE}",
            f"--web.route-prefix={web.prefix or '/'}",
            "--storage.tsdb.retention.time=1d",
            "--log.level=warn",
        )
        process = await asyncio.create_subprocess_exec(
            *ends_with_us(command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C at the terminal reaches only us; we stop it in order
        )
    try:
        async with asyncio.timeout(_START_LIMIT_S):
            while process.returncode is None and not await asyncio.to_thread(  # noqa: ASYNC110 - a stranger
                _is_ready, web, port
            ):
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        await _stop(process)
        why = f"prometheus was not ready after {_START_LIMIT_S:g} s: {_tail(log_file)}"
        raise PrometheusFailed(why) from None
    except BaseException:
        await _stop(process)
        raise
    if process.returncode is not None:
        raise PrometheusFailed(f"prometheus ended at once: {_tail(log_file)}")
    return process, port


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(_STOP_LIMIT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _prepare(workdir: Path, configuration: str, web: Web) -> None:
    workdir.mkdir(parents=True, exist_ok=True)
    (workdir / "prometheus.yml").write_text(configuration)
    (workdir / _WEB_FILE).write_text(yaml.safe_dump(dict(web.config)))


def _is_ready(web: Web, port: int) -> bool:
    try:
        status, _ = web.get(web.address(port), "/-/ready")
    except (OSError, http.client.HTTPException):
        return False
    return status == http.HTTPStatus.OK


def _tail(log_file: Path) -> str:
    return log_file.read_text(errors="replace")[-_LOG_TAIL_CHARS:].strip()
