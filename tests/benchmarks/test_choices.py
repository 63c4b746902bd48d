"""The benchmark and an extender with informers make the same choices."""

import json
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.referee import Policy, fits_in_sum
from fracgpu import names
from fracgpu.cards.card import Card, CardUuid
from fracgpu.placement.outcome import Placement
from fracgpu.request.need import Strategy
from fracgpu.state.node_info import read_node
from fracgpu.state.pod_info import decode_pod_info
from fracgpu.units import Mib
from kube.informer import Change, ChangeType
from kube.objects import ObjectKey
from scheduler.cache.event_handlers import decode_any_pod
from scheduler.core import SchedulerCore
from tests.benchmarks.referee_harness import CARD_MILLI, Cluster, Pod
from tests.fakes.clock import VirtualClock
from tests.support.gpu import a_gpu_pod, a_sharing_node

MIB_PER_MILLI = 80
NODES = 6
MODELS = [None, None, frozenset({"A"}), frozenset({"B"})]
SHARES = st.builds(
    Pod,
    cpu=st.sampled_from([500, 1000, 4000]),
    cards=st.just(1),
    milli=st.sampled_from([200, 330, 500, 700, CARD_MILLI]),
    models=st.sampled_from(MODELS),
)
PAIRS = st.builds(
    Pod,
    cpu=st.just(2000),
    cards=st.just(2),
    milli=st.just(CARD_MILLI),
    models=st.sampled_from(MODELS),
)
PLAIN = st.builds(Pod, cpu=st.sampled_from([1000, 8000]))


class InformedCore:
    """An extender's core that gets JSON objects as from informers."""

    def __init__(self) -> None:
        self.core = SchedulerCore(strategy=lambda: Strategy.LEAST_WASTE, clock=VirtualClock())
        self.nodes = [f"n{number:06}" for number in range(NODES)]
        for number, name in enumerate(self.nodes):
            cards = tuple(
                Card(
                    uuid=CardUuid(f"{name}/{index}"),
                    index=index,
                    model="AB"[number % 2],
                    total_mib=Mib(CARD_MILLI * MIB_PER_MILLI),
                )
                for index in range(2)
            )
            node = a_sharing_node(name, cards=cards, cpu="16")
            node["status"]["allocatable"]["memory"] = "100000Mi"
            self.core.handlers.node_changed(
                Change(
                    type=ChangeType.ADDED,
                    key=ObjectKey("", name),
                    uid=name,
                    resource_version="1",
                    object=read_node(json.dumps(node).encode()),
                )
            )

    def pod(self, pod: Pod, name: str) -> dict[str, Any]:
        notes = {names.MODEL: ",".join(sorted(pod.models))} if pod.models else {}
        mib = pod.milli * MIB_PER_MILLI
        found = a_gpu_pod(name, mib=mib, cards=pod.cards, annotations=notes)
        if not pod.cards:
            found["metadata"]["annotations"] = {}
            found["spec"]["containers"][0]["resources"] = {"requests": {}}
        asked = {"cpu": f"{pod.cpu}m", "memory": f"{pod.mem}Mi"}
        resources = found["spec"]["containers"][0]["resources"]
        resources["requests"] = {**resources["requests"], **asked}
        found["metadata"]["uid"] = name
        return found

    def runs(self, pod: Pod, name: str, *, node: str, cards: list[str]) -> None:
        body = self.pod(pod, name)
        body["spec"]["nodeName"] = node
        if cards:
            mib = pod.milli * MIB_PER_MILLI
            slices = [{"card": card, "mib": mib} for card in cards]
            body["metadata"]["annotations"][names.ASSIGNMENT] = json.dumps({"train": slices})
        self.pod_changed(body, ChangeType.ADDED)

    def pod_changed(self, body: dict[str, Any], what: ChangeType) -> None:
        name = body["metadata"]["name"]
        self.core.handlers.pod_changed(
            Change(
                type=what,
                key=ObjectKey("default", name),
                uid=name,
                resource_version="1",
                object=decode_any_pod(json.dumps(body).encode()),
            )
        )

    def learn(self, history: list[Pod]) -> None:
        """Learn the mix from pods that run and then end."""
        for number, pod in enumerate(history):
            node = self.nodes[1 if pod.models == frozenset({"B"}) else 0]
            cards = [f"{node}/{card}" for card in range(pod.cards)]
            self.runs(pod, f"past-{number}", node=node, cards=cards)
        self.core.least_waste.learn_now()
        for number, pod in enumerate(history):
            self.pod_changed(self.pod(pod, f"past-{number}"), ChangeType.DELETED)

    def place(self, pod: Pod, name: str, *, nodes: list[str]) -> tuple[int, tuple[int, ...]] | None:
        view = decode_pod_info(json.dumps(self.pod(pod, name)).encode())
        node = self.core.best_node(view, nodes)
        if node is None:
            return None
        answer = self.core.cards_on(view, node)
        assert isinstance(answer, Placement)
        cards = sorted(slice_.card for slice_ in answer.assignment["train"])
        self.runs(pod, name, node=node, cards=list(cards))
        return self.nodes.index(node), tuple(int(card.rpartition("/")[2]) for card in cards)


@settings(max_examples=25, deadline=None)
@given(
    history=st.lists(st.one_of(SHARES, PAIRS, PLAIN), max_size=12),
    arrivals=st.lists(st.one_of(SHARES, PAIRS), max_size=16),
)
def test_the_shipped_policy_learns_and_chooses_what_the_measured_one_does(
    history: list[Pod], arrivals: list[Pod]
) -> None:
    informed, cluster, measured = InformedCore(), Cluster(NODES), Policy()
    informed.learn(history)
    measured.start(cluster, history, np.random.default_rng(1))

    assert informed.core.least_waste.classes == measured.harness.core.least_waste.classes
    for number, pod in enumerate(arrivals):
        # Whether CPU and memory are left is said by kube-scheduler, before it asks.
        fits = [informed.nodes[node] for node in np.flatnonzero(fits_in_sum(pod, cluster))]
        shipped = informed.place(pod, f"p{number}", nodes=fits)
        assert shipped == measured.place(pod, cluster)
        if shipped is not None:
            cluster.place(pod, *shipped)
