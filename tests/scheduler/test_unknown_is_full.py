"""Unknown is full: what cannot be read on a pod or a node never makes anything free."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fracgpu import names
from fracgpu.cards import annotations
from fracgpu.errors import WireError
from fracgpu.state import assignment as assignment_module
from kube.informer import ChangeType
from tests.fakes.clock import NOON
from tests.scheduler.world import World
from tests.support.gpu import a_gpu_pod

CARD_MIB = 24_000
HELD = '{"train":[{"card":"GPU-n-0","mib":20000}]}'
READERS = {
    names.ASSIGNMENT: assignment_module.read_assignment,
    names.NODE_CARDS: annotations.read_cards,
    names.NODE_CORDONS: annotations.read_cordons,
    names.NODE_HEAT: annotations.read_heat,
    names.NODE_FOREIGN: annotations.read_foreign,
}


def a_world(*, assignment: str = HELD, **node: str) -> World:
    """One node of two cards, with a bound pod of 20,000 MiB on the first; annotations by name."""
    world = World(cards=2, mib=CARD_MIB)
    pod = a_gpu_pod("bound", mib=20_000, nodeName="n")
    pod["metadata"]["annotations"][names.ASSIGNMENT] = assignment
    world.api.put(pod)
    world.see("bound", ChangeType.ADDED)
    world.annotate_node(node)
    return world


def fits(world: World, mib: int) -> bool:
    """Whether kube-scheduler would be told that a new pod of this size fits on the node."""
    world.api.put(a_gpu_pod("new", mib=mib))
    return bool(world.extender.filter(world.asking("new")).passed)


def free_mib(world: World) -> dict[str, int]:
    """What a new pod could get of each card: nothing of a node that takes none."""
    loads = world.ledger.node("n", now=world.clock.now())
    assert loads is not None
    closed = bool(loads.node.problem)
    cordoned = {uuid for uuid, load in loads.cards.items() if load.cordoned}
    return {
        uuid: 0 if closed or uuid in cordoned else max(0, load.free_mib)
        for uuid, load in loads.cards.items()
    }


@pytest.mark.parametrize("spoilt", ["", "mine", "[]", '{"train":[{"card":"GPU-n-0"}]}'])
def test_an_assignment_that_cannot_be_read_is_counted_on_every_card_by_the_pods_limits(
    spoilt: str,
) -> None:
    world = a_world(assignment=spoilt)

    assert not fits(world, 4_001)
    assert fits(world, 4_000)
    assert free_mib(world) == {"GPU-n-0": 4_000, "GPU-n-1": 4_000}
    gauge = "fracgpu_scheduler_unreadable_objects"
    assert world.count(gauge, annotation=names.ASSIGNMENT) == 1

    world.delete("bound")

    assert fits(world, CARD_MIB)
    assert world.count(gauge, annotation=names.ASSIGNMENT) == 0


def test_without_limits_that_can_be_read_such_a_pod_takes_every_card() -> None:
    world = World(cards=2, mib=CARD_MIB)
    pod = a_gpu_pod("bound", nodeName="n", annotations={names.ASSIGNMENT: "?"})
    pod["spec"]["containers"][0]["resources"] = {}
    world.api.put(pod)
    world.see("bound", ChangeType.ADDED)

    assert not fits(world, 1)


def test_a_field_of_a_later_version_is_skipped() -> None:
    later = '{"train":[{"card":"GPU-n-0","mib":20000,"since":"2027"}]}'

    world = a_world(assignment=later)

    assert free_mib(world) == {"GPU-n-0": 4_000, "GPU-n-1": CARD_MIB}


def test_one_bad_annotation_on_a_node_no_longer_discards_the_others() -> None:
    world = a_world(heat='{"GPU-n-1":1.01}', foreign='{"GPU-n-1":20000}')

    assert free_mib(world) == {"GPU-n-0": 4_000, "GPU-n-1": 4_000}
    assert world.count("fracgpu_scheduler_unreadable_objects", annotation=names.NODE_HEAT) == 1


@pytest.mark.parametrize("spoilt", ["cards", "cordons", "foreign"])
@pytest.mark.parametrize("text", ["", "{", '{"GPU-n-0":"some"}'])
def test_a_node_whose_cards_cordons_or_foreign_memory_cannot_be_read_takes_nothing_new(
    spoilt: str, text: str
) -> None:
    world = a_world(**{spoilt: text})
    world.api.put(a_gpu_pod("new", mib=1))

    result = world.extender.filter(world.asking("new"))

    assert not result.passed
    (why,) = result.unresolvable.values()
    assert "no shared cards known" in why
    world.annotate_node(dict.fromkeys((spoilt,)))
    assert fits(world, 1) is (spoilt != "cards")


def test_a_card_of_unknown_heat_is_not_taken_for_a_cool_one() -> None:
    world = a_world(heat='{"GPU-n-0":0.4}', **{"load-time": annotations.write_time(NOON)})
    loads = world.ledger.node("n", now=world.clock.now())

    assert loads is not None
    assert [load.heat for load in loads.cards.values()] == [0.4, 1.0]


@pytest.mark.parametrize("load_time", [None, "", "then"])
def test_heat_whose_time_is_unknown_is_unknown_and_closes_no_node(load_time: str | None) -> None:
    notes = {} if load_time is None else {"load-time": load_time}
    world = a_world(heat='{"GPU-n-0":0.1}', **notes)
    loads = world.ledger.node("n", now=world.clock.now())

    assert loads is not None
    assert [load.heat for load in loads.cards.values()] == [1.0, 1.0]
    assert fits(world, CARD_MIB)


async def test_what_an_absent_agent_said_is_no_heat_any_more_and_still_no_free_memory() -> None:
    """Its clock may differ by five minutes; after fifteen it has been silent three times."""
    said = {"heat": '{"GPU-n-1":0.1}', "foreign": '{"GPU-n-1":20000}'}
    world = a_world(**said, **{"load-time": annotations.write_time(NOON + timedelta(minutes=6))})
    heats = []
    for minutes in (0, 1, 20, 1):  # six and five minutes ahead, fifteen behind, a minute more
        await world.clock.advance(60 * minutes)
        changed = world.ledger.take_changed(now=world.clock.now())
        loads = world.ledger.node("n", now=world.clock.now())
        assert loads is not None
        heats.append(([load.heat for load in loads.cards.values()][1], "n" in changed))
        assert free_mib(world) == {"GPU-n-0": 4_000, "GPU-n-1": 4_000}

    assert heats == [(1.0, True), (0.1, True), (1.0, True), (1.0, False)]


# -- nothing that spoils a text makes a card freer than it is --------------------------------------

json_bits = st.sampled_from(
    ["{", "}", "[", "]", '"', ",", ":", "-", "1.01", "1e9", "null", '"x":', "NaN", "\\", "\x00"]
)


@st.composite
def spoilt(draw: st.DrawFn, text: str) -> str:
    """The text cut short, or with a stretch replaced or something put in, up to three times."""
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 8)))
        put = draw(json_bits | st.text(max_size=4))
        text = draw(st.sampled_from([text[:start], text[:start] + put + text[end:]]))
    return text


def reads_the_same_or_not_at_all(key: str, text: str, truth: str) -> bool:
    """A text that can be read and says something else is a lie, and no reader finds out."""
    try:
        return READERS[key](text) == READERS[key](truth) and bool(text)
    except WireError:
        return True


@settings(deadline=None)
@given(data=st.data())
def test_no_corruption_makes_more_free_than_there_is(data: st.DataObject) -> None:
    truth: dict[str, Any] = {
        "foreign": '{"GPU-n-1":9000}',
        "heat": '{"GPU-n-0":0.5,"GPU-n-1":0.25}',
        "cordons": '{"GPU-n-0":{"until":"2126-01-05T12:00:00Z","reason":"hot"}}',
    }
    true_free = free_mib(a_world(**truth))
    keys = {"foreign": names.NODE_FOREIGN, "heat": names.NODE_HEAT, "cordons": names.NODE_CORDONS}
    lies = {name: data.draw(spoilt(text), label=name) for name, text in truth.items()}
    assignment = data.draw(spoilt(HELD), label="assignment")
    for name, text in lies.items():
        assume(reads_the_same_or_not_at_all(keys[name], text, truth[name]))
    assume(reads_the_same_or_not_at_all(names.ASSIGNMENT, assignment, HELD))

    found = free_mib(a_world(assignment=assignment, **lies))

    assert true_free == {"GPU-n-0": 0, "GPU-n-1": 15_000}
    assert all(found[uuid] <= true_free[uuid] for uuid in true_free)
