"""deploy/policies.yaml: only a node's own agent writes its cards, evaluated rule by rule."""

from typing import Any

import pytest

from fracgpu import names
from tests.support.policies import ADMIN, REBALANCER, Sender, agent_of, kubelet_of, refusals

Json = dict[str, Any]

OWN_NODE = (
    "The FracGPU node agent may change only the node it runs on, and its token must say which node "
    "that is."
)
OWN_KEYS = (
    "The FracGPU node agent may change only its own annotations of a node and the labels "
    "fracgpu.io/card-*, fracgpu.io/isolation-* and fracgpu.io/driver, and take the taint off by "
    "which a node starts."
)
OWN_AMOUNTS = (
    "The FracGPU node agent may change only the amounts of fracgpu.io/gpu-mem and "
    "fracgpu.io/gpu-count in a node's status, and the condition FracGPUSharing."
)
NODE_NOTES = (
    "The fracgpu.io annotations of a node are written only by the FracGPU agent of that node; "
    "others may remove them once the node does not carry fracgpu.io/share=true."
)
CORDONS = (
    "The annotation fracgpu.io/cordons is written only by the FracGPU rebalancer; others may "
    "remove it once the node does not carry fracgpu.io/share=true."
)
NODE_LABELS = (
    "The labels fracgpu.io/card-* and fracgpu.io/driver of a node are written only by the FracGPU "
    "agent of that node; others may remove them once it does not carry fracgpu.io/share=true."
)
CAPACITY = (
    "The capacity fracgpu.io/gpu-mem and fracgpu.io/gpu-count of a node is written only by the "
    "FracGPU agent of that node; others may only set it to zero or remove it."
)
ALLOCATABLE = (
    "The allocatable fracgpu.io/gpu-mem and fracgpu.io/gpu-count of a node are its capacity or "
    "zero."
)

SHARED: Json = {
    "metadata": {
        "name": "n1",
        "annotations": {
            "fracgpu.io/cards": "[]",
            "fracgpu.io/heat": '{"GPU-1":0.9}',
            "fracgpu.io/foreign": '{"GPU-1":512}',
            "fracgpu.io/cordons": "{}",
            "other": "x",
        },
        "labels": {
            "fracgpu.io/share": "true",
            "fracgpu.io/card-model": "A10",
            "fracgpu.io/driver": "570",
        },
    },
    "status": {
        "capacity": {"cpu": "8", "fracgpu.io/gpu-mem": "80k", "fracgpu.io/gpu-count": "2"},
        "allocatable": {"cpu": "8", "fracgpu.io/gpu-mem": "80k", "fracgpu.io/gpu-count": "2"},
    },
}


def changed(path: tuple[str, str], key: str, value: str | None) -> Json:
    """Return the node with one value set or removed."""
    top, middle = path
    inner = dict(SHARED[top][middle])
    if value is None:
        del inner[key]
    else:
        inner[key] = value
    return {**SHARED, top: {**SHARED[top], middle: inner}}


NOTES, LABELS = ("metadata", "annotations"), ("metadata", "labels")
IN_CAPACITY, IN_ALLOCATABLE = ("status", "capacity"), ("status", "allocatable")


@pytest.mark.parametrize(
    ("path", "key", "value", "said"),
    [
        (NOTES, "fracgpu.io/cards", '["forged"]', NODE_NOTES),
        (NOTES, "fracgpu.io/cards", None, NODE_NOTES),
        (NOTES, "fracgpu.io/heat", '{"GPU-1":0.1}', NODE_NOTES),
        (NOTES, "fracgpu.io/heat", None, NODE_NOTES),
        (NOTES, "fracgpu.io/foreign", "{}", NODE_NOTES),
        (NOTES, "fracgpu.io/foreign", None, NODE_NOTES),
        (NOTES, "fracgpu.io/new", "x", NODE_NOTES),
        (NOTES, "fracgpu.io/cordons", '{"GPU-1":{}}', CORDONS),
        (NOTES, "fracgpu.io/cordons", None, CORDONS),
        (LABELS, "fracgpu.io/card-model", "H100", NODE_LABELS),
        (LABELS, "fracgpu.io/card-class-99", "1", NODE_LABELS),
        (LABELS, "fracgpu.io/driver", None, NODE_LABELS),
        (IN_CAPACITY, "fracgpu.io/gpu-mem", "81k", CAPACITY),
        (IN_CAPACITY, "fracgpu.io/gpu-count", "3", CAPACITY),
        (IN_ALLOCATABLE, "fracgpu.io/gpu-mem", "81k", ALLOCATABLE),
    ],
)
@pytest.mark.parametrize("sender", [ADMIN, kubelet_of("n1")], ids=lambda sender: sender.username)
def test_nobody_but_its_agent_says_what_cards_a_node_has(
    path: tuple[str, str], key: str, value: str | None, said: str, sender: Sender
) -> None:
    new = changed(path, key, value)

    assert said in refusals("fracgpu-nodes", new, old=SHARED, sender=sender)
    own = [] if said != CORDONS else [CORDONS]
    assert refusals("fracgpu-nodes", new, old=SHARED, sender=agent_of("n1")) == own


@pytest.mark.parametrize(
    ("path", "key", "value"),
    [
        (NOTES, "other", "y"),
        (NOTES, names.NODE_OUT_OF_SERVICE, "GPU-1"),
        (NOTES, names.NODE_DRAIN, "GPU-1"),
        (LABELS, "fracgpu.io/card-class", "a10-24gb"),
        (LABELS, "fracgpu.io/card-memory", "22000"),
        (LABELS, "fracgpu.io/card-count", "2"),
        *((LABELS, key, "true") for key in names.ISOLATION_LABELS),
        (LABELS, "fracgpu.io/share", "false"),
        (LABELS, "fracgpu.io/share", None),
        (LABELS, "zone", "a"),
        (IN_CAPACITY, "cpu", "9"),
        (IN_CAPACITY, "fracgpu.io/gpu-mem", "80k"),
        (IN_CAPACITY, "nvidia.com/gpu", "2"),
        (IN_ALLOCATABLE, "cpu", "7"),
        (IN_ALLOCATABLE, "fracgpu.io/gpu-mem", "0"),
        (IN_ALLOCATABLE, "fracgpu.io/gpu-mem", None),
    ],
)
def test_kubelet_and_administrators_go_on_with_their_own_work(
    path: tuple[str, str], key: str, value: str | None
) -> None:
    for sender in (ADMIN, kubelet_of("n1")):
        assert refusals("fracgpu-nodes", changed(path, key, value), old=SHARED, sender=sender) == []


@pytest.mark.parametrize(
    ("path", "key", "value", "said"),
    [
        (NOTES, "other", "y", OWN_KEYS),
        (NOTES, names.NODE_OUT_OF_SERVICE, "GPU-1", OWN_KEYS),
        (NOTES, names.NODE_DRAIN, "GPU-1", OWN_KEYS),
        (LABELS, "node-role.kubernetes.io/control-plane", "", OWN_KEYS),
        (LABELS, "fracgpu.io/share", None, OWN_KEYS),
        (("spec", "x"), "unschedulable", "x", OWN_KEYS),
        (IN_CAPACITY, "cpu", "9", OWN_AMOUNTS),
        (IN_CAPACITY, "cpu", None, OWN_AMOUNTS),
        (IN_ALLOCATABLE, "cpu", "9", OWN_AMOUNTS),
        (IN_CAPACITY, "fracgpu.io/gpu-slot", "9", OWN_AMOUNTS),
    ],
)
def test_the_agent_changes_nothing_of_its_node_that_is_not_the_agents(
    path: tuple[str, str], key: str, value: str | None, said: str
) -> None:
    new = {**SHARED, "spec": {key: True}} if path[0] == "spec" else changed(path, key, value)

    assert refusals("fracgpu-nodes", new, old=SHARED, sender=agent_of("n1")) == [said]


UNSHARED: Json = {
    "metadata": {"name": "n1", "annotations": {"other": "x"}, "labels": {}},
    "status": {"capacity": {"cpu": "8"}, "allocatable": {"cpu": "8"}},
}


@pytest.mark.parametrize("sender", [ADMIN, agent_of("n1")], ids=lambda sender: sender.username)
def test_an_administrator_and_the_agent_clean_up_a_node_that_no_longer_shares(
    sender: Sender,
) -> None:
    labels = {
        key: value for key, value in SHARED["metadata"]["labels"].items() if "share" not in key
    }
    without = {**SHARED, "metadata": {**SHARED["metadata"], "labels": labels}}

    assert refusals("fracgpu-nodes", UNSHARED, old=without, sender=sender) == []
    # In one write with the label too, and if the label has another value: not the agent's.
    ends = [] if sender == ADMIN else [OWN_KEYS]
    assert refusals("fracgpu-nodes", without, old=SHARED, sender=sender) == ends
    assert refusals("fracgpu-nodes", UNSHARED, old=SHARED, sender=sender) == ends
    no = {**UNSHARED["metadata"], "labels": {"fracgpu.io/share": "false"}}
    unshared = {**UNSHARED, "metadata": no}
    assert refusals("fracgpu-nodes", unshared, old=SHARED, sender=sender) == ends


def test_cleaning_up_is_not_forging() -> None:
    forged = {
        "metadata": {
            "name": "n1",
            "annotations": {"fracgpu.io/cards": "[1]", "fracgpu.io/cordons": "{1}"},
            "labels": {"fracgpu.io/card-model": "H100"},
        },
        "status": {"capacity": {"fracgpu.io/gpu-mem": "81k"}},
    }

    assert refusals("fracgpu-nodes", forged, old=SHARED, sender=ADMIN) == [
        NODE_NOTES,
        CORDONS,
        NODE_LABELS,
        CAPACITY,
    ]


def test_kubelet_copies_capacity_to_allocatable_and_zeroes_both_on_a_recreated_node() -> None:
    def status(capacity: str, allocatable: str) -> Json:
        amounts = {
            "capacity": {"fracgpu.io/gpu-mem": capacity},
            "allocatable": {"fracgpu.io/gpu-mem": allocatable},
        }
        return {"metadata": {"name": "n1"}, "status": amounts}

    def kubelet(new: Json, old: Json) -> list[str]:
        return refusals("fracgpu-nodes", new, old=old, sender=kubelet_of("n1"))

    assert kubelet(status("80k", "80k"), status("80k", "0")) == []
    assert kubelet(status("0", "0"), status("80k", "80k")) == []
    assert kubelet(status("80k", "80k"), status("0", "0")) == [CAPACITY]


def test_a_node_registers_without_cards_and_cannot_bring_any() -> None:
    def registered(node: Json) -> list[str]:
        return refusals("fracgpu-nodes", node, sender=kubelet_of("n1"))

    def labelled(**labels: str) -> Json:
        prefixed = {f"fracgpu.io/{key}": value for key, value in labels.items()}
        return {"metadata": {"name": "n1", "labels": prefixed}}

    # As with ``--node-labels``, which Kubernetes' own NodeRestriction lets pass.
    assert registered(labelled(share="true")) == []
    assert registered(labelled(share="true", **{"card-model": "H100"})) == [NODE_LABELS]
    assert registered(labelled(driver="570")) == [NODE_LABELS]
    assert registered(SHARED) == [NODE_NOTES, CORDONS, NODE_LABELS, CAPACITY]


def test_the_agent_of_another_node_may_not_even_touch_a_label() -> None:
    new = changed(LABELS, "zone", "b")

    for stranger in (agent_of("n2"), agent_of("")):
        assert refusals("fracgpu-nodes", new, old=SHARED, sender=stranger) == [OWN_NODE]


def test_only_the_rebalancer_keeps_slices_off_a_card() -> None:
    new = changed(NOTES, "fracgpu.io/cordons", '{"GPU-1":{}}')

    assert refusals("fracgpu-nodes", new, old=SHARED, sender=REBALANCER) == []
    forged = changed(NOTES, "fracgpu.io/cards", "[]x")
    assert refusals("fracgpu-nodes", forged, old=SHARED, sender=REBALANCER) == [NODE_NOTES]


def test_of_its_nodes_taints_the_agent_takes_off_only_the_one_by_which_a_node_starts() -> None:
    starts = {"key": names.STARTUP_TAINT, "effect": "NoSchedule"}
    other = {"key": "other", "effect": "NoSchedule"}

    def tainted(*taints: Json, **spec: Any) -> Json:
        return {**SHARED, "spec": {"providerID": "x", **spec, "taints": list(taints)}}

    def by_agent(old: Json, new: Json) -> list[str]:
        return refusals("fracgpu-nodes", new, old=old, sender=agent_of("n1"))

    both, bare = tainted(other, starts), {**SHARED, "spec": {"providerID": "x"}}
    assert by_agent(both, tainted(other)) == []
    assert by_agent(tainted(starts), bare) == []
    assert by_agent(both, tainted(starts)) == [OWN_KEYS]
    assert by_agent(both, bare) == [OWN_KEYS]
    assert by_agent(tainted(other), both) == [OWN_KEYS]
    assert by_agent(both, tainted(other, unschedulable=True)) == [OWN_KEYS]
    assert by_agent(both, tainted(other, providerID="y")) == [OWN_KEYS]


@pytest.mark.parametrize("key", [names.NODE_OUT_OF_SERVICE, names.NODE_DRAIN])
def test_a_card_is_taken_out_by_its_uuid_and_not_by_its_index(key: str) -> None:
    """As found: `kubectl annotate node` with an index was accepted, and the card stayed in use."""
    for text in ("0", "GPU-1,1", "1, GPU-1", " 12 "):
        odd = changed(NOTES, key, text)
        (message,) = refusals("fracgpu-nodes", odd, old=SHARED)
        assert "have UUIDs of its cards" in message.replace("\n", " ")
        assert refusals("fracgpu-nodes", odd, old=odd) == []
    for text in ("GPU-1,GPU-b2", "1234567890123456", ""):
        assert refusals("fracgpu-nodes", changed(NOTES, key, text), old=SHARED) == []
