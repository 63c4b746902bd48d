"""Bind: choose the cards, assume them, and write node and cards in one Binding.

The API server stores both or neither. A 409 means that the pod has changed, so it is read and
checked again; a write without an answer is left to :mod:`scheduler.cache.assumptions`. Before the
Binding is sent the Lease names its pod, for the next leader (:mod:`scheduler.binding_record`). A
pod for which a Move holds a card of the node gets just that card, and the name of the Move. Each
Binding has the term of our leadership, which an admission policy compares with the Lease; an API
server that has not seen our term yet denies it, and the Binding is sent again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog

from fracgpu import names
from fracgpu.placement.outcome import NoPlacement
from fracgpu.placement.placement import (
    CardSelector,
    HostLeft,
    cards_without_host,
    reservations_for,
)
from fracgpu.request.need import PodNeed
from fracgpu.state.allocation import Assignment, write_assignment
from fracgpu.state.pod_info import PodInfo
from kube.errors import Conflict, Forbidden, Invalid, KubeError, NotFound, Unavailable
from kube.leader_election import LeaseLost
from process.clock import Clock
from scheduler.cache.assumptions import Assumptions, PodReader, read_now
from scheduler.extender.api import BindingArgs
from scheduler.extender.bind_groups import BindGroups
from scheduler.metrics import BindOutcome, SchedulerMetrics

log = structlog.get_logger()

# kube-scheduler patches the pod's status between our read and our write, once for each attempt. If
# a pod changes more often than this, another writer is fighting over it.
_MOST_TRIES: Final = 3

# Pauses between attempts of a Binding that the policy denies: an API server sees a new term within
# some milliseconds, or later if overloaded. Their sum is below the default timeout of one write.
_TERM_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


class PodBinder(PodReader, Protocol):
    """What binding needs of the API server."""

    async def bind(self, binding: Mapping[str, Any], *, namespace: str, name: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BindRefusal:
    """Why a pod was not bound: the text of kube-scheduler's Event, and the metric's label."""

    reason: str
    outcome: BindOutcome = BindOutcome.REFUSED


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """The cards of a pod, and the Move whose reservation they consume, if any."""

    assignment: Assignment
    move: str = ""


class _NotLeading(Exception):  # noqa: N818 - an answer, not a mistake
    """Another replica may lead now."""


class _Conflicted:
    """The pod has changed since it was read."""


class Binder:
    """Carries out bind requests.

    Args:
        api: reads and binds pods.
        cards: selects the cards of a pod on its node.
        assumptions: hold the placements that are being written.
        find: returns the informer's copy of a pod by namespace and name, or None.
        leads: whether this replica may still write.
        term: returns the term of this leadership.
        record: writes to the Lease which pods are assumed by then.
        clock: the time at which cordons and assumptions are evaluated.
        metrics: count the outcomes.
        limit_s: timeout of one request to the API server.
        host_left: what no other pod has requested of a node's CPU and memory.
        groups: when each Binding may be written; at once without them.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each collaborator
        self,
        api: PodBinder,
        *,
        cards: CardSelector,
        assumptions: Assumptions,
        find: Callable[[str, str], PodInfo | None],
        leads: Callable[[], bool],
        term: Callable[[], str],
        record: Callable[[], Awaitable[None]],
        clock: Clock,
        metrics: SchedulerMetrics,
        limit_s: float,
        host_left: HostLeft = lambda *_: None,
        groups: BindGroups | None = None,
    ) -> None:
        self._host_left = host_left
        self._groups = groups or BindGroups(clock, pause_s=0.0)
        self._api = api
        self._cards = cards
        self._ledger = cards.ledger
        self._assumptions = assumptions
        self._find = find
        self._leads = leads
        self._term = term
        self._record = record
        self._clock = clock
        self._metrics = metrics
        self._limit_s = limit_s
        self._under_way: set[str] = set()

    async def bind(self, args: BindingArgs) -> str:
        """Bind a pod; return an empty string, or the reason why the pod is not bound."""
        if args.uid in self._under_way:
            return f"another Binding of pod {args.pod} is in progress"
        self._under_way.add(args.uid)
        try:
            refusal = await self._bind(args)
        finally:
            self._under_way.discard(args.uid)
        if refusal is None:
            self._metrics.bind(BindOutcome.BOUND)
            return ""
        self._metrics.bind(refusal.outcome)
        log.warning(
            "bind_refused",
            pod=args.pod,
            node=args.node,
            outcome=refusal.outcome.value,
            reason=refusal.reason,
        )
        return refusal.reason

    async def _bind(self, args: BindingArgs) -> BindRefusal | None:
        found = await self._known(args)
        if isinstance(found, BindRefusal):
            return found
        if self._is_done(found, args):
            return None
        pod, asked = found, found.need
        for _ in range(_MOST_TRIES):
            refusal = self._judge(pod, args, asked=asked)
            if refusal is not None:
                return refusal
            outcome = await self._try(pod, args)
            if not isinstance(outcome, _Conflicted):
                return outcome
            found = await self._read(args)
            # Not before: while the pod is read, its cards are nobody else's.
            self._assumptions.forget(args.uid)
            if isinstance(found, BindRefusal):
                return found
            pod = found
            if self._is_done(pod, args):
                return None
        return BindRefusal(reason=f"pod {args.pod} keeps changing", outcome=BindOutcome.CONFLICT)

    def _judge(
        self, pod: PodInfo, args: BindingArgs, *, asked: PodNeed | None
    ) -> BindRefusal | None:
        record = pod.record
        reason = ""
        if record.uid != args.uid:
            reason = f"pod {args.pod} was replaced by another pod of the same name"
        elif record.terminating:
            reason = f"pod {args.pod} is being deleted"
        elif record.node:
            self._assumptions.count_bound(pod)
            reason = f"pod {args.pod} is bound to node {record.node} already"
        elif not record.live:
            reason = f"pod {args.pod} has ended"
        elif pod.need_problem:
            reason = pod.need_problem
        elif pod.need != asked:
            reason = f"the request of pod {args.pod} has changed since it was filtered"
        return BindRefusal(reason=reason) if reason else None

    async def _try(self, pod: PodInfo, args: BindingArgs) -> BindRefusal | _Conflicted | None:
        chosen: _Chosen | None = None
        if pod.need is not None:
            choice = self._choose(pod, args)
            if isinstance(choice, BindRefusal):
                return choice
            chosen = choice
            # There must be no await since the choice, or another bind could choose the same MiB.
            self._assumptions.count(
                pod.record,
                node=args.node,
                assignment=chosen.assignment,
                move=chosen.move,
                host=pod.host,
            )
        await self._groups.turn()
        if chosen is not None and (refusal := await self._recorded(args)) is not None:
            return refusal
        return await self._write(pod, args, chosen)

    async def _recorded(self, args: BindingArgs) -> BindRefusal | None:
        """Have the Lease name the pod, which is assumed; return why it may not be bound, if so."""
        try:
            await self._record()
        except LeaseLost:
            self._assumptions.forget(args.uid)
            return BindRefusal(reason="this replica no longer leads")
        except (KubeError, TimeoutError) as error:
            self._assumptions.forget(args.uid)
            why = str(error) or "no answer"
            reason = f"the Lease could not be written, so pod {args.pod} is not bound: {why}"
            return BindRefusal(reason=reason, outcome=BindOutcome.FAILED)
        return None

    async def _known(self, args: BindingArgs) -> PodInfo | BindRefusal:
        """Return the pod, once no earlier Binding of it can take effect any more."""
        try:
            # Either of two Bindings in flight could take effect, but only one is counted.
            found = await self._assumptions.void(args.uid)
        except (KubeError, TimeoutError, ValueError) as error:
            why = str(error) or type(error).__name__
            reason = f"cannot tell if an earlier Binding of pod {args.pod} will take effect: {why}"
            return BindRefusal(reason=reason, outcome=BindOutcome.UNKNOWN)
        found = found or self._find(args.namespace, args.name)
        if found is None or found.record.uid != args.uid:
            return await self._read(args)
        return found

    def _choose(self, pod: PodInfo, args: BindingArgs) -> _Chosen | BindRefusal:
        answer = self._cards.on_node(pod, args.node)
        if answer is None:
            return BindRefusal(reason=f"node {args.node} is not known to the extender")
        if isinstance(answer, NoPlacement):
            return BindRefusal(reason=f"no room on node {args.node} any more: {answer.text}")
        if not answer.held:
            now, left = self._clock.now(), self._host_left
            kept = cards_without_host(self._ledger, pod, host_left=left, now=now)
            if args.node in kept.values():
                # Another pod has been bound there since this one was filtered.
                reason = f"CPU or memory of node {args.node} is kept for a pod that waits for it"
                return BindRefusal(reason=reason)
            self._give_up(pod, args)
        return _Chosen(assignment=answer.placement.assignment, move=answer.move)

    def _give_up(self, pod: PodInfo, args: BindingArgs) -> None:
        """Count and log what stays held for a pod that goes elsewhere; the rebalancer ends it."""
        for reservation in reservations_for(self._ledger, pod, now=self._clock.now()):
            self._metrics.gave_up_reservation()
            log.warning(
                "reservation_given_up",
                pod=args.pod,
                node=args.node,
                move=reservation.move,
                reserved_node=reservation.node,
                reserved_card=reservation.card,
            )

    async def _write(
        self, pod: PodInfo, args: BindingArgs, chosen: _Chosen | None
    ) -> BindRefusal | _Conflicted | None:
        written = None if chosen is None else write_assignment(chosen.assignment)
        move = "" if chosen is None else chosen.move
        binding = _binding(pod, args, written, term=self._term(), move=move)
        try:
            async with asyncio.timeout(self._limit_s):
                await self._send(binding, args)
        except _NotLeading:
            self._assumptions.forget(args.uid)
            return BindRefusal(reason="this replica no longer leads")
        except Conflict:
            return _Conflicted()
        except NotFound:
            self._assumptions.forget(args.uid)
            return BindRefusal(reason=f"pod {args.pod} is gone")
        except (Unavailable, TimeoutError) as error:
            why = str(error) or f"no answer within {self._limit_s} s"
            reason = f"the API server did not say whether pod {args.pod} is bound: {why}"
            return BindRefusal(reason=reason, outcome=BindOutcome.UNKNOWN)
        except KubeError as error:
            self._assumptions.forget(args.uid)
            fenced = _is_of_another_term(error)
            outcome = BindOutcome.FENCED if fenced else BindOutcome.FAILED
            return BindRefusal(reason=str(error), outcome=outcome)
        log.info(
            "pod_bound",
            pod=args.pod,
            uid=args.uid,
            node=args.node,
            assignment=written,
            **({"move": move} if move else {}),
        )
        return None

    async def _send(self, binding: Mapping[str, Any], args: BindingArgs) -> None:
        """Send a Binding; retry after a pause if the API server knows only an older term."""
        for pause_s in (*_TERM_PAUSES_S, None):
            if not self._leads():
                raise _NotLeading
            try:
                await self._api.bind(binding, namespace=args.namespace, name=args.name)
            except (Forbidden, Invalid) as error:
                if pause_s is None or not _is_of_another_term(error):
                    raise
                log.info("term_not_known_yet", pod=args.pod, pause_s=pause_s)
                await self._clock.sleep(pause_s)
            else:
                return

    async def _read(self, args: BindingArgs) -> PodInfo | BindRefusal:
        try:
            pod = await read_now(self._api, args.namespace, args.name, limit_s=self._limit_s)
        except (KubeError, TimeoutError, ValueError) as error:
            reason = f"cannot read pod {args.pod}: {str(error) or type(error).__name__}"
            return BindRefusal(reason=reason, outcome=BindOutcome.FAILED)
        return BindRefusal(reason=f"pod {args.pod} is gone") if pod is None else pod

    def _is_done(self, pod: PodInfo, args: BindingArgs) -> bool:
        """Report whether an earlier request, whose answer was lost, already bound the pod there."""
        record = pod.record
        if record.uid != args.uid or record.node != args.node:
            return False
        if pod.need is not None and record.assignment is None:
            return False
        self._assumptions.count_bound(pod)
        log.info("pod_found_bound", pod=args.pod, uid=args.uid, node=args.node)
        return True


def _is_of_another_term(error: KubeError) -> bool:
    """Report whether *error* is a denial by the policy that compares terms, which it names.

    The status is 403 if the terms differ, and 422 if there is no Lease yet. Source:
    staging/src/k8s.io/apiserver/pkg/admission/plugin/policy/validating/dispatcher.go, where a
    denial without a reason is Invalid.
    """
    return isinstance(error, Forbidden | Invalid) and f"'{names.TERM_POLICY}'" in error.message


def _binding(
    pod: PodInfo, args: BindingArgs, written: str | None, *, term: str, move: str
) -> Mapping[str, Any]:
    """Return the Binding; its UID and resourceVersion are preconditions on the pod.

    Source: pkg/registry/core/pod/storage setPodNodeAndMetadata, which also copies the annotations.
    """
    metadata: dict[str, Any] = {"uid": args.uid}
    if written is not None:
        metadata["resourceVersion"] = pod.record.resource_version
        metadata["annotations"] = {names.ASSIGNMENT: written, names.TERM: term}
        if move:
            metadata["annotations"][names.MOVE] = move
        metadata["labels"] = {names.ASSIGNED_LABEL: "true"}
    target = {"apiVersion": "v1", "kind": "Node", "name": args.node}
    return {"metadata": metadata, "target": target}
