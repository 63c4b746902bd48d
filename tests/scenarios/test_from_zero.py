"""From zero nodes and back: pods with shares wake the pools that can hold them, once.

Time is counted in seconds that nobody waits for. What webhook, scheduler and node agent decide is
the product's own; kubelet, kube-scheduler and cluster-autoscaler are simulated.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import pytest
import yaml

from cli.pool_templates import cluster_autoscaler_tags, each_pool
from component.pool_config import parse_pools
from deviceplugin.node.capacity import (
    condition_patch,
    metadata_patch,
    read_node_state,
    startup_taint_patch,
    status_patch,
    wanted_state,
    with_card_class,
)
from fracgpu import names
from fracgpu.cards.card import Card, CardUuid
from fracgpu.cards.card_class import CardClassCounts
from fracgpu.placement.outcome import Placement
from fracgpu.request.need import Strategy
from fracgpu.state.allocation import write_assignment
from fracgpu.state.bound_pod import decode_bound_pod
from fracgpu.state.node_info import read_node
from fracgpu.state.pod_info import decode_pod_info
from fracgpu.units import Mib
from scheduler.core import SchedulerCore
from simulator.apiserver.apimachinery.patches import (
    json_patch,
    merge_patch,
    strategic_merge_patch,
)
from simulator.scheduler.filters import constraints_of, misfits, usage_of
from tests.deviceplugin.builders import an_inventory
from tests.fakes.clock import NOON, VirtualClock
from tests.fakes.cluster_autoscaler import ClusterAutoscaler, NodeGroup, template_of
from tests.webhook.builders import RULES, Json, a_pod, judged, stored
from webhook.admission.verdict import Patched
from webhook.admission_config import parse_admission

CATALOGUE: Final = parse_pools(
    """
h100: {models: "NVIDIA-H100*", mib: 81040, pools: [{name: h100-8, cards: 8}]}
a100-80gb:
  models: [NVIDIA-A100-SXM4-80GB, NVIDIA-A100-80GB-PCIe]
  mib: 80960
  pools:
    - name: a100-4
      cards: 4
      taints: [{key: nvidia.com/gpu, value: present, effect: NoSchedule}]
t4:
  models: Tesla-T4
  mib: 15040
  pools: [{name: t4-1, cards: 1, labels: {tier: small}, taints: [{key: cheap, effect: NoExecute}]}]
"""
)
WAIT: Final = parse_admission("whenNoCapacity: wait", base=RULES)
MODELS: Final = {
    "h100": "NVIDIA-H100-80GB-HBM3",
    "a100-80gb": "NVIDIA-A100-SXM4-80GB",
    "t4": "Tesla-T4",
}
MEASURED_MIB: Final = {"h100": 81_120, "a100-80gb": 81_040, "t4": 15_040}

# An instance type, as a provider knows it: nothing of ours.
BASE: Final[Json] = {
    "metadata": {"labels": {"kubernetes.io/os": "linux", "topology.kubernetes.io/zone": "eu-1"}},
    "status": {
        "capacity": {"cpu": "96", "memory": "1Ti", "pods": "110"},
        "allocatable": {"cpu": "96", "memory": "1Ti", "pods": "110"},
    },
}
STEP_S, BOOT_S, AGENT_S, KUBELET_S, SCAN_S, RUN_S = 5, 90, 30, 10, 10, 300
STARTS: Final = {"key": names.STARTUP_TAINT, "effect": "NoSchedule"}


@dataclass
class World:
    """Nodes and pods as the API server has them, and everybody who acts on them."""

    startup_taint: bool = True
    now_s: int = 0
    nodes: dict[str, Json] = field(default_factory=dict)
    pods: list[Json] = field(default_factory=list)
    made: Counter[str] = field(default_factory=Counter)
    increases: list[tuple[str, int]] = field(default_factory=list)
    _coming: list[tuple[int, str]] = field(default_factory=list)
    _born: dict[str, int] = field(default_factory=dict)
    _started: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pools = {pool.name: (each, pool) for each, pool in each_pool(CATALOGUE)}
        self.autoscaler = ClusterAutoscaler(
            groups={
                name: NodeGroup(
                    name=name,
                    template=template_of(
                        name,
                        BASE,
                        # What the command prints is all that it is told.
                        yaml.safe_load(yaml.safe_dump(dict(cluster_autoscaler_tags(each, pool)))),
                    ),
                )
                for name, (each, pool) in self.pools.items()
            },
            unneeded_s=120,
        )

    # -- the webhook -----------------------------------------------------------------------------

    def submit(self, name: str, **asks: Any) -> None:
        pod = a_pod(**asks)
        pod["metadata"] |= {"name": name, "uid": name, "namespace": "ml"}
        counts = self._counts()
        outcome = judged(
            pod,
            counts.classes(),
            rules=WAIT,
            select=counts.select,
            pools=CATALOGUE,
            declared=lambda rules: CATALOGUE.declared(rules, counts.smallest_by_name()),
        )
        assert isinstance(outcome, Patched), outcome
        self.pods.append(stored(pod, outcome))

    def _counts(self) -> CardClassCounts:
        counts = CardClassCounts()
        for body in self.nodes.values():
            node = read_node(json.dumps(body).encode())
            counts.put(node, free_mib={}, name=CATALOGUE.class_of_node(node.labels, node.cards))
        return counts

    # -- time ------------------------------------------------------------------------------------

    def run(self, duration_s: int) -> None:
        for _ in range(0, duration_s, STEP_S):
            self.now_s += STEP_S
            self._provide()
            for name in self.nodes:
                self._kubelet(name)
                self._agent(name)
            self._schedule()
            self._end_pods()
            if self.now_s % SCAN_S == 0:
                self._scale()

    def _scale(self) -> None:
        decision = self.autoscaler.loop(list(self.nodes.values()), self.pods, now_s=self.now_s)
        if decision.increase is not None:
            self.increases.append(decision.increase)
            group, count = decision.increase
            self._coming += [(self.now_s + BOOT_S, group) for _ in range(count)]
        for name in decision.remove:
            del self.nodes[name]

    def _provide(self) -> None:
        """Let the nodes register that have booted: Ready, and without anything of ours."""
        due = [group for at, group in self._coming if at <= self.now_s]
        self._coming = [each for each in self._coming if each[0] > self.now_s]
        for group in due:
            pool = self.pools[group][1]
            self.made[group] += 1
            name = f"{group}-{self.made[group]}"
            taints: list[Json] = [
                {"key": taint.key, "value": taint.value, "effect": taint.effect}
                for taint in pool.taints
            ]
            body = json.loads(json.dumps(BASE))
            body["metadata"] |= {"name": name, "annotations": {}}
            body["metadata"]["labels"] |= {**pool.labels, names.SHARE_LABEL: "true"}
            body["spec"] = {
                "providerID": f"simulated://{group}/{name}",
                "taints": [*taints, *([STARTS] if self.startup_taint else [])],
            }
            body["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
            self.nodes[name] = body
            self._born[name] = self.now_s

    # -- the node --------------------------------------------------------------------------------

    def _kubelet(self, name: str) -> None:
        """Copy what the agent has put into capacity, and count its slots."""
        if (self.now_s - self._born[name]) % KUBELET_S:
            return
        status = self.nodes[name]["status"]
        if names.GPU_MEM in status["capacity"]:
            cards = int(status["capacity"][names.GPU_COUNT])
            status["capacity"][names.GPU_SLOT] = str(32 * cards)
        status["allocatable"] |= status["capacity"]

    def _agent(self, name: str) -> None:
        if self.now_s - self._born[name] < AGENT_S:
            return
        node = self.nodes[name]
        have = read_node_state(json.dumps(node).encode())
        cards = self._cards(name)
        want = wanted_state(an_inventory(*cards), have=have)
        want = with_card_class(want, have=have, cards=cards, pools=CATALOGUE)
        now = NOON + timedelta(seconds=self.now_s)
        node = merge_patch(node, metadata_patch(have=have, want=want))
        node = merge_patch(node, status_patch(have=have, want=want))
        node = strategic_merge_patch(node, condition_patch(have=have, want=want, now=now))
        self.nodes[name] = json_patch(node, startup_taint_patch(have, want))

    def _cards(self, name: str) -> Sequence[Card]:
        each, pool = self.pools[name.rpartition("-")[0]]
        return tuple(
            Card(
                uuid=CardUuid(f"GPU-{name}-{index}"),
                index=index,
                model=MODELS[each.name],
                total_mib=Mib(MEASURED_MIB[each.name]),
            )
            for index in range(pool.cards)
        )

    # -- kube-scheduler and the extender ---------------------------------------------------------

    def _schedule(self) -> None:
        pending = [pod for pod in self.pods if not pod["spec"].get("nodeName")]
        if not pending:
            return
        core = SchedulerCore(strategy=lambda: Strategy.PACK, clock=VirtualClock())
        for node in self.nodes.values():
            core.ledger.set_node(read_node(json.dumps(node).encode()))
        for pod in self.pods:
            self._observe(core, pod)
        for pod in pending:
            self._schedule_one(core, pod)

    def _schedule_one(self, core: SchedulerCore, pod: Json) -> None:
        constraints = constraints_of(pod)
        fitting = [
            name
            for name, node in self.nodes.items()
            if not misfits(constraints, usage_of(node, self.on(name)))
        ]
        info = decode_pod_info(json.dumps(pod).encode())
        node = core.best_node(info, fitting) if fitting else None
        answer = core.cards_on(info, node) if node else None
        if not isinstance(answer, Placement):
            refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            pod["status"] = {"conditions": [refused]}
            return
        pod["spec"]["nodeName"] = node
        pod["metadata"]["annotations"][names.ASSIGNMENT] = write_assignment(answer.assignment)
        pod["status"] = {"phase": "Running"}
        self._started[pod["metadata"]["name"]] = self.now_s
        self._observe(core, pod)

    def _observe(self, core: SchedulerCore, pod: Json) -> None:
        bound = decode_bound_pod(json.dumps(pod).encode())
        if bound is not None and bound.live:
            core.ledger.observe(bound.allocation)
            core.bound_pods.put(bound)

    def on(self, node: str) -> Sequence[Json]:
        return [
            pod
            for pod in self.pods
            if pod["spec"].get("nodeName") == node and pod["status"]["phase"] == "Running"
        ]

    def _end_pods(self) -> None:
        for pod in self.pods:
            started = self._started.get(pod["metadata"]["name"])
            if started is not None and self.now_s - started >= RUN_S:
                pod["status"] = {"phase": "Succeeded"}

    # -- what a test asks ------------------------------------------------------------------------

    def phases(self) -> Mapping[str, int]:
        return Counter(pod.get("status", {}).get("phase", "Pending") for pod in self.pods)

    def pools_of_pods(self) -> Mapping[str, set[str]]:
        """Return by name of pod, without its number, on which pools such pods ran."""
        found: dict[str, set[str]] = {}
        for pod in self.pods:
            kind = pod["metadata"]["name"].rpartition("-")[0]
            group = pod["spec"].get("nodeName", "").rpartition("-")[0]
            found.setdefault(kind, set()).add(group)
        return found


def forty_pods() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield 40 pods for 9 A100s and 5 T4s."""
    small = {"spec": {"nodeSelector": {"tier": "small"}}}
    kinds: Sequence[tuple[str, int, Mapping[str, Any]]] = [
        ("whole", 2, {"fraction": "1", "model": "*A100*"}),
        ("pair", 1, {"fraction": "1", "cards": "2", "model": "*A100*,!*40GB*"}),
        ("half", 6, {"fraction": "0.5", "model": "NVIDIA-A100*, NVIDIA-B200", "cores": "30"}),
        ("quarter", 8, {"fraction": "0.25", "model": "*A100*"}),
        ("memory", 8, {"memory": "3760Mi", "model": "*T4*"}),
        ("selected", 6, {"fraction": "0.25", **small}),
        ("share", 3, {"fraction": "0.5", "model": "Tesla-T4"}),
        ("crumb", 6, {"fraction": "0.125", "model": "*t4*"}),
    ]
    most = max(count for _, count, _ in kinds)
    for number in range(most):
        for name, count, asks in kinds:
            if number < count:
                yield f"{name}-{number}", asks


def woken(*, startup_taint: bool) -> World:
    """Return a world in which 40 pods were created while there was no node."""
    world = World(startup_taint=startup_taint)
    for name, asks in forty_pods():
        world.submit(name, **asks)
    assert len(world.pods) == 40
    world.run(BOOT_S + AGENT_S + 4 * KUBELET_S + 4 * SCAN_S)
    return world


def test_forty_pods_wake_the_right_pools_once_run_and_let_them_go() -> None:
    world = woken(startup_taint=True)

    assert world.phases() == {"Running": 40}
    # 9 A100s are three nodes of 4, 5.75 T4s are six; no pod wants an H100.
    assert world.made == {"a100-4": 3, "t4-1": 6}
    assert sorted(world.increases) == [("a100-4", 3), ("t4-1", 6)]
    a100, t4 = {"a100-4"}, {"t4-1"}
    assert world.pools_of_pods() == {
        **dict.fromkeys(("whole", "pair", "half", "quarter"), a100),
        **dict.fromkeys(("memory", "selected", "share", "crumb"), t4),
    }

    world.run(RUN_S + 300)
    assert world.phases() == {"Succeeded": 40}
    assert world.nodes == {}
    assert [group.target for group in world.autoscaler.groups.values()] == [0, 0, 0]
    assert len(world.increases) == 2


def test_without_the_startup_taint_the_pools_are_scaled_up_twice() -> None:
    world = woken(startup_taint=False)

    # Ready nodes that offer no card yet count as nodes that do not help.
    assert len(world.increases) > 2
    assert world.made["a100-4"] > 3
    assert world.made["t4-1"] > 6


def test_a_pool_at_zero_wakes_again_for_what_was_measured() -> None:
    world = woken(startup_taint=True)
    world.run(RUN_S + 300)
    assert world.nodes == {}

    world.submit("again-0", fraction="1", model="*A100*")
    world.run(BOOT_S + AGENT_S + 4 * KUBELET_S + 4 * SCAN_S)

    assert world.phases() == {"Succeeded": 40, "Running": 1}
    assert world.made["a100-4"] == 4


@pytest.mark.parametrize(
    "asks",
    [
        {"fraction": "0.5", "model": "*B200*"},
        {"fraction": "1", "cards": "5", "model": "*A100*"},
        {"memory": "200Gi"},
        {"fraction": "0.5", "spec": {"nodeSelector": {"tier": "large"}}},
    ],
)
def test_what_no_pool_can_hold_is_refused_and_wakes_nothing(asks: Mapping[str, Any]) -> None:
    with pytest.raises(AssertionError, match="Denied"):
        World().submit("never-0", **asks)
