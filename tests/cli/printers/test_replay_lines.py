"""The table of a replay: one column for each policy, moves below it if wanted."""

from cli.printers.replay_lines import replay_table
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.request.need import Strategy
from simulator.usage_replay.world import ReplayedWorld
from tests.fakes.clock import NOON
from tests.support.recorded import REPLICAS, a_piece


def worlds() -> dict[str, ReplayedWorld]:
    found = {}
    for name, policy in (("none", None), ("present", RebalancerPolicy())):
        world = ReplayedWorld(
            policy, strategy=Strategy.PACK, step_s=60, startup_s=60, hot_ratio=0.8
        )
        pods = {REPLICAS[0]: ("n1/0", 0.5), REPLICAS[1]: ("n1/0", 0.45)}
        for _ in world.play(a_piece(NOON, cards=("n1/0", "n2/0"), pods=pods, frames=90)):
            pass
        found[name] = world
    return found


def test_figures_stand_side_by_side() -> None:
    lines = [line.text for line in replay_table(worlds(), (NOON, NOON), frames=90, moves=False)]

    assert lines[0].endswith("UTC, 90 cycles")
    assert lines[1].split() == ["none", "present"]
    assert lines[2].split() == ["moves", "0", "1"]
    assert lines[5].split()[:3] == ["hot", "card-hours", "1.5"]
    assert lines[9:11] == ["", "held back, present:"]
    assert all(line.split()[0].isdigit() for line in lines[11:])


def test_moves_are_listed_for_the_policies_that_made_some() -> None:
    lines = [line.text for line in replay_table(worlds(), (NOON, NOON), frames=90, moves=True)]

    assert [line for line in lines if line.startswith("moves, ")] == ["moves, present:"]
    assert f"ml/{REPLICAS[1]}  n1/0 -> n2/0  gain" in lines[-1]
