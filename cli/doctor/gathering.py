"""Reads what the checks need: every fact by itself, so that one that fails leaves the others."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from certs.status import Report, TrustState, collect_report
from cli.cluster import certs_settings
from cli.doctor.webhook_probe import ask_webhook
from component import config_keys, placement_config
from component.config_keys import refuse_unknown_keys
from component.wiring import Wiring, parse_wirings
from fracgpu import names
from fracgpu.doctor.facts import (
    CertificateFact,
    CertificatesFact,
    Facts,
    Json,
    NotKnownError,
    Objects,
    PrometheusFact,
    TrustFact,
    Unread,
    known,
    name_of,
    named,
    template_of,
)
from fracgpu.doctor.versions import MOVES_DEFINITION
from fracgpu.doctor.workloads import QUEUE_LABEL
from fracgpu.errors import WireError
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from kube.client import KubeClient
from kube.errors import Forbidden, KubeError, NotFound
from kube.kinds import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIGMAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DAEMONSETS,
    DEPLOYMENTS,
    DEVICE_CLASSES,
    ENDPOINT_SLICES,
    JOBS,
    LEASES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    ROLE_BINDINGS,
    ROLES,
    RUNTIME_CLASSES,
    STATEFULSETS,
    VALIDATING_POLICIES,
    VALIDATING_POLICY_BINDINGS,
    VALIDATING_WEBHOOKS,
    Kind,
)
from kube.objects import decode_object
from kube.retry import RetryPolicy
from kube.transport import ApiTransport
from kube.yaml_text import NotYamlError, read_yaml
from process.clock import Clock
from rebalancer.config import parse_policy
from webhook.admission_config import AdmissionConfig, parse_admission

_T = TypeVar("_T")

_NODE_LEASES: Final = "kube-node-lease"
_AT_ONCE: Final = 8  # requests; more would be queued by the API server's own fairness
_ONE_TRY: Final = RetryPolicy(attempts=2)
_OUR_KEYS: Final = names.PREFIX.encode()

Ask = Callable[[KubeClient], Awaitable[PrometheusFact | Unread]]


class Gatherer:
    """Reads facts with one client; *limit_s* is for each of them.

    Args:
        client: needs only to read; what it may not read is a fact that is unread.
        namespace: where FracGPU runs.
        probe_namespace: where the dry run of a pod is sent; None: none is sent.
        ask_prometheus: what asks Prometheus.
        limit_s: the longest time for one fact.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        probe_namespace: str | None,
        ask_prometheus: Ask,
        limit_s: float,
    ) -> None:
        self._client = client.with_retry(_ONE_TRY)
        self._namespace = namespace
        self._probe_namespace = probe_namespace
        self._ask_prometheus = ask_prometheus
        self._limit_s = limit_s
        self._gate = asyncio.Semaphore(_AT_ONCE)

    async def gather(self, clock: Clock, *, own_version: str) -> Facts:
        """Return all facts.

        Args:
            clock: of whoever asks; where the API server tells its own time, that counts instead.
            own_version: of the program that asks.

        Raises:
            KubeError: the API server does not answer at all.
        """
        # Anybody may ask for the version: if this fails, there is nothing to examine.
        version, ahead = await self._server(clock)
        now = clock.now() - (timedelta(0) if isinstance(ahead, Unread) else ahead)
        found: dict[str, Any] = {}
        async with asyncio.TaskGroup() as group:
            for field, read in self._readers(now).items():
                group.create_task(self._into(found, field, read), name=f"read-{field}")
        maps = found["config_maps"]
        return Facts(
            now=now,
            caller_ahead=ahead,
            own_version=own_version,
            system_namespace=self._namespace,
            server_version=version,
            scheduler_configurations=_scheduler_configurations(
                maps, found["deployments"], found["daemon_sets"]
            ),
            config_mistakes=_config_mistakes(maps),
            ignored_keys=_ignored_keys(maps),
            overcommits=_overcommits(maps),
            by_claims=_by_claims(maps),
            **found,
        )

    async def _into(
        self, found: dict[str, Any], field: str, read: Callable[[], Awaitable[object]]
    ) -> None:
        try:
            async with self._gate, asyncio.timeout(self._limit_s):
                found[field] = await read()
        except TimeoutError:
            found[field] = Unread(f"no answer within {self._limit_s:g} s")
        except Forbidden as error:
            found[field] = Unread(f"this account may not read it: {error.message}")
        except (KubeError, WireError) as error:
            found[field] = Unread(str(error))

    def _readers(self, now: datetime) -> Mapping[str, Callable[[], Awaitable[object]]]:
        ours = self._namespace
        return {
            "mutating_webhooks": self._lists(MUTATING_WEBHOOKS),
            "validating_webhooks": self._lists(VALIDATING_WEBHOOKS),
            "policies": self._lists(VALIDATING_POLICIES),
            "policy_bindings": self._lists(VALIDATING_POLICY_BINDINGS),
            "definitions": self._definition,
            "deployments": self._lists(DEPLOYMENTS, namespace=ours),
            "daemon_sets": self._lists(DAEMONSETS, namespace=ours),
            "slices": self._lists(ENDPOINT_SLICES, namespace=ours),
            "leases": self._lists(LEASES, namespace=ours),
            "node_leases": self._lists(LEASES, namespace=_NODE_LEASES),
            "pods": self._lists(PODS, namespace=ours),
            "config_maps": self._lists(CONFIGMAPS, namespace=ours),
            "access_roles": self._both(CLUSTER_ROLES, ROLES),
            "access_bindings": self._both(CLUSTER_ROLE_BINDINGS, ROLE_BINDINGS),
            "nodes": self._lists(NODES),
            "runtime_classes": self._lists(RUNTIME_CLASSES),
            "namespace": self._system_namespace,
            "requesting": self._requesting,
            "queued": self._queued,
            "certificates": lambda: self._certificates(now),
            "admission": self._admission,
            "device_classes": self._lists(DEVICE_CLASSES),
            "card_slices": self._lists(
                RESOURCE_SLICES, field_selector=f"spec.driver={names.DRA_DRIVER}"
            ),
            "claims": self._lists(RESOURCE_CLAIMS),
            "prometheus": lambda: self._ask_prometheus(self._client),
        }

    async def _server(self, clock: Clock) -> tuple[str, timedelta | Unread]:
        """Return the API server's version, and how far *clock* is ahead of the server's.

        Raises:
            KubeError: there is no answer.
        """
        transport = self._client.transport
        assert isinstance(transport, ApiTransport), "the client is one of kube.access"  # noqa: S101
        before = clock.now()
        response = await self._client.retrying(lambda: transport.version(timeout_s=self._limit_s))
        ahead = response.ahead(before=before, after=clock.now())
        if ahead is None:
            return response.git_version, Unread(
                "this machine's clock: the API server's answers have no header Date"
            )
        return response.git_version, ahead

    def _lists(self, kind: Kind, **selection: str) -> Callable[[], Awaitable[Objects]]:
        async def read() -> Objects:
            listed = await self._client.list(kind, **selection)
            return tuple(decode_object(raw) for raw in listed.items)

        return read

    def _both(self, everywhere: Kind, ours: Kind) -> Callable[[], Awaitable[Objects]]:
        lists = self._lists(everywhere), self._lists(ours, namespace=self._namespace)

        async def read() -> Objects:
            return (*await lists[0](), *await lists[1]())

        return read

    async def _definition(self) -> Objects:
        try:
            return (await self._client.get_object(CUSTOM_RESOURCE_DEFINITIONS, MOVES_DEFINITION),)
        except NotFound:
            return ()

    async def _system_namespace(self) -> Objects:
        try:
            return (await self._client.get_object(NAMESPACES, self._namespace),)
        except NotFound:
            return ()

    async def _requesting(self) -> tuple[PodInfo, ...]:
        alive = "status.phase!=Succeeded,status.phase!=Failed"
        listed = await self._client.list(PODS, field_selector=alive)
        # Most pods of a cluster request no card, and are not decoded.
        return tuple(decode_pod_info(raw) for raw in listed.items if _OUR_KEYS in bytes(raw))

    async def _queued(self) -> Objects:
        found: list[Json] = []
        for kind in (DEPLOYMENTS, STATEFULSETS, JOBS):
            listed = await self._client.list(kind, label_selector=QUEUE_LABEL)
            found += [{"kind": kind.kind, **decode_object(raw)} for raw in listed.items]
        return tuple(found)

    async def _certificates(self, now: datetime) -> CertificatesFact:
        settings = await certs_settings(self._client, namespace=self._namespace)
        return _certificates_of(await collect_report(self._client, settings, now=now))

    async def _admission(self) -> object:
        if self._probe_namespace is None:
            return Unread("--no-probe was given, so no pod was sent as a dry run")
        return await ask_webhook(self._client, namespace=self._probe_namespace)


def _certificates_of(report: Report) -> CertificatesFact:
    return CertificatesFact(
        certificates=tuple(
            CertificateFact(
                secret=row.secret,
                not_after=row.facts.not_after if row.facts is not None else None,
                problem=row.problem or "",
            )
            for row in report.rows
        ),
        mistrust=tuple(
            TrustFact(webhook=f"{row.configuration}, {row.webhook}", problem=row.trust.value)
            for row in report.bundles
            if row.trust in (TrustState.LACKS, TrustState.EMPTY)
        ),
    )


def _scheduler_configurations(
    maps: Objects | Unread, deployments: Objects | Unread, daemon_sets: Objects | Unread
) -> Mapping[str, Json] | Unread:
    """Return what kube-scheduler reads, of the ConfigMaps that a pod template of ours mounts."""
    try:
        read, workloads = known(maps), (*known(deployments), *known(daemon_sets))
    except NotKnownError as error:
        return Unread(str(error))
    mounted = {
        (volume.get("configMap") or {}).get("name")
        for workload in workloads
        for volume in template_of(workload).get("spec", {}).get("volumes") or ()
    }
    found: dict[str, Json] = {}
    for body in read:
        if name_of(body) in mounted:
            for key, text in (body.get("data") or {}).items():
                document = _yaml(text)
                if document.get("kind") == "KubeSchedulerConfiguration":
                    found[f"ConfigMap {name_of(body)}, key {key}"] = document
    return found


def _yaml(text: str) -> Json:
    with suppress(NotYamlError):
        found = read_yaml(text)
        return found if isinstance(found, dict) else {}
    return {}


def _ignored_keys(maps: Objects | Unread) -> tuple[str, ...] | Unread:
    """Return the keys that set nothing any more, unless something is wrong with the others."""
    if isinstance(maps, Unread):
        return maps
    with suppress(ValueError):
        return parse_policy(_text_of(maps, config_keys.REBALANCER)).ignored_keys
    return ()


def _overcommits(maps: Objects | Unread) -> bool | Unread:
    """Report whether the limits of a card's containers are to exceed it."""
    if isinstance(maps, Unread):
        return maps
    with suppress(ValueError):
        return placement_config.parse_overcommit(_text_of(maps, config_keys.PLACEMENT)) > 1
    return False


def _by_claims(maps: Objects | Unread) -> bool | Unread:
    """Report whether kube-scheduler is to allocate claims."""
    if isinstance(maps, Unread):
        return maps
    with suppress(ValueError):
        return parse_wirings(_text_of(maps, config_keys.WIRING)).serves(Wiring.CLAIMS)
    return False


def _text_of(maps: Objects, key: str) -> str:
    data: Mapping[str, str] = (named(maps, names.CONFIG_MAP) or {}).get("data") or {}
    return data.get(key, "")


def _config_mistakes(maps: Objects | Unread) -> Mapping[str, str] | Unread | None:
    """Return what the roles' own parsers say against each key of the ConfigMap."""
    if isinstance(maps, Unread):
        return maps
    body = named(maps, names.CONFIG_MAP)
    if body is None:
        return None
    data: Mapping[str, str] = body.get("data") or {}
    mistakes: dict[str, str] = {}
    parsers: dict[str, Callable[[str], object]] = {
        config_keys.ADMISSION: lambda text: parse_admission(text, base=AdmissionConfig()),
        config_keys.PLACEMENT: placement_config.parse_strategy,
        config_keys.REBALANCER: parse_policy,
        config_keys.WIRING: parse_wirings,
    }
    for key, text in data.items():
        try:
            if key in parsers:
                parsers[key](text)
            else:
                refuse_unknown_keys([key])
        except ValueError as error:
            mistakes[key] = str(error)
    return mistakes
