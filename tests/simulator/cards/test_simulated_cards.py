"""Simulated cards: their load is exactly that of their containers."""

from dataclasses import replace
from pathlib import Path

import pytest

from deviceplugin.cards.interface import CardsUnavailableError, DeviceNode
from fracgpu.cards.card import Card, CardUuid, Health
from fracgpu.units import Mib
from simulator.cards.processes import ProcessFolder, SimulatedProcess
from simulator.cards.simulated_cards import (
    SimulatedCards,
    cards_document,
    open_cards,
    write_cards_file,
)
from tests.fakes.clock import VirtualClock

A, B = CardUuid("GPU-a"), CardUuid("GPU-b")


def a_card(uuid: CardUuid = A, *, index: int = 0, health: Health = Health.HEALTHY) -> Card:
    return Card(
        uuid=uuid,
        index=index,
        model="NVIDIA A30",
        total_mib=Mib(24576),
        reserved_mib=Mib(576),
        numa_node=index,
        health=health,
    )


TWO = (a_card(A), a_card(B, index=1))


def some_cards(folder: Path) -> tuple[SimulatedCards, ProcessFolder]:
    write_cards_file(folder / "cards.json", cards_document(TWO))
    simulated = SimulatedCards(folder / "cards.json", VirtualClock())
    return simulated, ProcessFolder(folder / "processes")


def a_process(
    pid: int, *cards: str, used_mib: int = 1000, busy_ratio: float = 0.0
) -> SimulatedProcess:
    return SimulatedProcess(pid=pid, cards=cards or (A,), used_mib=used_mib, busy_ratio=busy_ratio)


async def percents(cards: SimulatedCards) -> dict[str, float]:
    readings = (await cards.read()).samples
    return {uuid: reading.figures.gpu_percent or 0.0 for uuid, reading in readings.items()}


async def test_the_file_says_what_stands_in_the_node(tmp_path: Path) -> None:
    nodes = {A: ["/dev/nvidia0", "/dev/nvidia9=/tmp/fake9"]}
    document = cards_document(TWO, device_nodes=nodes, driver="570.1")
    write_cards_file(tmp_path / "cards.json", document)

    card_list = await open_cards(tmp_path / "cards.json").list_cards()

    assert tuple(listed.card for listed in card_list.cards) == TWO
    assert card_list.driver == "570.1"
    assert card_list.cards[0].device_nodes == (
        DeviceNode(path="/dev/nvidia0"),
        DeviceNode(path="/dev/nvidia9", host_path="/tmp/fake9"),  # noqa: S108 - not opened
    )


async def test_yaml_serves_as_well_as_json(tmp_path: Path) -> None:
    file = tmp_path / "cards.yaml"
    text = "cards:\n- {uuid: GPU-a, index: 0, model: NVIDIA A30, mib: 24576, reservedMib: 576}\n"
    file.write_text(text)

    card_list = await open_cards(file).list_cards()

    assert card_list.cards[0].card.capacity_mib == 24000


async def test_load_is_the_sum_of_the_wishes_on_a_card(tmp_path: Path) -> None:
    cards, processes = some_cards(tmp_path)
    processes.write(a_process(1, A, busy_ratio=0.3))
    processes.write(a_process(2, A, busy_ratio=0.25))
    processes.write(a_process(3, A, B, busy_ratio=0.1))

    observed = await percents(cards)

    assert observed[A] == pytest.approx(65, abs=2)
    assert observed[B] == pytest.approx(10, abs=2)


async def test_a_saturated_card_is_divided_by_the_wishes(tmp_path: Path) -> None:
    cards, processes = some_cards(tmp_path)
    processes.write(a_process(1, busy_ratio=0.9))
    processes.write(a_process(2, busy_ratio=0.3))

    reading = (await cards.read()).samples[A]

    percent = reading.figures.gpu_percent
    assert percent is not None
    assert 98 <= percent <= 100
    shares = {process.pid: process.sm_percent or 0.0 for process in reading.processes}
    assert shares[1] == pytest.approx(3 * shares[2])
    assert sum(shares.values()) == pytest.approx(percent, abs=0.5)


async def test_memory_figures_follow_the_processes_and_end_at_the_cards_size(
    tmp_path: Path,
) -> None:
    cards, processes = some_cards(tmp_path)
    processes.write(a_process(1, used_mib=5000))
    part = (await cards.read()).samples[A].figures
    processes.write(a_process(2, used_mib=50_000))
    full = (await cards.read()).samples[A].figures

    assert (part.used_mib, part.free_mib, part.reserved_mib) == (5000, 19000, 576)
    assert (full.used_mib, full.free_mib) == (24000, 0)


async def test_energy_grows_with_time(tmp_path: Path) -> None:
    write_cards_file(tmp_path / "cards.json", cards_document(TWO))
    clock = VirtualClock()
    cards = SimulatedCards(tmp_path / "cards.json", clock)
    before = (await cards.read()).samples[A].figures.energy_mj
    await clock.advance(10)
    after = (await cards.read()).samples[A].figures.energy_mj

    assert before == 0
    assert after == 620_000  # 62 W for 10 s


async def test_a_card_falls_ill_and_recovers_with_its_file(tmp_path: Path) -> None:
    cards, _ = some_cards(tmp_path)
    observed = [(await cards.list_cards()).cards[0].card.health]
    for health in (Health.UNHEALTHY, Health.HEALTHY):
        write_cards_file(
            tmp_path / "cards.json", cards_document([a_card(A, health=health), TWO[1]])
        )
        observed.append((await cards.list_cards()).cards[0].card.health)

    assert observed == [Health.HEALTHY, Health.UNHEALTHY, Health.HEALTHY]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("cards: [{uuid: GPU-a}]", "index"),
        ("cards: [{uuid: a, index: 0, model: m, mib: 1, colour: red}]", "colour"),
        ("cards: [{uuid: a, index: 0, model: m, mib: 1, health: so-so}]", "so-so"),
        ("cards: [", "cards.yaml"),
        ("7", "Expected"),
    ],
)
async def test_a_file_that_makes_no_sense_is_refused_with_the_reason(
    tmp_path: Path, text: str, complaint: str
) -> None:
    file = tmp_path / "cards.yaml"
    file.write_text(text)

    with pytest.raises(CardsUnavailableError, match=complaint):
        await open_cards(file).list_cards()


async def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CardsUnavailableError, match=r"none\.json"):
        await open_cards(tmp_path / "none.json").list_cards()


def test_processes_are_written_read_and_removed(tmp_path: Path) -> None:
    folder = ProcessFolder(tmp_path / "processes")
    written = (a_process(2, A, B, busy_ratio=0.5), a_process(9, B))
    for process in reversed(written):
        folder.write(process)
    (tmp_path / "processes" / "junk.json").write_text("{")

    assert folder.read() == written
    folder.remove(2)
    folder.remove(2)
    assert folder.read() == written[1:]
    folder.clear()
    assert folder.read() == ()


async def test_only_cards_since_hopper_measure_a_profile(tmp_path: Path) -> None:
    found = {}
    for family in ("ampere", "hopper"):
        file = tmp_path / family / "cards.json"
        write_cards_file(file, cards_document(TWO, family=family))
        cards = SimulatedCards(file, VirtualClock())
        cards.processes.write(a_process(1, busy_ratio=0.5))
        assert (await cards.list_cards()).family == family
        found[family] = (await cards.read()).samples[CardUuid(A)].figures

    assert found["ampere"].tensor_ratio is None
    assert found["ampere"].pcie_tx_bytes_per_s is None
    assert found["hopper"].gr_engine_ratio == pytest.approx(0.5, abs=0.03)
    assert 0 < (found["hopper"].tensor_ratio or 0) < 0.5


async def test_xid_errors_and_links_stand_in_the_file(tmp_path: Path) -> None:
    linked = (replace(TWO[0], links={TWO[1].uuid: 3}), TWO[1])
    document = cards_document(linked)
    document["cards"][1]["xids"] = [31, 79, 31]
    write_cards_file(tmp_path / "cards.json", document)
    cards = SimulatedCards(tmp_path / "cards.json", VirtualClock())

    card_list, readings = await cards.list_cards(), (await cards.read()).samples

    assert [dict(listed.card.links) for listed in card_list.cards] == [{TWO[1].uuid: 3}, {}]
    assert [readings[card.uuid].figures.xid for card in TWO] == [0, 31]
    assert dict(readings[TWO[1].uuid].xids) == {31: 2, 79: 1}


async def test_one_file_gives_each_node_cards_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "cards.yaml"
    file.write_text("cards: [{uuid: 'GPU-{node}-0', index: 0, model: A100, mib: 40960}]")

    found = {node: await open_cards(file, node=node).list_cards() for node in ("n1", "n2")}

    assert [listing.cards[0].card.uuid for listing in found.values()] == ["GPU-n1-0", "GPU-n2-0"]
