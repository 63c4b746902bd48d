"""Our controller with an API server of claims in memory, and what kube-scheduler does with them."""

import asyncio
import copy
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from fracgpu import names
from fracgpu.cards.card import Card
from fracgpu.device_claims.claim import DeviceClaim
from fracgpu.k8s.disruption_budget import PodDisruptionBudget
from fracgpu.k8s.workloads.quota import ResourceQuota
from fracgpu.request.need import Strategy
from fracgpu.state.move_object import Move
from fracgpu.state.node_info import observe_offered_node
from fracgpu.state.reservation import claims_of
from kube.errors import (
    AlreadyExists,
    Cause,
    Conflict,
    KubeError,
    NotFound,
    TooManyRequests,
    Unavailable,
)
from kube.informer import Change, ChangeType
from kube.kinds import RESOURCE_CLAIMS, Kind
from kube.objects import ObjectKey
from scheduler.claims.cache import ClaimCache, ObservedPod, decode_observed_pod
from scheduler.claims.controller import ClaimController
from scheduler.claims.gangs import ClaimGangs
from scheduler.claims.planner import ClaimPlanner
from scheduler.claims.preemption import Preemptions
from scheduler.claims.quota import ClaimQuota
from scheduler.core import SchedulerCore
from scheduler.extender.preempt import Preemptor
from scheduler.metrics import ClaimOutcome
from scheduler.waiting_pods import WaitingPods
from simulator.scheduler.allocator import Devices, allocate, devices_of, taken_by
from tests.fakes.clock import VirtualClock
from tests.fakes.events import RecordedEvents
from tests.support.claims import (
    a_claiming_node,
    a_claiming_pod,
    a_slice,
    claim_name,
    decoded,
    held_mib,
    stored,
)
from tests.support.gpu import Json, refused_status, some_cards

Fault = Callable[[Callable[[], Awaitable[Json]]], Awaitable[Json]]


class Killed(BaseException):
    """The process ends here."""


def _error(of: type[KubeError], status: int | None, **more: Any) -> KubeError:
    return of(verb="POST", path="/claims", status=status, reason="Test", message="test", **more)


async def busy(call: Callable[[], Awaitable[Json]]) -> Json:
    raise TooManyRequests(
        verb="POST", path="/claims", status=429, reason="Test", message="busy", retry_after_s=1
    )


async def unanswered(call: Callable[[], Awaitable[Json]]) -> Json:
    """Do nothing, and give no answer."""
    raise _error(Unavailable, None)


async def answer_lost(call: Callable[[], Awaitable[Json]]) -> Json:
    """Do what is asked, and give no answer."""
    await call()
    raise _error(Unavailable, None)


async def silent(call: Callable[[], Awaitable[Json]]) -> Json:
    """Do what is asked, and never end."""
    await call()
    await asyncio.Event().wait()
    return {}


async def fine(call: Callable[[], Awaitable[Json]]) -> Json:
    return await call()


async def killed_before(call: Callable[[], Awaitable[Json]]) -> Json:
    raise Killed


async def killed_after(call: Callable[[], Awaitable[Json]]) -> Json:
    await call()
    raise Killed


class ClaimsApi:
    """The claims and pods of a cluster, which outlive any controller.

    Attributes:
        faults: what happens to the next writes, in order; without any they succeed.
        watchers: told of each change.
    """

    def __init__(self) -> None:
        self.claims: dict[str, Json] = {}
        self.pods: dict[str, Json] = {}
        self.cards: dict[str, Sequence[Card]] = {}
        self.budgets: list[PodDisruptionBudget] = []
        self.quotas: list[ResourceQuota] = []
        self.faults: list[Fault] = []
        self.watchers: list[ClaimsHarness] = []
        self.writes: list[str] = []
        self._uids = itertools.count(1)

    async def create(
        self, kind: Kind, body: Mapping[str, Any], *, namespace: str | None = None
    ) -> Json:
        assert kind is RESOURCE_CLAIMS
        name = body["metadata"]["name"]

        async def call() -> Json:
            if name in self.claims:
                raise _error(AlreadyExists, 409)
            number = next(self._uids)
            claim = stored(body, uid=f"claim-{number}", version=str(number))
            self.put_claim(claim)
            return copy.deepcopy(claim)

        return await self._write(f"create {name}", call)

    async def delete(
        self,
        kind: Kind,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        version: str = "",
    ) -> None:
        assert kind is RESOURCE_CLAIMS

        async def call() -> Json:
            claim = self.claims.get(name)
            if claim is None:
                raise _error(NotFound, 404)
            meta = claim["metadata"]
            if uid not in (None, meta["uid"]) or version not in ("", meta["resourceVersion"]):
                raise _error(Conflict, 409)
            self.remove_claim(name)
            return {}

        await self._write(f"delete {name}", call)

    async def evict(self, *, namespace: str, name: str, uid: str, dry_run: bool = False) -> None:
        async def call() -> Json:
            pod = self.pods.get(name)
            if pod is None:
                raise _error(NotFound, 404)
            if pod["metadata"]["uid"] != uid:
                raise _error(Conflict, 409)
            labels = pod["metadata"].get("labels") or {}
            if any(one.covers(namespace, labels) and not one.allowed for one in self.budgets):
                cause = Cause(type="DisruptionBudget", field="", message="")
                raise _error(TooManyRequests, 429, causes=(cause,))
            if not dry_run:
                meta = {**pod["metadata"], "deletionTimestamp": "2026-01-05T12:00:30Z"}
                self.put_pod(pod | {"metadata": meta})
            return {}

        await self._write(f"{'may ' if dry_run else ''}evict {name}", call)

    def end_leaving(self) -> None:
        """Remove the pods that are being deleted, and their claims, as kubelet and others do."""
        for name, pod in list(self.pods.items()):
            if "deletionTimestamp" in pod["metadata"]:
                self.end_pod(name)

    def end_pod(self, name: str) -> None:
        """Remove a pod, and its claim if it has one."""
        self.remove_pod(name)
        if claim_name(name) in self.claims:
            self.remove_claim(claim_name(name))

    async def _write(self, what: str, call: Callable[[], Awaitable[Json]]) -> Json:
        self.writes.append(what)
        await asyncio.sleep(0)
        return await (self.faults.pop(0)(call) if self.faults else call())

    # -- what others do --------------------------------------------------------------------------

    def put_claim(self, claim: Json) -> None:
        self.claims[claim["metadata"]["name"]] = claim
        for watcher in self.watchers:
            watcher.see_claim(claim)

    def remove_claim(self, name: str) -> None:
        claim = self.claims.pop(name)
        for watcher in self.watchers:
            watcher.see_claim(claim, gone=True)

    def put_pod(self, pod: Json) -> None:
        name = pod["metadata"]["name"]
        pod["metadata"].setdefault("uid", f"uid-{name}")
        self.pods[name] = pod
        for watcher in self.watchers:
            watcher.see_pod(pod)

    def remove_pod(self, name: str) -> None:
        pod = self.pods.pop(name)
        for watcher in self.watchers:
            watcher.see_pod(pod, gone=True)

    def schedule(self, *, refuse: Sequence[str] = (), lowest_first: bool = False) -> None:
        """Allocate and bind as kube-scheduler does, by priority unless that one backs off.

        Of each list the last node is taken first, to be contrary.
        """
        waiting = [(name, pod) for name, pod in self.pods.items() if not is_bound(pod)]
        waiting.sort(key=lambda one: one[1]["spec"].get("priority", 0), reverse=not lowest_first)
        for name, pod in waiting:
            claim = self.claims.get(pod["spec"]["resourceClaims"][0]["resourceClaimName"])
            if claim is None or "status" in claim:
                continue
            found = self._allocated(claim, refuse)
            if found is None:
                why = "0/5 nodes are available: 5 cannot allocate all claims."
                self.put_pod(pod | {"status": refused_status(why)})
                continue
            node, allocation = found
            meta = {**claim["metadata"], "resourceVersion": str(next(self._uids))}
            self.put_claim({**claim, "metadata": meta, "status": {"allocation": allocation}})
            self.put_pod(pod | {"spec": {**pod["spec"], "nodeName": node}})
            assert name in self.pods

    def _allocated(self, claim: Json, refuse: Sequence[str]) -> tuple[str, Json] | None:
        devices = Devices(
            by_node=devices_of(a_slice(node, cards) for node, cards in self.cards.items()),
            taken=taken_by(self.claims.values()),
            classes={names.DEVICE_CLASS: {}, names.DEVICE_CLASS_PLACED: {}},
        )
        for node in reversed(self.cards):
            found = None if node in refuse else allocate([claim], node, devices)
            if found is not None:
                return node, found[0]
        return None

    def held(self) -> Counter[tuple[str, str]]:
        return held_mib(map(decoded, self.claims.values()))


class ClaimsHarness:
    """One replica of the controller.

    Args:
        api: what outlives it.
        limit_s: timeout of one request, in real time: none should end by it on a busy machine.
    """

    def __init__(self, api: ClaimsApi, *, limit_s: float = 5.0, assignments: bool = False) -> None:
        self.api = api
        self.clock = VirtualClock()
        self.leads = True
        self.recorder = RecordedEvents()
        self.outcomes: Counter[ClaimOutcome] = Counter()
        self.core = SchedulerCore(strategy=lambda: Strategy.PACK, clock=self.clock)
        self.due: list[str] = []
        self.waiting = WaitingPods(self.clock)
        self.cache = ClaimCache(
            self.core,
            on_pod=self.waiting.pod_changed,
            on_due=self._note,
            assignments=assignments,
        )
        self.finder = Preemptor(
            self.core.ledger,
            self.core.bound_pods,
            self.core.matrix,
            budgets=lambda: api.budgets,
            strategy=lambda: Strategy.PACK,
            clock=self.clock,
        )
        self.preemptions = Preemptions(
            api,
            self.cache,
            self.core,
            self.finder,
            clock=self.clock,
            leads=lambda: self.leads,
            limit_s=limit_s,
            on_evicted=lambda victim, one: self.controller.preempted(victim, one),  # noqa: PLW0108
        )
        planner = ClaimPlanner(self.core, self.cache.nodes)
        quota = ClaimQuota(self.cache, self._quotas)
        self.gangs = ClaimGangs(
            self.core,
            self.cache,
            planner,
            self.preemptions,
            quota,
            clock=self.clock,
            on_due=self._note,
        )
        self.controller = ClaimController(
            api,
            self.cache,
            planner,
            self.preemptions,
            quota,
            self.gangs,
            find=self._find,
            leads=lambda: self.leads,
            recorder=self.recorder,
            clock=self.clock,
            limit_s=limit_s,
            on_outcome=self._count,
        )
        for node, cards in api.cards.items():
            self.see_node(node, cards)
        for pod in api.pods.values():
            self.see_pod(pod)
        for claim in api.claims.values():
            self.see_claim(claim)
        api.watchers.append(self)

    def _note(self, uid: str) -> None:
        self.due.append(uid)
        self.controller.note(uid)

    def _count(self, outcome: ClaimOutcome) -> None:
        self.outcomes[outcome] += 1

    def _quotas(self, namespace: str) -> list[ResourceQuota]:
        return [quota for quota in self.api.quotas if quota.namespace == namespace]

    def _find(self, namespace: str, name: str) -> ObservedPod | None:
        pod = self.api.pods.get(name)
        return None if pod is None else decode_observed_pod(msgspec.json.encode(pod))

    def end(self) -> None:
        """The process ends: it sees nothing more."""
        self.api.watchers.remove(self)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the controller."""
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.controller.run(), name="controller")
            await self.clock.advance(0.0)
            yield
            task.cancel()

    async def settle(self) -> None:
        """Do what is due, until nothing is."""
        for _ in range(50):
            if not self.due:
                return
            due, self.due = dict.fromkeys(self.due), []
            for uid in due:
                await self.controller.handle(uid)
        raise AssertionError("it never settles")

    async def look(self) -> None:
        """Look at all pods, as the controller does every few seconds."""
        self.due += self.cache.pods
        await self.settle()

    # -- what is observed ------------------------------------------------------------------------

    def see_node(
        self, name: str, cards: Sequence[Card], *, gone: bool = False, **more: Any
    ) -> None:
        node = a_claiming_node(name, cards)
        node["metadata"]["labels"].update(more.pop("labels", {}))
        node["metadata"]["annotations"].update(more.pop("annotations", {}))
        node["spec"] = more
        body = msgspec.json.encode(node)
        self.cache.node_changed(_change(observe_offered_node(body), node, gone=gone))

    def see_pod(self, pod: Json, *, gone: bool = False) -> None:
        found = decode_observed_pod(msgspec.json.encode(pod))
        self.cache.pod_changed(_change(found, pod, gone=gone))

    def see_claim(self, claim: Json, *, gone: bool = False) -> None:
        self.cache.claim_changed(_change(decoded(claim), claim, gone=gone))

    def see_move(self, move: Move, *, gone: bool = False) -> None:
        body = {"metadata": {"name": move.name}}
        self.cache.move_changed(_change(claims_of(move), body, gone=gone))

    def free_mib(self, node: str) -> list[int]:
        """Return what is free on each card of a node, as the ledger has it."""
        info = self.core.ledger.node(node, now=self.clock.now())
        assert info is not None
        return [card.free_mib for card in info.cards.values()]


def is_bound(pod: Json) -> bool:
    return bool(pod["spec"].get("nodeName"))


def _change(what: Any, body: Json, *, gone: bool) -> Change[Any]:
    meta = body["metadata"]
    return Change(
        type=ChangeType.DELETED if gone else ChangeType.MODIFIED,
        key=ObjectKey(meta.get("namespace", ""), meta["name"]),
        uid=meta.get("uid", ""),
        resource_version="",
        object=what,
    )


def an_api(
    nodes: int = 5, *, cards: int = 1, mib: int = 8_000, limited: Collection[str] = ()
) -> ClaimsApi:
    api = ClaimsApi()
    api.cards = {
        name: some_cards(name, count=cards, mib=mib, limited=name in limited)
        for name in (f"n{at}" for at in range(1, nodes + 1))
    }
    return api


def a_pod(name: str, mib: int = 6_000, **more: Any) -> Json:
    """Return a pod whose claim has a name that follows from its own."""
    return a_claiming_pod(name, mib, claim=claim_name(name), **more)


def owned(pod: Json, uid: str = "rs") -> Json:
    """Return a pod with the ReplicaSet of this UID as its controller."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": uid}
    pod["metadata"]["ownerReferences"] = [owner | {"controller": True}]
    return pod


def claim_of(api: ClaimsApi, pod: str) -> DeviceClaim:
    """Return a pod's claim as it is stored."""
    return decoded(api.claims[claim_name(pod)])
