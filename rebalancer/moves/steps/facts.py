"""What the next step of a move depends on besides its record: facts, without decisions."""

from dataclasses import dataclass
from typing import Final

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.candidates.move_mode import RELEASED_SUFFIX

# A ReplicaSet with too many pods deletes those with the lowest cost first.
# Source: kubernetes.io/docs/concepts/workloads/controllers/replicaset (Pod deletion cost).
DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
LOWEST_COST: Final = str(-(2**31))


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimFacts:
    """The pod that is moved, as the API server shows it now.

    Attributes:
        there: the very pod exists, is not terminating and has not ended.
        why_gone: why it is not there; empty if it is.
        running: its phase is Running. A pending pod bypasses every disruption budget.
        controller_uid: of its controller; empty for a pod without one.
        hash_label: its label ``pod-template-hash``; empty without one.
        moved_by: the Move that its annotation names; empty without one.
        notice: the time in its annotation by which it is told of the move; empty without one.
        version: its resourceVersion.
    """

    there: bool
    why_gone: str = ""
    running: bool = False
    controller_uid: str = ""
    hash_label: str = ""
    moved_by: str = ""
    notice: str = ""
    version: str = ""

    @property
    def released(self) -> bool:
        """Whether its label was changed so that its ReplicaSet lets it go."""
        return self.hash_label.endswith(RELEASED_SUFFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacementFacts:
    """The pod that takes the place of the moved one.

    Attributes:
        node: where it is bound; empty while it is pending.
        card: the card of its assignment; None without a readable one.
        by_reservation: it carries the name of the Move, so it consumed the reservation.
        stuck: why its container cannot start whatever the time, such as an image that cannot be
            pulled; empty if nothing is known to be wrong.
        demoted: it is marked as the pod that its ReplicaSet should delete first.
        version: its resourceVersion.
    """

    name: str
    uid: str
    node: str = ""
    card: CardUuid | None = None
    ready: bool = False
    by_reservation: bool = False
    stuck: str = ""
    demoted: bool = False
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerFacts:
    """The controller of the moved pod.

    Attributes:
        there: the very controller exists and is not being deleted.
        observed: its status is of its current spec.
        desired: how many pods it should have.
        ready: how many of its pods are Ready, by its own status.
        current: it is what its Deployment wants now; false during a rollout to another one.
        failure: why it could not create a pod; empty if it could.
        selects_by: the value of ``pod-template-hash`` that it selects its pods by; empty if it does
            not select by this label.
        orphans: it left pods without a controller behind, as ``--cascade=orphan`` does.
    """

    there: bool
    observed: bool = False
    desired: int = 0
    ready: int = 0
    current: bool = True
    failure: str = ""
    selects_by: str = ""
    orphans: bool = False

    @property
    def satisfied(self) -> bool:
        """Whether all the pods that it should have are Ready."""
        return self.there and self.observed and self.ready >= self.desired


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveFacts:
    """Everything about one move that the API server shows now.

    Attributes:
        replacement: None while no pod takes the place of the victim.
        target_problem: why no pod can start on the target's node now; empty if one can.
    """

    victim: VictimFacts
    owner: OwnerFacts
    replacement: ReplacementFacts | None = None
    target_problem: str = ""
