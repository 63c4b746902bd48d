"""The live cluster as the commands see it: pods and nodes, listed once."""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from certs.settings import CertsSettings
from cli.main import DONE, FAILED
from fracgpu.cards.card import NodeCards
from fracgpu.device_claims.claim import DeviceClaim, decode_claim
from fracgpu.device_claims.holders import describe_claim, with_claims
from fracgpu.device_claims.quota import quota_problem
from fracgpu.doctor.installation import WEBHOOK, service_namespaces
from fracgpu.explain.explanation import shortages
from fracgpu.explain.subject import read_subject
from fracgpu.k8s.node import Taint
from fracgpu.k8s.resources import NO_HOST_RESOURCES, HostResources
from fracgpu.k8s.scheduling.node_filters import CORDONED
from fracgpu.k8s.scheduling.objects import SchedulingNode
from fracgpu.k8s.workloads.quota import ResourceQuota, read_quota
from fracgpu.placement.placement import denied_cards, nodes_for, reservations_for
from fracgpu.request.need import Strategy
from fracgpu.state.bound_pod import BoundPod, bound_pod_of
from fracgpu.state.cluster_state import ClusterState, ExplainedPod, NodeConstraints
from fracgpu.state.ledger import Ledger
from fracgpu.state.node_info import ObservedNode, observe_node
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.reservation import MoveClaims, read_claims
from fracgpu.state.snapshot import Snapshot
from kube.access import connect, own_namespace
from kube.client import KubeClient
from kube.errors import (
    AccessError,
    Forbidden,
    KubeError,
    NotFound,
    Unauthorized,
    Unavailable,
)
from kube.kinds import (
    DEPLOYMENTS,
    MOVES,
    MUTATING_WEBHOOKS,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
)
from kube.objects import decode_object
from process.settings import SettingsError, load

_NO_MOVES: Final = "may not list moves.fracgpu.io, so reservations of moves are not shown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedCluster:
    """All pods and nodes, listed one after the other.

    Attributes:
        bound: the pods that have a node, as the extender's ledger counts them.
        moves: what Moves claim; None if the caller may not list them.
        claims: ResourceClaims by ``namespace/name``, if a pod can have some.
        quotas: if a pod waits for its claim; None if the caller may not list them.
    """

    pods: tuple[ExplainedPod, ...]
    nodes: tuple[ObservedNode, ...]
    bound: tuple[BoundPod, ...] = ()
    moves: tuple[MoveClaims, ...] | None = ()
    claims: Mapping[str, DeviceClaim] = field(default_factory=dict)
    quotas: tuple[ResourceQuota, ...] | None = ()

    def find(self, key: str) -> ExplainedPod | None:
        """Return the pod ``namespace/name``, or None."""
        return next((pod for pod in self.pods if pod.info.record.key == key), None)


async def observe(client: KubeClient) -> ObservedCluster:
    """List pods, nodes and Moves.

    Raises:
        KubeError: the API server did not answer, or refused.
    """
    nodes = await client.list(NODES)
    pods = await client.list(PODS)
    moves = await _claims(client)
    found = tuple(read_subject(bytes(raw)) for raw in pods.items)
    observed = tuple(observe_node(bytes(raw)) for raw in nodes.items)
    claims = await list_device_claims(client, (pod.info for pod in found)) or ()
    infos = with_claims((pod.info for pod in found), claims, (node.cards for node in observed))
    by_key = {claim.key: claim for claim in claims}
    waits = any(pod.pending and pod.claim_key and pod.claim_key not in by_key for pod in infos)
    subjects = tuple(replace(pod, info=info) for pod, info in zip(found, infos, strict=True))
    return ObservedCluster(
        pods=subjects,
        nodes=observed,
        bound=tuple(pod for one in subjects if (pod := bound_pod_of(one.info)) is not None),
        moves=moves,
        claims=by_key,
        quotas=await _quotas(client) if waits else (),
    )


async def list_device_claims(
    client: KubeClient, pods: Iterable[PodInfo]
) -> tuple[DeviceClaim, ...] | None:
    """Return all ResourceClaims; None where there is no such kind, or the caller may not list them.

    Raises:
        KubeError: the API server did not answer, or refused although pods hold cards by claims.
    """
    try:
        listed = await client.list(RESOURCE_CLAIMS)
    except NotFound:  # Kubernetes before 1.34
        return None
    except Forbidden:
        if any(pod.device_claim for pod in pods):
            raise
        return None
    return tuple(decode_claim(bytes(raw)) for raw in listed.items)


async def _claims(client: KubeClient) -> tuple[MoveClaims, ...] | None:
    try:
        return tuple(read_claims(bytes(raw)) for raw in (await client.list(MOVES)).items)
    except NotFound:  # the definition of Moves is not installed
        return ()
    except Forbidden:
        return None


async def _quotas(client: KubeClient) -> tuple[ResourceQuota, ...] | None:
    try:
        listed = await client.list(RESOURCE_QUOTAS)
    except Forbidden:
        return None
    return tuple(read_quota(bytes(raw)) for raw in listed.items)


def snapshot_of(pods: Iterable[PodInfo], nodes: Iterable[NodeCards], *, now: datetime) -> Snapshot:
    """Return which pod holds what, folded by the same ledger as in the scheduler."""
    return _ledger_of(pods, nodes, ()).snapshot(now=now)


def _ledger_of(
    pods: Iterable[PodInfo], nodes: Iterable[NodeCards], moves: Iterable[MoveClaims]
) -> Ledger:
    ledger = Ledger()
    for node in nodes:
        ledger.set_node(node)
    for pod in pods:
        ledger.set_pod(pod.record)
    for claims in moves:
        ledger.set_claims(claims)
    return ledger


def cluster_state_of(
    observed: ObservedCluster,
    subject: ExplainedPod,
    *,
    schedulers: Iterable[str],
    strategy: Strategy,
    now: datetime,
) -> ClusterState:
    """Return the cluster state that the explanation of *subject* needs."""
    pods = {pod.info.record.uid: pod.info for pod in observed.pods}
    taken = _taken_by_node(pods.values())
    asked = subject.info.host
    constraints = {
        node.cards.node: NodeConstraints(
            taints=_own_taints(node.scheduling),
            cordoned=node.scheduling.unschedulable,
            short=shortages(
                node.cards, asked=asked, taken=taken.get(node.cards.node, NO_HOST_RESOURCES)
            ),
        )
        for node in observed.nodes
    }
    moves = observed.moves or ()
    claim = observed.claims.get(subject.info.claim_key)
    withheld = (
        "perhaps a quota forbids it: you may not list resourcequotas"
        if observed.quotas is None
        else quota_problem(
            subject.info, observed.quotas, observed.claims.values(), pods=pods.values()
        )
    )
    of_claim = (
        "" if subject.info.record.node else describe_claim(subject.info, claim, withheld=withheld)
    )
    ledger = _ledger_of(pods.values(), (node.cards for node in observed.nodes), moves)
    snapshot = ledger.snapshot(now=now)
    nodes = nodes_for(ledger, subject.info, snapshot.nodes, now=now)
    return ClusterState(
        snapshot=replace(snapshot, nodes=nodes),
        reservations={
            claims.move: claims.reservation for claims in moves if claims.reservation is not None
        },
        denied=frozenset(denied_cards(ledger, subject.info, now=now)),
        holds={claims.move: claims.hold for claims in moves if claims.hold is not None},
        notes=(
            *((of_claim,) if of_claim else ()),
            *(
                _claimed(subject.info, ledger, now=now)
                if observed.moves is not None
                else (_NO_MOVES,)
            ),
        ),
        pods=pods,
        node_constraints=constraints,
        schedulers=frozenset(schedulers),
        strategy=strategy,
        now=now,
    )


def _claimed(pod: PodInfo, ledger: Ledger, *, now: datetime) -> tuple[str, ...]:
    """Return in words what Moves hold for a pod that waits, and what they do for it."""
    if pod.record.node:
        return ()
    reserved = [
        f"move {one.move} reserves a card of {one.node} for it"
        for one in reservations_for(ledger, pod, now=now)
    ]
    kept = [
        f"move {hold.move} makes room for it on {hold.node}, where cards are kept for it until "
        f"{hold.until:%H:%M:%S} UTC"
        for hold in ledger.reservations.holds_for(pod.record.uid)
        if hold.until > now
    ]
    return (*reserved, *kept)


def _own_taints(node: SchedulingNode) -> tuple[Taint, ...]:
    """Return the taints without the one that says only that the node is cordoned."""
    return tuple(
        taint for taint in node.taints if not (node.unschedulable and taint.key == CORDONED.key)
    )


def _taken_by_node(pods: Iterable[PodInfo]) -> Mapping[str, HostResources]:
    taken: dict[str, HostResources] = {}
    for pod in pods:
        if pod.record.live and pod.record.node:
            have = taken.get(pod.record.node, NO_HOST_RESOURCES)
            taken[pod.record.node] = have + pod.host
    return taken


def with_cluster(
    command: str,
    options: argparse.Namespace,
    work: Callable[[KubeClient], Awaitable[int]],
    *,
    interrupted: int = FAILED,
    unanswered: int = FAILED,
) -> int:
    """Return the exit code of *work*, run with a client.

    Args:
        command: its name, for error messages.
        options: those of :func:`cli.flags.add_cluster_flags`.
        work: what the command does.
        interrupted: the exit code after Ctrl-C.
        unanswered: the exit code where the API server does not answer, or refuses.
    """

    async def run() -> int:
        async with connect(
            options.kubeconfig,
            context=options.context,
            user_agent="fracgpu-cli",
            timeout_s=options.request_timeout,
        ) as client:
            code = await work(client)
            if code != DONE and (wanted := getattr(options, "system_namespace", None)):
                for other in await _namespaces_of_webhook(client) - {wanted}:
                    text = f"FracGPU runs in namespace {other}: --system-namespace {other}"
                    print(f"fracgpu {command}: {text}", file=sys.stderr)
            return code

    try:
        return asyncio.run(run())
    except KubeError as error:
        print(f"fracgpu {command}: {trouble(error)}", file=sys.stderr)
        return unanswered
    except KeyboardInterrupt:
        return interrupted


async def _namespaces_of_webhook(client: KubeClient) -> set[str]:
    """Return where FracGPU's webhook runs; nothing where that cannot be read."""
    try:
        return service_namespaces(await client.get_object(MUTATING_WEBHOOKS, WEBHOOK))
    except KubeError:
        return set()


async def namespace_of(options: argparse.Namespace) -> str:
    """Return the namespace of the flag, else that of the kubeconfig's context."""
    if options.namespace is not None:
        return str(options.namespace)
    return await asyncio.to_thread(own_namespace, options.kubeconfig, context=options.context)


def trouble(error: KubeError) -> str:
    """Return what an error of the API server means to whoever runs a command, and what to do."""
    match error:
        case AccessError():
            return str(error)
        case Unauthorized():
            return (
                f"the API server does not accept the credentials: {error.message}; log in again, "
                "or name another --context or --kubeconfig"
            )
        case Forbidden():
            verb, resource, scope = permission_of(error)
            return (
                f"may not {verb} {resource}: {error.message}; ask for it, and check with: "
                f"kubectl auth can-i {verb} {resource}{scope}"
            )
        case Unavailable(status=None):
            return (
                f"{error}; is this the right cluster (--context, --kubeconfig), and is it "
                "reachable from here? --request-timeout sets the wait"
            )
        case _:
            return str(error)


_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def permission_of(error: KubeError) -> tuple[str, str, str]:
    """Return the verb and resource of RBAC that a request needs, and kubectl's flag for where."""
    parts = error.path.strip("/").split("/")
    parts = parts[2:] if parts[:1] == ["api"] else parts[3:]
    scope = ""
    if parts[:1] == ["namespaces"] and len(parts) > 2:  # noqa: PLR2004 - namespaces/NAME/RESOURCE
        scope, parts = f" -n {parts[1]}", parts[2:]
    elif error.path.startswith(("/api/", "/apis/")) and len(parts) == 1:
        scope = " -A"
    if not parts:
        return error.verb.lower(), error.path, ""
    resource, name, *sub = [*parts, ""] if len(parts) == 1 else parts
    verb = _VERBS.get(error.verb, "get" if name else "list")
    return verb, "/".join([resource, *sub]), scope


async def workload_of(client: KubeClient, role: str, *, namespace: str) -> dict[str, Any]:
    """Return the Deployment of a role, which the chart may have called otherwise.

    Raises:
        KubeError: it cannot be read, or there is none.
    """
    label = f"app.kubernetes.io/name={role}"
    found = (await client.list(DEPLOYMENTS, namespace=namespace, label_selector=label)).items
    if found:
        return decode_object(found[0])
    return await client.get_object(DEPLOYMENTS, role, namespace=namespace)


async def certs_settings(client: KubeClient, *, namespace: str, **given: Any) -> CertsSettings:
    """Return the settings of the role certs, as far as its Deployment says them; *given* ones win.

    Raises:
        KubeError: the API server does not answer.
    """
    try:
        body = await workload_of(client, "fracgpu-certs", namespace=namespace)
        container = body["spec"]["template"]["spec"]["containers"][0]
        # After `run certs`.
        found = load(CertsSettings, container["args"][2:], {}, program="certs")
    except (NotFound, Forbidden, SettingsError, LookupError):
        found = CertsSettings()
    return replace(found, namespace=namespace, **given)


async def is_installed(client: KubeClient) -> bool:
    """Report whether the cluster has FracGPU, by its custom resources; anybody may ask for those.

    Raises:
        KubeError: the API server did not answer, or refused.
    """
    try:
        await client.get_path("/apis/fracgpu.io")
    except NotFound:
        return False
    return True


NOT_INSTALLED: Final = (
    "FracGPU is not installed in this cluster (it has no resources of fracgpu.io): see "
    "docs/install.md, or name another --context"
)
