"""Unknown is full: an unreadable annotation of a pod or node never makes memory free."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fracgpu import names
from fracgpu.cards import annotations
from fracgpu.errors import WireError
from fracgpu.state.allocation import read_assignment
from kube.informer import ChangeType
from tests.fakes.clock import NOON
from tests.scheduler.harness import Harness
from tests.support.gpu import a_gpu_pod

CARD_MIB = 24_000
HELD = '{"train":[{"card":"GPU-n-0","mib":20000}]}'
READERS = {
    names.ASSIGNMENT: read_assignment,
    names.NODE_CARDS: annotations.read_cards,
    names.NODE_CORDONS: annotations.read_cordons,
    names.NODE_HEAT: annotations.read_heat,
    names.NODE_FOREIGN: annotations.read_foreign,
    names.NODE_USED: annotations.read_used,
}


def a_harness(*, assignment: str = HELD, **node: str) -> Harness:
    """Return one node of two cards, with a bound pod of 20,000 MiB on the first card."""
    cluster = Harness(cards=2, mib=CARD_MIB)
    pod = a_gpu_pod("bound", mib=20_000, nodeName="n")
    pod["metadata"]["annotations"][names.ASSIGNMENT] = assignment
    cluster.api.put(pod)
    cluster.see("bound", ChangeType.ADDED)
    cluster.annotate_node(node)
    return cluster


def fits(cluster: Harness, mib: int) -> bool:
    """Report whether filter passes the node for a new pod of this size."""
    cluster.api.put(a_gpu_pod("new", mib=mib))
    return bool(cluster.extender.filter(cluster.asking("new")).passed)


def free_mib(cluster: Harness) -> dict[str, int]:
    """Return the MiB that a new pod could get of each card: 0 on a node that fits none."""
    node_info = cluster.ledger.node("n", now=cluster.clock.now())
    assert node_info is not None
    closed = bool(node_info.node.problem)
    cordoned = {uuid for uuid, card_info in node_info.cards.items() if card_info.cordoned}
    return {
        uuid: 0 if closed or uuid in cordoned else max(0, card_info.free_mib)
        for uuid, card_info in node_info.cards.items()
    }


@pytest.mark.parametrize("spoilt", ["", "mine", "[]", '{"train":[{"card":"GPU-n-0"}]}'])
def test_an_assignment_that_cannot_be_read_is_counted_on_every_card_by_the_pods_limits(
    spoilt: str,
) -> None:
    cluster = a_harness(assignment=spoilt)

    assert not fits(cluster, 4_001)
    assert fits(cluster, 4_000)
    assert free_mib(cluster) == {"GPU-n-0": 4_000, "GPU-n-1": 4_000}
    gauge = "fracgpu_scheduler_unreadable_objects"
    assert cluster.count(gauge, annotation=names.ASSIGNMENT) == 1

    cluster.delete("bound")

    assert fits(cluster, CARD_MIB)
    assert cluster.count(gauge, annotation=names.ASSIGNMENT) == 0


def test_one_bad_annotation_on_a_node_no_longer_discards_the_others() -> None:
    cluster = a_harness(heat='{"GPU-n-1":1.01}', foreign='{"GPU-n-1":20000}')

    assert free_mib(cluster) == {"GPU-n-0": 4_000, "GPU-n-1": 4_000}
    assert cluster.count("fracgpu_scheduler_unreadable_objects", annotation=names.NODE_HEAT) == 1


@pytest.mark.parametrize("spoilt", ["cards", "cordons", "foreign"])
@pytest.mark.parametrize("text", ["", "{", '{"GPU-n-0":"some"}'])
def test_a_node_whose_cards_cordons_or_foreign_memory_cannot_be_read_takes_nothing_new(
    spoilt: str, text: str
) -> None:
    cluster = a_harness(**{spoilt: text})
    cluster.api.put(a_gpu_pod("new", mib=1))

    result = cluster.extender.filter(cluster.asking("new"))

    assert not result.passed
    (why,) = result.unresolvable.values()
    assert "no shared cards known" in why
    cluster.annotate_node(dict.fromkeys((spoilt,)))
    assert fits(cluster, 1) is (spoilt != "cards")


async def test_what_an_absent_agent_said_is_no_heat_any_more_and_still_no_free_memory() -> None:
    """Its clock may differ by five minutes; after fifteen it has been silent three times."""
    said = {"heat": '{"GPU-n-1":0.1}', "foreign": '{"GPU-n-1":20000}'}
    cluster = a_harness(
        **said, **{"load-time": annotations.write_time(NOON + timedelta(minutes=6))}
    )
    heats = []
    for minutes in (0, 1, 20, 1):  # six and five minutes ahead, fifteen behind, a minute more
        await cluster.clock.advance(60 * minutes)
        changed = cluster.ledger.take_changed(now=cluster.clock.now())
        node_info = cluster.ledger.node("n", now=cluster.clock.now())
        assert node_info is not None
        heats.append(
            ([card_info.heat for card_info in node_info.cards.values()][1], "n" in changed)
        )
        assert free_mib(cluster) == {"GPU-n-0": 4_000, "GPU-n-1": 4_000}

    assert heats == [(1.0, True), (0.1, True), (1.0, True), (1.0, False)]


json_bits = st.sampled_from(
    ["{", "}", "[", "]", '"', ",", ":", "-", "1.01", "1e9", "null", '"x":', "NaN", "\\", "\x00"]
)


@st.composite
def spoilt(draw: st.DrawFn, text: str) -> str:
    """Return the text truncated, or with parts replaced or inserted, up to three times."""
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 8)))
        put = draw(json_bits | st.text(max_size=4))
        text = draw(st.sampled_from([text[:start], text[:start] + put + text[end:]]))
    return text


def reads_the_same_or_not_at_all(key: str, text: str, truth: str) -> bool:
    """Report whether the damaged text is unreadable or still has its meaning.

    A text that parses to another value cannot be detected by any reader.
    """
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
        "used": '{"GPU-n-0":{"bound":19000}}',
        "cordons": '{"GPU-n-0":{"until":"2126-01-05T12:00:00Z","reason":"hot"}}',
    }
    true_free = free_mib(a_harness(**truth))
    keys = {
        "foreign": names.NODE_FOREIGN,
        "heat": names.NODE_HEAT,
        "used": names.NODE_USED,
        "cordons": names.NODE_CORDONS,
    }
    lies = {name: data.draw(spoilt(text), label=name) for name, text in truth.items()}
    assignment = data.draw(spoilt(HELD), label="assignment")
    for name, text in lies.items():
        assume(reads_the_same_or_not_at_all(keys[name], text, truth[name]))
    assume(reads_the_same_or_not_at_all(names.ASSIGNMENT, assignment, HELD))

    found = free_mib(a_harness(assignment=assignment, **lies))

    assert true_free == {"GPU-n-0": 0, "GPU-n-1": 15_000}
    assert all(found[uuid] <= true_free[uuid] for uuid in true_free)
