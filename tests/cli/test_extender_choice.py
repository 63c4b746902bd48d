"""The choice that a command shows is the one that the extender then makes."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from cli.cluster import ObservedCluster, cluster_state_of
from cli.extender_choice import DEFAULT_CONFIG_MAP, read_strategy, with_choice
from cli.rebalancing import read_settings
from component.placement_config import parse_strategy
from fracgpu import names
from fracgpu.cards.annotations import write_time
from fracgpu.cards.card import Card, CardUuid, Health
from fracgpu.explain.answers import Explanation, PodVerdict
from fracgpu.explain.explanation import explain
from fracgpu.explain.subject import read_subject
from fracgpu.placement.outcome import Placement
from fracgpu.request.need import DEFAULT_STRATEGY, Strategy
from fracgpu.state.bound_pod import decode_bound_pod
from fracgpu.state.node_info import observe_node, read_node
from fracgpu.units import Mib
from kube.client import KubeClient
from kube.informer import Change, ChangeType
from kube.kinds import NAMESPACES
from kube.objects import ObjectKey
from scheduler.cache.event_handlers import decode_any_pod
from scheduler.core import SchedulerCore
from scheduler.workload_learner import WorkloadLearner
from tests.cli.live_cluster import configure
from tests.fakes.clock import NOON, VirtualClock
from tests.support.gpu import a_bound_gpu_pod, a_gpu_pod, a_sharing_node

Json = dict[str, Any]
MODELS = (("NVIDIA A30", 24_000), ("NVIDIA H100", 80_000), ("Tesla T4", 16_000))
PLACE_OF_CONFIG = DEFAULT_CONFIG_MAP.partition("/")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes, running pods and a pending pod, as JSON objects."""

    nodes: Sequence[Json]
    pods: Sequence[Json]
    waits: Json


def a_cluster(seed: int) -> Cluster:
    """Return random nodes of several models and states, pods on their cards, and a pending pod."""
    dice = random.Random(seed)  # noqa: S311 - seeded test data
    nodes: list[Json] = []
    pods: list[Json] = []
    for n in range(dice.randint(1, 6)):
        name = f"n{n}"
        model, mib = dice.choice(MODELS)
        cards = some_cards_of(dice, name, model, mib)
        node = a_sharing_node(name, cards=cards, cpu="32")
        node["metadata"]["annotations"][names.NODE_HEAT] = json.dumps(
            {card.uuid: dice.choice([0.0, 0.3, 0.9]) for card in cards}
        )
        node["metadata"]["annotations"][names.NODE_LOAD_TIME] = write_time(NOON)
        nodes.append(node)
        for card in cards:
            pods += [
                a_running_pod(dice, f"{name}-{card.index}-{part}", name, card)
                for part in range(dice.randint(0, 3))
            ]
    notes = {names.GRANTED: "granted"}
    if dice.random() < 0.3:
        notes[names.MODEL] = dice.choice(["*H100*", "!*T4*", "NVIDIA A30,*T4*"])
    if dice.random() < 0.3:
        notes[names.PLACEMENT] = dice.choice(list(Strategy)).value
    waits = a_gpu_pod(
        "waits",
        mib=dice.choice([1_000, 4_000, 12_000, 24_000]),
        cards=dice.choice([1, 1, 1, 2]),
        annotations=notes,
    )
    waits["metadata"]["uid"] = "waits"
    return Cluster(nodes, pods, waits)


def some_cards_of(dice: random.Random, node: str, model: str, mib: int) -> tuple[Card, ...]:
    return tuple(
        Card(
            uuid=CardUuid(f"GPU-{node}-{index}"),
            index=index,
            model=model,
            total_mib=Mib(mib),
            health=Health.UNHEALTHY if dice.random() < 0.1 else Health.HEALTHY,
        )
        for index in range(dice.choice([1, 2, 4]))
    )


def a_running_pod(dice: random.Random, name: str, node: str, card: Card) -> Json:
    mib = card.total_mib // dice.choice([4, 5, 8])
    notes = {names.MODEL: card.model} if dice.random() < 0.4 else {}
    pod = a_bound_gpu_pod(name, node=node, card=card.index, mib=mib, annotations=notes)
    pod["metadata"]["uid"] = name
    pod["spec"]["containers"][0]["resources"]["requests"] = {"cpu": dice.choice(["1", "500m"])}
    pod["status"] = {"phase": "Running"}
    return pod


def extender_over(cluster: Cluster, strategy: Strategy) -> SchedulerCore:
    """Return an extender whose informers have just listed a cluster."""
    core = SchedulerCore(strategy=lambda: strategy, clock=VirtualClock())
    for node in cluster.nodes:
        name = node["metadata"]["name"]
        core.handlers.node_changed(
            Change(
                type=ChangeType.ADDED,
                key=ObjectKey("", name),
                uid=name,
                resource_version="1",
                object=read_node(json.dumps(node).encode()),
            )
        )
    for pod in (*cluster.pods, cluster.waits):
        name = pod["metadata"]["name"]
        core.handlers.pod_changed(
            Change(
                type=ChangeType.ADDED,
                key=ObjectKey("default", name),
                uid=name,
                resource_version="1",
                object=decode_any_pod(json.dumps(pod).encode()),
            )
        )
    return core


def explained(cluster: Cluster, strategy: Strategy) -> Explanation:
    bodies = [json.dumps(pod).encode() for pod in (*cluster.pods, cluster.waits)]
    observed = ObservedCluster(
        pods=tuple(read_subject(body) for body in bodies),
        nodes=tuple(observe_node(json.dumps(node).encode()) for node in cluster.nodes),
        bound=tuple(pod for body in bodies if (pod := decode_bound_pod(body)) is not None),
    )
    subject = observed.pods[-1]
    state = cluster_state_of(
        observed,
        subject,
        schedulers=[names.SCHEDULER_NAME],
        strategy=strategy,
        now=VirtualClock().now(),
    )
    return explain(subject, with_choice(state, subject, observed))


@pytest.mark.parametrize("strategy", Strategy)
async def test_explain_names_the_card_that_the_extender_then_chooses(strategy: Strategy) -> None:
    fitted = 0
    first = 12 * list(Strategy).index(strategy)  # other clusters for each strategy
    for seed in range(first, first + 12):
        cluster = a_cluster(seed)
        explanation = explained(cluster, strategy)
        core = extender_over(cluster, strategy)
        await WorkloadLearner(core.least_waste).once()
        view = read_subject(json.dumps(cluster.waits).encode()).info
        node = core.best_node(view, [listed["metadata"]["name"] for listed in cluster.nodes])

        assert (explanation.verdict is PodVerdict.FITS) == (node is not None), seed
        if node is None:
            continue
        fitted += 1
        answer = core.cards_on(view, node)
        assert isinstance(answer, Placement)
        cards = sorted(int(slice_.card.rpartition("-")[2]) for slice_ in answer.assignment["train"])
        assert (explanation.choice.node, explanation.choice.cards) == (node, tuple(cards)), seed
        # On every other node too, the cards that a Binding to it would name.
        for other in explanation.nodes:
            bound = core.cards_on(view, other.node)
            assert isinstance(bound, Placement) == other.fits
            if isinstance(bound, Placement):
                uuids = {slice_.card for slice_ in bound.assignment["train"]}
                assert {card.uuid for card in other.cards if card.chosen} == uuids, seed
    assert fitted >= 5


def test_where_least_waste_cannot_be_exact_it_says_so() -> None:
    cluster = a_cluster(1)
    cluster.waits["metadata"]["annotations"].pop(names.PLACEMENT, None)

    notes = explained(cluster, Strategy.LEAST_WASTE).notes

    assert any("remembers pods that have ended" in note for note in notes)
    assert not any("least-waste" in note for note in explained(cluster, Strategy.SPREAD).notes)


def test_a_pod_that_has_its_cards_is_not_offered_to_the_extender_again() -> None:
    cluster = a_cluster(3)
    running = cluster.pods[0]

    explanation = explained(
        replace(cluster, waits=running, pods=cluster.pods[1:]), Strategy.LEAST_WASTE
    )

    assert explanation.verdict is PodVerdict.RUNS
    assert explanation.choice.node == ""


async def with_config(kube: KubeClient, data: dict[str, str]) -> tuple[Strategy, tuple[str, ...]]:
    namespace, _, name = PLACE_OF_CONFIG
    await kube.create(NAMESPACES, {"metadata": {"name": namespace}})
    await configure(kube, **data)
    return await read_strategy(kube, namespace=namespace, config_map=name)


@pytest.mark.parametrize("data", [None, {}, {"placement": ""}, {"placement": "strategy: spread"}])
async def test_every_command_has_the_strategy_that_scheduler_and_rebalancer_have(
    kube: KubeClient, data: dict[str, str] | None
) -> None:
    """`fracgpu explain` reads it in one place, `fracgpu plan` and the replay in another."""
    explained = await with_config(kube, data) if data is not None else await unconfigured(kube)
    planned = await read_settings(kube, namespace=names.SYSTEM_NAMESPACE)

    text = (data or {}).get("placement", "")
    wanted = parse_strategy(text) if text else DEFAULT_STRATEGY
    assert explained == (wanted, ())
    assert planned.strategy is wanted


async def unconfigured(kube: KubeClient) -> tuple[Strategy, tuple[str, ...]]:
    return await read_strategy(kube, namespace=names.SYSTEM_NAMESPACE, config_map=names.CONFIG_MAP)


async def test_a_strategy_that_cannot_be_read_is_said(kube: KubeClient) -> None:
    found, (note,) = await with_config(kube, {"placement": "strategy: tetris"})

    assert found is Strategy.LEAST_WASTE
    assert "'placement' of ConfigMap fracgpu-system/fracgpu-config cannot be read" in note
    assert "tetris" in note
