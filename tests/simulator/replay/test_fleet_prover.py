"""What a plan has to prove on the fleet of a replay."""

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.room.card_table import CardTable
from fracgpu.request.need import Strategy
from fracgpu.state.allocation import Slice
from fracgpu.units import Mib
from simulator.replay.fleet import FleetState
from simulator.replay.fleet_prover import Fleet, FleetProver, Running
from simulator.replay.workload import ReplayPod
from tests.simulator.replay.trace import a_trace

NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "\n".join(
    f"n{number},{cpu},100000,1,H100" for number, cpu in enumerate((4000, 1000, 8000))
)
PODS = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec
small,2000,1000,1,300,
whole,3000,1000,1,1000,
"""
POD = {pod.name: pod for pod in a_trace(nodes=NODES, pods=PODS).pods}
CARD = CardUuid("n0/0")


def a_prover(
    waiting: ReplayPod = POD["whole"], *, moving: frozenset[int] = frozenset()
) -> FleetProver:
    """Return a prover on three nodes of one card; a small pod is on the first."""
    state = FleetState(a_trace(nodes=NODES, pods=PODS).nodes)
    small = POD["small"]
    uid = state.take(small, 0, {"main": (Slice(card=CARD, mib=Mib(small.mib)),)})
    fleet = Fleet(
        state=state,
        strategy=Strategy.PACK,
        place_of={name: place for place, name in enumerate(state.names)},
        running={7: Running(pod=small, place=0, cards=(CARD,), uid=uid)},
        on={CARD: {7}},
    )
    table = CardTable({name: state.node_info(at) for at, name in enumerate(state.names)})
    return FleetProver(fleet, waiting, table, moving=moving)


def test_a_pod_may_be_moved_unless_it_is_being_moved() -> None:
    assert [pod.uid for pod in a_prover().movable(CARD)] == ["7"]
    assert a_prover(moving=frozenset({7})).movable(CARD) == []
    assert a_prover().movable(CardUuid("n1/0")) == []


def test_the_waiting_pod_needs_the_card_and_the_cpu_of_those_who_leave() -> None:
    prover = a_prover()
    moved = prover.movable(CARD)

    assert not prover.fits("n0", [CARD], ())
    assert prover.fits("n0", [CARD], moved)
    assert not prover.fits("n1", [CardUuid("n1/0")], ())  # 1000 of 3000 thousandths of a CPU
    assert prover.fits("n2", [CardUuid("n2/0")], ())


def test_a_target_has_cpu_and_is_not_to_be_kept_off() -> None:
    prover = a_prover()
    (pod,) = prover.movable(CARD)

    assert prover.target(pod, (), frozenset({CARD})) == ("n2", "n2/0")
    assert prover.target(pod, (), frozenset({CARD, CardUuid("n2/0")})) is None
