"""A recorded pod in a replay, and the object that the API server would have shown of it.

Who owns a pod was not recorded: a name as that of a Deployment's replica counts as one, and every
other pod is left where it is.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from fracgpu import names
from fracgpu.cards.card import CardUuid
from simulator.usage_replay.recording import RecordedCard, RecordedPod

# The suffixes that a Deployment's ReplicaSet and its pods get: k8s.io/apimachinery
# pkg/util/rand/rand.go, SafeEncodeString and String.
_REPLICA: Final = re.compile(
    r"(.+-[bcdfghjklmnpqrstvwxz2456789]{4,10})-[bcdfghjklmnpqrstvwxz2456789]{5}"
)


@dataclass(slots=True, kw_only=True)
class ReplayedPod:
    """One recorded pod: its present incarnation and where the replay has it.

    Attributes:
        uid: of the present incarnation.
        cards: its card now, by the card that was recorded.
        down_until: its replacement starts until then.
    """

    recorded: RecordedPod
    uid: str
    cards: dict[CardUuid, CardUuid]
    started_at: datetime
    down_until: datetime | None = None
    moved: int = 0


def pod_body(pod: ReplayedPod, cards: Mapping[CardUuid, RecordedCard]) -> bytes:
    """Return the pod as the API server would have shown it, as far as it was recorded."""
    recorded = pod.recorded
    replica = _REPLICA.fullmatch(recorded.name)
    owner = replica.group(1) if replica else ""
    slices = [{"card": pod.cards[card], "mib": mib} for card, mib in sorted(recorded.mib.items())]
    amounts = {names.GPU_MEM: str(sum(recorded.mib.values())), names.GPU_SLOT: str(len(slices))}
    metadata: dict[str, Any] = {
        "name": recorded.name,
        "namespace": recorded.namespace,
        "uid": pod.uid,
        "annotations": {names.ASSIGNMENT: json.dumps({"main": slices})},
    }
    if owner:
        uid = f"{recorded.namespace}/{owner}"
        reference = {"kind": "ReplicaSet", "name": owner, "uid": uid, "controller": True}
        metadata["ownerReferences"] = [reference]
        metadata["labels"] = {"pod-template-hash": owner.rpartition("-")[2]}
    body = {
        "metadata": metadata,
        "spec": {
            "nodeName": cards[next(iter(pod.cards.values()))].node,
            "schedulerName": names.SCHEDULER_NAME,
            "containers": [{"name": "main", "resources": {"limits": amounts, "requests": amounts}}],
        },
        "status": {
            "phase": "Running",
            "startTime": f"{pod.started_at:%Y-%m-%dT%H:%M:%SZ}",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    return json.dumps(body).encode()
