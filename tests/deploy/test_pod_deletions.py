"""deploy/policies.yaml: what the node agent may delete, evaluated rule by rule."""

from typing import Any

import pytest

from fracgpu.state.rejected_pod import REJECTION_REASONS
from tests.support.policies import ADMIN, agent_of, policy, refusals

Json = dict[str, Any]

SAID = (
    "The FracGPU node agent may delete only pods of the node it runs on that ask for a card, that "
    "kubelet rejected before any container started, and that have a controller."
)
SLOT = {"resources": {"limits": {"fracgpu.io/gpu-slot": "1"}}}


def a_pod(**changes: Any) -> Json:
    fields: Json = {
        "node": "n1",
        "phase": "Failed",
        "reason": "UnexpectedAdmissionError",
        "owners": [{"kind": "ReplicaSet", "controller": True}],
        "containers": [SLOT],
        **changes,
    }
    metadata: Json = {
        "name": "p",
        "namespace": "ml",
        "annotations": {"fracgpu.io/assignment": "{}", **fields.get("annotations", {})},
    }
    if fields["owners"]:
        metadata["ownerReferences"] = fields["owners"]
    return {
        "metadata": metadata,
        "spec": {"nodeName": fields["node"], "containers": fields["containers"]},
        "status": {"phase": fields["phase"], "reason": fields["reason"]},
    }


@pytest.mark.parametrize("reason", REJECTION_REASONS)
def test_the_agent_may_delete_a_rejected_pod_of_its_own_node_that_has_an_owner(
    reason: str,
) -> None:
    pod = a_pod(reason=reason)

    assert refusals("fracgpu-pod-deletions", None, old=pod, sender=agent_of("n1")) == []


@pytest.mark.parametrize(
    "pod",
    [
        a_pod(owners=[]),
        a_pod(owners=[{"kind": "Node"}]),
        a_pod(phase="Running"),
        a_pod(phase="Succeeded"),
        a_pod(reason="Evicted"),
        a_pod(node="n2"),
        a_pod(containers=[{}]),
        a_pod(annotations={"fracgpu.io/wired": "{}"}),
        {**a_pod(), "status": {}},
    ],
    ids=[
        "bare",
        "no controller",
        "running",
        "succeeded",
        "evicted",
        "other node",
        "asks nothing",
        "was started",
        "new",
    ],
)
def test_and_no_other_pod(pod: Json) -> None:
    assert refusals("fracgpu-pod-deletions", None, old=pod, sender=agent_of("n1")) == [SAID]


def test_a_token_that_tells_no_node_deletes_nothing() -> None:
    assert refusals("fracgpu-pod-deletions", None, old=a_pod(), sender=agent_of("")) == [SAID]


def test_everybody_elses_deletions_are_not_looked_at() -> None:
    pod = a_pod(owners=[], phase="Running")

    assert refusals("fracgpu-pod-deletions", None, old=pod, sender=ADMIN) == []
    (rule,) = policy("fracgpu-pod-deletions")["matchConstraints"]["resourceRules"]
    assert rule["operations"] == ["DELETE"]
