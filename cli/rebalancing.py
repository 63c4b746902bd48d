"""What the rebalancer knows, read once with its own code: its policy, its moves and Prometheus."""

import argparse
import asyncio
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from component.config_keys import WIRING
from component.placement_config import KEY as PLACEMENT_KEY
from component.placement_config import parse_strategy
from component.wiring import Wirings, parse_wirings
from fracgpu import names
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.request.need import DEFAULT_STRATEGY, Strategy
from fracgpu.units import BYTES_PER_MIB
from kube.client import KubeClient
from kube.errors import NotFound
from kube.kinds import CONFIGMAPS
from kube.objects import decode_object
from rebalancer.cluster_cache import ClusterCache
from rebalancer.config import KEY, parse_policy
from rebalancer.usage.credentials import CredentialFiles
from rebalancer.usage.prometheus import Prometheus

_SYNC_LIMIT_S: Final = 60.0
_POLL_S: Final = 0.05


class ReadingFailed(Exception):  # noqa: N818 - says what happened
    """Something that is needed cannot be read; the message says what and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """What the ConfigMap says to the rebalancer.

    Attributes:
        source: where the policy comes from, for people.
    """

    policy: RebalancerPolicy
    strategy: Strategy
    source: str
    wirings: Wirings


def add_prometheus_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the rebalancer by which a command reaches Prometheus."""
    parser.add_argument(
        "--prometheus-url",
        metavar="URL",
        help="where Prometheus answers, e.g. http://localhost:9090 (kubectl port-forward); "
        "default: the rebalancer's, through the API server",
    )
    parser.add_argument(
        "--prometheus-credentials-dir",
        type=Path,
        help="a folder with token, or username and password; headers; ca.crt; tls.crt and tls.key",
    )
    parser.add_argument("--prometheus-token-file", type=Path, help="file with a bearer token")
    parser.add_argument("--prometheus-ca-file", type=Path, help="CA of Prometheus' certificate")
    parser.add_argument(
        "--query-timeout-s", type=float, default=30.0, help="longest wait for an answer (30)"
    )


def open_prometheus(
    options: argparse.Namespace, *, url: str, presented: Path | None = None
) -> Prometheus:
    """Return a client of the Prometheus at *url*, by the flags of :func:`add_prometheus_flags`.

    Without a flag for credentials those in the folder *presented* are used.
    """
    by_flag = options.prometheus_token_file is not None
    return Prometheus(
        url,
        limit_s=options.query_timeout_s,
        limit_bytes=256 * BYTES_PER_MIB,
        credentials=CredentialFiles(
            folder=options.prometheus_credentials_dir or (None if by_flag else presented),
            token_file=options.prometheus_token_file,
            ca_file=options.prometheus_ca_file,
        ),
    )


def read_policy_file(path: Path) -> RebalancerPolicy:
    """Return the policy in a file: the text of the ConfigMap's key ``rebalancer``.

    Raises:
        ReadingFailed: there is no such file, or the text has mistakes.
    """
    try:
        return parse_policy(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ReadingFailed(f"--config {path}: {error}") from error


async def read_settings(client: KubeClient, *, namespace: str) -> ClusterSettings:
    """Return what the ConfigMap says; without it, the defaults.

    Raises:
        ReadingFailed: a key cannot be parsed; the rebalancer goes on with the last good one, which
            is not known here.
    """
    where = f"ConfigMap {namespace}/{names.CONFIG_MAP}"
    try:
        body = await client.get(CONFIGMAPS, names.CONFIG_MAP, namespace=namespace)
    except NotFound:
        source = f"the defaults, because there is no {where}"
        return ClusterSettings(
            policy=RebalancerPolicy(), strategy=DEFAULT_STRATEGY, source=source, wirings=Wirings()
        )
    data: dict[str, str] = decode_object(body).get("data") or {}
    try:
        policy = parse_policy(data[KEY]) if KEY in data else RebalancerPolicy()
        strategy = parse_strategy(data.get(PLACEMENT_KEY, ""))
        wirings = parse_wirings(data[WIRING]) if WIRING in data else Wirings()
    except ValueError as error:
        raise ReadingFailed(f"{where}: {error}; try another policy with --config") from error
    return ClusterSettings(policy=policy, strategy=strategy, source=where, wirings=wirings)


async def read_cluster(client: KubeClient, wirings: Wirings) -> ClusterCache:
    """List the cluster into the rebalancer's own cache, and stop following it.

    Args:
        client: lists.
        wirings: how pods may get their cards.

    Raises:
        ReadingFailed: not everything could be listed within a minute, or may be.
    """
    cache = ClusterCache(client, wirings)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run(), name=name) for name, run in cache.tasks().items()]
        with suppress(TimeoutError):
            async with asyncio.timeout(_SYNC_LIMIT_S):
                await cache.wait_synced()
                # What guards pods; where this account may not list it, no pod counts as movable.
                while cache.workloads().unknown:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(_POLL_S)
        for task in tasks:
            task.cancel()
    if cache.problem is not None:
        raise ReadingFailed(f"not read within {_SYNC_LIMIT_S:g} s: {cache.problem}")
    return cache
