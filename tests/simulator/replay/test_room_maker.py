"""A plan on the fleet: its cards are closed to others, and in the end they are the pod's."""

from fracgpu.cards.card import CardUuid
from fracgpu.request.need import Strategy
from fracgpu.state.allocation import Slice
from fracgpu.units import Mib
from simulator.replay.departures import MakeRoomLimits
from simulator.replay.fleet import FleetState
from simulator.replay.fleet_prover import Running
from simulator.replay.room_maker import RoomMaker
from simulator.replay.workload import ReplayPod
from tests.simulator.replay.trace import a_trace

NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "\n".join(
    f"n{number},32000,100000,1,H100" for number in range(3)
)
PODS = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec
small,1000,1000,1,300,
whole,1000,1000,1,1000,
"""
POD = {pod.name: pod for pod in a_trace(nodes=NODES, pods=PODS).pods}
WAITING = 99
LIMITS = MakeRoomLimits(moves_per_hour=10, move_s=100)


class Fleet:
    """Three nodes of one card, each with a small pod on it."""

    def __init__(self, limits: MakeRoomLimits = LIMITS) -> None:
        self.state = FleetState(a_trace(nodes=NODES, pods=PODS).nodes)
        self.maker = RoomMaker(self.state, limits, strategy=Strategy.PACK)
        self.running: dict[int, Running] = {}
        for place in range(3):
            card = CardUuid(f"n{place}/0")
            uid = self.state.take(POD["small"], place, {"main": (_slice(card, POD["small"]),)})
            self.running[place] = Running(pod=POD["small"], place=place, cards=(card,), uid=uid)
            self.maker.started(place, self.running[place])

    def plan(self, now_s: float = 0.0) -> None:
        self.maker.plan([(WAITING, POD["whole"])], now_s)

    def free_milli(self, place: int) -> int:
        (card,) = self.state.node_info(place).cards.values()
        return card.free_mib // 80

    def closed(self, place: int) -> bool:
        return any(card.cordoned for card in self.state.node_info(place).cards.values())


def _slice(card: CardUuid, pod: ReplayPod) -> Slice:
    return Slice(card=card, mib=Mib(pod.mib))


def test_the_freed_card_is_closed_until_the_pod_has_it() -> None:
    fleet = Fleet()
    fleet.plan()

    assert [fleet.closed(place) for place in range(3)] == [True, False, False]
    assert fleet.maker.finish(99) == ([], [])
    # The moved pod holds its source and its target meanwhile.
    assert [fleet.free_milli(place) for place in range(3)] == [700, 400, 700]

    ready, roomier = fleet.maker.finish(100)

    ((number, place, assignment),) = ready
    assert (number, place) == (WAITING, 0)
    assert [part.card for part in assignment["main"]] == ["n0/0"]
    assert set(roomier) == {0}
    assert [fleet.free_milli(place) for place in range(3)] == [1000, 400, 700]
    assert not fleet.closed(0)
    assert (fleet.running[0].place, fleet.running[0].cards) == (1, ("n1/0",))
    assert len(fleet.maker.begun_s) == len(fleet.maker.planned_s) == len(fleet.maker.helped_s) == 1


def test_a_plan_is_given_up_when_its_pod_gets_in_elsewhere() -> None:
    fleet = Fleet()
    fleet.plan()
    fleet.maker.no_more_waiting(WAITING)

    assert not fleet.closed(0)
    ready, _ = fleet.maker.finish(100)
    assert ready == []
    assert fleet.free_milli(0) == 1000  # the move that was under way is finished


def test_a_pod_that_leaves_while_it_is_moved_frees_both_cards() -> None:
    fleet = Fleet()
    fleet.plan()

    assert set(fleet.maker.left(0, fleet.running[0])) == {0, 1}
    assert [fleet.free_milli(place) for place in range(3)] == [1000, 700, 700]
    ready, _ = fleet.maker.finish(1)
    assert [number for number, _, _ in ready] == [WAITING]


def test_nothing_is_planned_beyond_the_limits() -> None:
    none = Fleet(MakeRoomLimits())
    none.plan()
    assert none.maker.planned_s == []

    fleet = Fleet()
    fleet.plan()
    fleet.maker.finish(100)
    fleet.plan(200)  # tried within the hour
    assert len(fleet.maker.planned_s) == 1


def test_what_is_left_of_a_plan_is_found_anew_when_its_target_was_taken() -> None:
    fleet = Fleet(MakeRoomLimits(moves_per_hour=10, move_s=100))
    card = CardUuid("n0/0")
    extra = fleet.state.take(POD["small"], 0, {"main": (_slice(card, POD["small"]),)})
    fleet.running[3] = Running(pod=POD["small"], place=0, cards=(card,), uid=extra)
    fleet.maker.started(3, fleet.running[3])
    for place in (1, 2):  # so that the cards of both are as dear to free as the first
        full = CardUuid(f"n{place}/0")
        fleet.state.take(POD["small"], place, {"main": (_slice(full, POD["small"]),)})
    fleet.plan()
    (first,) = [place for place in range(3) if fleet.closed(place)]
    assert first == 0

    fleet.maker.finish(100)
    fleet.maker.plan([], 100)
    ready, _ = fleet.maker.finish(200)

    assert [number for number, _, _ in ready] == [WAITING]
    assert len(fleet.maker.begun_s) == 2
    assert len(fleet.maker.planned_s) == 1
    # Each target took one pod of the plan.
    assert sorted(fleet.running[number].place for number in (0, 3)) == [1, 2]


def test_the_cards_are_kept_until_the_plan_is_over() -> None:
    fleet = Fleet(MakeRoomLimits(moves_per_hour=10, move_s=100, hold_s=300))
    fleet.plan()
    fleet.state.cpu_milli[0] -= 32000  # somebody took the CPU: the pod does not fit in its turn

    assert fleet.maker.finish(100) == ([], [0])
    assert fleet.closed(0)
    assert fleet.maker.finish(299) == ([], [])
    assert fleet.maker.finish(300) == ([], [0])
    assert not fleet.closed(0)
    assert fleet.maker.helped_s == []
