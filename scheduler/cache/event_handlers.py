"""Applies watch events to the cache: the only module that adds observed objects."""

from collections.abc import Callable, Container

import structlog

from fracgpu import names
from fracgpu.cards.card import NodeCards
from fracgpu.state.bound_pod import BoundPod, decode_bound_pod
from fracgpu.state.bound_pod_index import BoundPodIndex
from fracgpu.state.ledger import Ledger
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from fracgpu.state.reservation import MoveClaims
from kube.informer import Change, ChangeType
from kube.objects import ObjectKey
from scheduler.cache.change_signal import ChangeSignal
from scheduler.cache.nominations import Nominations

log = structlog.get_logger()

# A bound pod is stored in a compact form; a pending one with its whole request.
AnyPod = BoundPod | PodInfo


def decode_any_pod(body: bytes) -> AnyPod:
    """Decode a pod for an informer.

    Raises:
        WireError: the body is no pod.
    """
    return decode_bound_pod(body) or decode_pod_info(body)


class ClusterEventHandlers:
    """Writes each change into the ledger and the bound pod index, then notifies waiters.

    Args:
        ledger: records which cards are held.
        changes: notified after each change.
        bound_pods: index of bound pods.
        nominations: of the pending pods.
        on_new: called with each pod that is seen bound for the first time.
        on_gone: called with each pod that was bound and is no more.
        on_refused: called with each change of a pod for which kube-scheduler has found no node.
        on_gang_pod: called with each change of a pod of a gang, once it is counted.
        in_gangs: the UIDs of further pods with whose changes it is called.
        on_unreadable: called with an annotation and the number of pods or nodes on which it is
            unreadable, each time that number changes.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each collaborator
        self,
        ledger: Ledger,
        changes: ChangeSignal,
        bound_pods: BoundPodIndex,
        *,
        nominations: Nominations,
        on_new: Callable[[BoundPod], None] = lambda _: None,
        on_gone: Callable[[BoundPod], None] = lambda _: None,
        on_refused: Callable[[PodInfo], None] = lambda _: None,
        on_gang_pod: Callable[[Change[AnyPod]], None] = lambda _: None,
        in_gangs: Container[str] = (),
        on_unreadable: Callable[[str, int], None] = lambda *_: None,
    ) -> None:
        self._ledger = ledger
        self._changes = changes
        self._bound_pods = bound_pods
        self._nominations = nominations
        self._on_new = on_new
        self._on_gone = on_gone
        self._on_refused = on_refused
        self._on_gang_pod = on_gang_pod
        self._in_gangs = in_gangs
        self._on_unreadable = on_unreadable
        self._unreadable: dict[str, dict[str, str]] = {}

    def pod_changed(self, change: Change[AnyPod]) -> None:
        pod = change.object
        gone = change.type is ChangeType.DELETED
        problem = pod.problem if isinstance(pod, BoundPod) and not gone else ""
        self._note(names.ASSIGNMENT, change.uid, of=change.key, problem=problem)
        if change.type is ChangeType.DELETED:
            self._ledger.remove_pod(change.uid)
            self._nominations.forget(change.uid)
            bound = self._bound_pods.remove(change.uid)
            if bound is not None:
                self._on_gone(bound)
        elif isinstance(pod, BoundPod):
            self._ledger.observe(pod.allocation)
            self._nominations.forget(change.uid)
            if self._bound_pods.put(pod):
                self._on_new(pod)
        else:
            self._ledger.set_pod(pod.record)
            self._nominations.see(pod)
            if pod.unschedulable_since is not None:
                self._on_refused(pod)
        if pod.in_gang or change.uid in self._in_gangs:
            self._on_gang_pod(change)
        self._changes.notify(change.uid)

    def node_changed(self, change: Change[NodeCards]) -> None:
        gone = change.type is ChangeType.DELETED
        for key in {*self._unreadable, *change.object.unreadable} - {names.ASSIGNMENT}:
            problem = "" if gone else change.object.unreadable.get(key, "")
            self._note(key, change.uid, of=change.key, problem=problem)
        if change.type is ChangeType.DELETED:
            self._ledger.remove_node(change.key.name)
        else:
            self._ledger.set_node(change.object)
        self._changes.notify()

    def move_changed(self, change: Change[MoveClaims]) -> None:
        """Record what a Move reserves; one that cannot be read keeps its whole target."""
        gone = change.type is ChangeType.DELETED
        claims = change.object
        if gone:
            self._ledger.remove_move(claims.move)
        else:
            self._ledger.set_claims(claims)
            if claims.problem:
                log.error(
                    "move_unreadable",
                    move=claims.move,
                    problem=claims.problem,
                    counts_as="full" if claims.reservation else "nothing",
                )
        self._changes.notify()

    def _note(self, annotation: str, uid: str, *, of: ObjectKey, problem: str) -> None:
        """Track which objects have an unreadable annotation, and log each once."""
        known = self._unreadable.setdefault(annotation, {})
        if known.get(uid, "") == problem:
            return
        if problem:
            known[uid] = problem
            log.error("annotation_unreadable", of=str(of), problem=problem, counts_as="full")
        else:
            del known[uid]
            log.info("annotation_readable_again", of=str(of), annotation=annotation)
        self._on_unreadable(annotation, len(known))
