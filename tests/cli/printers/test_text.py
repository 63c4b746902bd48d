"""Answers as text: the verdict first, then the blockers, what would help, and the cards."""

from dataclasses import replace

from cli.printers.text import Tone, explanation_lines, replay_lines
from fracgpu.explain.answers import Explanation, NodeAnswer, Objection, PodVerdict
from fracgpu.explain.explanation import explain
from fracgpu.explain.suggestions import suggest
from fracgpu.state.cluster_state import ClusterState, ExplainedPod, NodeConstraints
from simulator.replay.replay import ReplayResult
from tests.support.core import a_card, a_need, a_pod_need, on
from tests.support.explaining import Cluster, a_waiting_pod, bound

ASKS = a_pod_need(a_need(20_000))


def said(subject: ExplainedPod, state: ClusterState) -> list[str]:
    found = explain(subject, state)
    return [line.text for line in explanation_lines(found, suggest(subject, state, found))]


def test_a_pod_that_does_not_fit_is_told_so_first_then_what_helps_then_the_proof() -> None:
    cluster = Cluster().node("gpu-1", a_card("GPU-a")).holder("chat", "gpu-1", "GPU-a", 9_000)

    lines = said(a_waiting_pod(ASKS), cluster.state())

    assert lines[0] == "default/new does not fit on the only node"
    assert lines.index("What would help") < lines.index(
        "gpu-1: 1 of 1 cards: too little free memory"
    )
    assert lines[-1] == (
        "  card 0 NVIDIA A30: 15000 of 24000 MiB free; too little free memory for 20000 MiB; "
        "held by default/chat 9000 MiB"
    )


def test_a_pod_that_fits_is_told_where() -> None:
    state = Cluster().node("gpu-1", a_card("GPU-a")).node("gpu-2", a_card("GPU-b")).state()

    assert said(a_waiting_pod(ASKS), state)[0] == (
        "default/new fits now: gpu-1, card 0 (and on 1 other node)"
    )


def test_room_is_not_enough_where_something_else_stands_in_the_way() -> None:
    subject = replace(a_waiting_pod(ASKS), gates=("quota",))
    lines = said(subject, Cluster().node("gpu-1", a_card("GPU-a")).state())

    assert lines[0] == "default/new is not scheduled, though there is room on 1 node"
    assert "  blocked by: it is held back by scheduling gates: quota" in lines


def test_a_closed_node_is_told_with_its_cards() -> None:
    state = Cluster().node("gpu-1", a_card("GPU-a"), site=NodeConstraints(cordoned=True)).state()

    assert "gpu-1: the node is cordoned; its cards fit" in said(a_waiting_pod(ASKS), state)


def test_what_both_a_nodes_labels_and_its_cards_say_is_said_once() -> None:
    text = "the node does not share its cards"
    node = NodeAnswer(
        node="gpu-1", fits=False, cards_fit=False, reason=text, objections=(Objection(text=text),)
    )
    found = Explanation(pod="default/new", verdict=PodVerdict.STUCK, asks="", nodes=(node,))

    assert [line.text for line in explanation_lines(found, ())][-1] == f"gpu-1: {text}"


def test_a_running_pod_is_told_its_cards_and_since_when() -> None:
    state = Cluster().node("gpu-1", a_card("GPU-a", index=2)).state()

    lines = said(bound(a_waiting_pod(ASKS), "gpu-1", on("GPU-a", 20_000)), state)

    assert lines[0] == "default/new runs on gpu-1 since 2026-11-20 12:00:00 UTC"
    assert lines[-1] == "  card 2 NVIDIA A30: 20000 MiB (GPU-a)"


def test_a_pod_bound_without_cards_is_told_so() -> None:
    state = Cluster().node("gpu-1", a_card("GPU-a")).state()

    assert said(bound(a_waiting_pod(ASKS), "gpu-1", None), state)[0] == (
        "default/new is on gpu-1 without a card"
    )


def test_many_holders_are_counted_rather_than_listed() -> None:
    cluster = Cluster().node("gpu-1", a_card("GPU-a"))
    for number in range(9):
        cluster.holder(f"p{number}", "gpu-1", "GPU-a", 2_000, cores=10)

    assert said(a_waiting_pod(ASKS), cluster.state())[-1].endswith(
        "default/p5 2000 MiB 10% and 3 more"
    )


def test_the_best_policy_of_a_simulation_stands_out() -> None:
    def outcome(policy: str, seed: int, most: float) -> ReplayResult:
        curve = tuple(min(float(load), most) for load in range(131))
        return ReplayResult(policy=policy, seed=seed, arrived=100, refused=25, curve=curve)

    head, good, better, _ = replay_lines(
        {
            "pack": [outcome("pack", 1, 88.0), outcome("pack", 2, 89.0)],
            "least-waste": [outcome("least-waste", 1, 95.0), outcome("least-waste", 2, 96.0)],
        }
    )

    assert head.text.split()[:2] == ["policy", "at"]
    assert good.text.split() == ["pack", *["88.50", "%"] * 5, "1.00", "25.0%"]
    assert (good.tone, better.tone) == (Tone.PLAIN, Tone.GOOD)
