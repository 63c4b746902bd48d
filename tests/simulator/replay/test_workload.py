"""A trace or a live cluster becomes a workload, and arrivals are drawn from it."""

import json
from collections import Counter
from datetime import timedelta
from fractions import Fraction

import pytest

from fracgpu import names
from fracgpu.cards.card import Cordon
from fracgpu.state.node_info import read_node
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from simulator.replay.workload import (
    ReplayWorkload,
    WorkloadError,
    arrivals,
    node_order,
    of_cluster,
    read_trace,
)
from tests.simulator.replay.trace import NODES, PODS, a_trace
from tests.support.explaining import NOON
from tests.support.gpu import a_gpu_pod, a_sharing_node, some_cards


def test_a_trace_is_read_to_the_thousandth_of_a_card() -> None:
    workload = a_trace()

    assert (workload.cards, workload.capacity_mib) == (8, 8 * 80_000)
    third = next(pod for pod in workload.pods if pod.name == "third")
    assert third.mib == 330 * 80
    assert (third.demand.share_milli, third.demand.cpu_milli, third.host.memory_mib) == (
        330,
        1000,
        1000,
    )


def test_models_are_those_the_trace_names_and_any_where_it_names_none() -> None:
    by_name = {pod.name: pod for pod in a_trace().pods}

    assert by_name["half-1"].demand.models == frozenset({"A10", "H100"})
    assert by_name["half-0"].demand.models is None
    assert by_name["cpu"].need is None


def test_a_trace_with_fewer_columns_is_read_as_any_model() -> None:
    short = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,1,400\n"

    (pod,) = a_trace(pods=short).pods

    assert pod.demand.models is None


@pytest.mark.parametrize(
    ("nodes", "pods", "said"),
    [
        (NODES, "name,cpu_milli\np,1\n", "no column memory_mib, num_gpu, gpu_milli"),
        ("sn,gpu\nn,1\n", PODS, "no column cpu_milli, memory_mib, model"),
        (NODES, PODS.replace("500,A10", "-5,A10"), "line 3: gpu_milli is '-5'"),
        (NODES, PODS.replace("1,330", "1,0"), "gpu_milli is '0'; want a whole number, 1 to 1000"),
        (NODES, PODS.replace("1,330", "1,1500"), "gpu_milli is '1500'; want a whole number, 1 to"),
        (NODES, PODS.replace("1,330", "65,330"), "num_gpu is '65'; want a whole number, 0 to 64"),
        (NODES + NODES.splitlines()[1], PODS, "the node list has '.*' in 2 lines"),
        (
            "sn,cpu_milli,memory_mib,gpu,model\nn,1,1,99999999,T4\n",
            PODS,
            "line 2: gpu is '99999999'; want a whole number, 0 to 64",
        ),
        (
            f"sn,cpu_milli,memory_mib,gpu,model\nn,{'9' * 5000},1,1,T4\n",
            PODS,
            "line 2: cpu_milli is '9+'; want a whole number",
        ),
        ("sn,cpu_milli,memory_mib,gpu,model\nn,1,1,0,\n", PODS, "there are no cards"),
        (NODES, "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,0,0\n", "no pod requests"),
    ],
)
def test_what_is_no_trace_is_said_with_its_place(nodes: str, pods: str, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        read_trace(nodes=nodes.splitlines(), pods=pods.splitlines())


def asked_ratio(workload: ReplayWorkload, seed: int, load_ratio: float) -> float:
    order = arrivals(workload, load_ratio=load_ratio, seed=seed)
    return sum(pod.mib for pod in order) / workload.capacity_mib


@pytest.mark.parametrize("load_ratio", [0.3, 1.3, 5.0])
def test_arrivals_ask_for_as_much_as_is_wanted_and_no_more(load_ratio: float) -> None:
    for seed in range(20):
        asked = asked_ratio(a_trace(), seed, load_ratio)

        assert load_ratio - 0.26 <= asked <= load_ratio  # the largest pod asks for a quarter


def test_the_same_seed_gives_the_same_order_and_another_one_another() -> None:
    def order(seed: int) -> list[str]:
        return [pod.name for pod in arrivals(a_trace(), load_ratio=5.0, seed=seed)]

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert Counter(order(1)).keys() == {pod.name for pod in a_trace().pods}


def test_nodes_come_in_an_order_of_their_own_and_none_is_lost() -> None:
    workload = a_trace()

    orders = {tuple(node.node for node in node_order(workload, seed=seed)) for seed in range(10)}

    assert len(orders) > 1
    assert {tuple(sorted(order)) for order in orders} == {
        ("cpu-0", "large-0", "small-0", "small-1")
    }


def live_pod(name: str, **options: object) -> PodInfo:
    cpu = options.pop("cpu", None)
    pod = a_gpu_pod(name, **options)  # type: ignore[arg-type]
    if cpu:
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = cpu
    return decode_pod_info(json.dumps(pod).encode())


def test_a_live_cluster_is_taken_empty_with_what_its_pods_ask() -> None:
    node = read_node(json.dumps(a_sharing_node("n", cards=some_cards("n", count=2))).encode())
    hot = Cordon(card=node.cards[0].uuid, until=NOON + timedelta(hours=1), reason="hot")
    cordoned = type(node)(
        node="n", cards=node.cards, cordons=(hot,), labels=node.labels, host=node.host
    )
    notes = {names.MEMORY: "12000Mi", names.MODEL: "*A30*"}
    half = live_pod("half", mib=12_000, annotations=notes, cpu="3")

    workload = of_cluster([cordoned], [half])

    assert workload.cards == 2
    assert workload.nodes[0].cordons == ()
    (pod,) = workload.pods
    assert (pod.mib, pod.demand.share_milli, pod.demand.cpu_milli) == (12_000, 500, 3_000)
    assert pod.demand.models == frozenset({"NVIDIA-A30"})


def test_shares_are_rounded_up_so_that_no_card_is_promised_twice() -> None:
    node = read_node(json.dumps(a_sharing_node("n")).encode())
    third = live_pod("third", mib=8_001)

    (pod,) = of_cluster([node], [third]).pods

    assert Fraction(pod.demand.share_milli, 1000) >= Fraction(8_001, 24_000)


def test_pods_without_cards_keep_what_they_take_of_their_node() -> None:
    node = read_node(json.dumps(a_sharing_node("n", cpu="64")).encode())
    body = {
        "metadata": {"name": "agent", "uid": "u"},
        "spec": {
            "nodeName": "n",
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "4"}}}],
        },
    }
    agent = decode_pod_info(json.dumps(body).encode())

    workload = of_cluster([node], [agent, live_pod("p")])

    assert workload.nodes[0].host.cpu_milli == 60_000


def test_a_cluster_without_cards_or_pods_has_nothing_to_replay() -> None:
    node = read_node(json.dumps(a_sharing_node("n")).encode())

    with pytest.raises(WorkloadError, match="no cards"):
        of_cluster([], [live_pod("p")])
    with pytest.raises(WorkloadError, match="no pod requests"):
        of_cluster([node], [])
