"""Limits are set before a container starts, read back, and only then does it start."""

from pathlib import Path

import pytest

from deviceplugin.cards.interface import GroupLimits
from deviceplugin.enforcement.driver import DriverEnforcer
from deviceplugin.enforcement.gate import Gate
from deviceplugin.enforcement.interface import EnforcementError, Limit
from deviceplugin.enforcement.kernel import KernelEnforcer
from deviceplugin.enforcement.limiter import Limiter
from deviceplugin.nri.interface import Adjustment
from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.units import Mib
from tests.deviceplugin.builders import a_pod, facts
from tests.deviceplugin.enforcement.builders import (
    TWO,
    LimitedNode,
    a_limited_container,
    a_limited_node,
)
from tests.fakes.dmem_tree import DmemTree
from tests.fakes.driver_limits import DriverModel

POD = a_pod(assigned={"train": [("GPU-a", 1000), ("GPU-b", 300)]})
CONTAINER = a_limited_container(POD)
SLICES = (POD.record.assignment or {})["train"]


@pytest.fixture
def node(tmp_path: Path) -> LimitedNode:
    node = a_limited_node(tmp_path)
    node.driver.make(node.group(CONTAINER.cgroups_path))
    node.limiter.hold_back(CONTAINER, Adjustment())
    return node


def stands(node: LimitedNode, card: str) -> GroupLimits:
    return node.driver.read(CardUuid(card), node.group(CONTAINER.cgroups_path))


def test_a_setting_that_has_no_effect_keeps_the_gate_shut(node: LimitedNode) -> None:
    node.driver.lost = 1

    with pytest.raises(EnforcementError, match="GPU-a has no limit, not of 1000 MiB"):
        node.limiter.prove(CONTAINER, node.limiter.promised(POD, SLICES))
    assert node.opened() == set()


def test_one_card_of_two_that_answers_with_an_error_keeps_the_gate_shut(node: LimitedNode) -> None:
    limits = node.limiter.promised(POD, SLICES)
    node.driver.troubles[CardUuid("GPU-b")] = "it fell off the bus"

    with pytest.raises(EnforcementError, match="fell off the bus"):
        node.limiter.prove(CONTAINER, limits)
    assert node.opened() == set()


def test_a_node_with_version_1_of_cgroups_promises_nothing_and_says_why(tmp_path: Path) -> None:
    node = a_limited_node(tmp_path)
    (tmp_path / "cgroup" / "cgroup.controllers").unlink()

    assert node.limiter.promised(POD, SLICES) == ()
    assert "driver: this node has no cgroup v2 at" in str(node.limiter.why_not(TWO[0].uuid))


def test_another_limit_than_was_set_is_named(node: LimitedNode) -> None:
    def halve(card: CardUuid, group: str, limits: GroupLimits) -> None:
        node.driver.on_set = lambda *_: None
        half = GroupLimits(guaranteed_mib=limits.guaranteed_mib, limit_mib=Mib(500))
        node.driver.set(card, group, half)
        node.driver.lost = 1

    node.driver.on_set = halve

    with pytest.raises(EnforcementError, match="has a limit of 500 MiB, not of 1000 MiB"):
        node.limiter.prove(CONTAINER, node.limiter.promised(POD, SLICES))


def test_a_pod_that_wants_no_isolation_is_promised_nothing(node: LimitedNode) -> None:
    pod = a_pod(annotations={names.ISOLATION: "none"})

    assert node.limiter.promised(pod, SLICES) == ()


def test_a_card_that_cannot_be_limited_is_promised_nothing_and_the_reason_is_known(
    tmp_path: Path,
) -> None:
    node = a_limited_node(tmp_path)
    node.driver.troubles[CardUuid("GPU-b")] = "MIG is on"

    assert [limit.card for limit in node.limiter.promised(POD, SLICES)] == ["GPU-a"]
    assert (
        node.limiter.why_not(CardUuid("GPU-b")) == f"driver: GPU-b: MIG is on ({node.driver.root})"
    )

    node.driver.troubles.clear()
    node.limiter.refresh()
    assert len(node.limiter.promised(POD, SLICES)) == 2


def test_a_card_that_could_be_limited_does_not_lose_its_promises_with_the_driver(
    node: LimitedNode,
) -> None:
    limits = node.limiter.promised(POD, SLICES)
    for card in TWO:
        node.driver.troubles[card.uuid] = "the driver is gone"

    assert node.limiter.promised(POD, SLICES) == limits


@pytest.mark.parametrize(
    "annotations",
    [
        pytest.param({names.ISOLATION: "kernel"}, id="its pod insists on limits"),
        pytest.param({names.WIRED: '{"train":{"isolation":"kernel"}}'}, id="its pod was told so"),
    ],
)
def test_a_new_agent_keeps_the_promise_for_a_card_that_cannot_be_limited_any_more(
    tmp_path: Path, annotations: dict[str, str]
) -> None:
    node = a_limited_node(tmp_path)
    node.driver.troubles[CardUuid("GPU-b")] = "the driver is gone"
    Path(node.group(CONTAINER.cgroups_path)).mkdir(parents=True)
    pod = a_pod(assigned={"train": [("GPU-a", 1000), ("GPU-b", 300)]}, annotations=annotations)

    promised = node.limiter.limits_of(CONTAINER, pod)
    for unknown in (None, a_pod(assigned={})):
        with pytest.raises(EnforcementError, match="does not know its cards"):
            node.limiter.limits_of(CONTAINER, unknown)

    assert [limit.card for limit in promised] == ["GPU-a", "GPU-b"]
    with pytest.raises(EnforcementError, match="GPU-b cannot be limited: driver: GPU-b: the dri"):
        node.limiter.verify(CONTAINER, promised[1])


def test_what_the_node_says_is_known_once_every_card_was_probed(tmp_path: Path) -> None:
    node = a_limited_node(tmp_path)
    assert node.limiter.unlimited is None

    node.driver.troubles[CardUuid("GPU-b")] = "MIG is on"
    node.limiter.refresh()
    assert str(node.limiter.unlimited).startswith("GPU-b: driver: GPU-b: MIG is on")

    node.driver.troubles.clear()
    node.limiter.refresh()
    assert node.limiter.unlimited == ""


def test_switched_off_nothing_is_promised(tmp_path: Path) -> None:
    gate = Gate(tmp_path, tmp_path, problem=lambda: None)
    limiter = Limiter((), cards=dict, gate=gate, root=tmp_path)

    assert limiter.why_not(TWO[0].uuid) == limiter.unlimited == "--limits is none"
    assert limiter.promised(POD, SLICES) == ()


def test_without_the_hook_nothing_is_promised_until_it_runs(tmp_path: Path) -> None:
    problems = ["the hook is on a noexec mount"]
    node = a_limited_node(tmp_path)
    gate = Gate(tmp_path, tmp_path, problem=lambda: problems[0] if problems else None)
    limiter = Limiter(
        (DriverEnforcer(node.driver, tmp_path / "cgroup"),),
        cards=lambda: {card.uuid: facts(card) for card in TWO},
        gate=gate,
        root=tmp_path / "cgroup",
    )

    assert limiter.why_not(TWO[0].uuid) == "the hook is on a noexec mount"
    problems.clear()
    assert limiter.why_not(TWO[0].uuid) is None


def test_the_kernel_limits_what_the_driver_does_not(tmp_path: Path) -> None:
    """As on a node with cards of AMD: NVML knows none of them."""
    tree = DmemTree(tmp_path, regions=("drm/0000:00:00.0/vram0",))
    driver = DriverModel(root=str(tmp_path), troubles={card.uuid: "no such card" for card in TWO})
    limiter = Limiter(
        (DriverEnforcer(driver, tmp_path), KernelEnforcer(tmp_path, write=tree.write)),
        cards=lambda: {card.uuid: facts(card) for card in TWO},
        gate=Gate(tmp_path, tmp_path / "gates", problem=lambda: None),
        root=tmp_path,
    )
    # Neither is shown to keep a guarantee that others have borrowed.
    assert not any(limiter.keeps_guarantees(card.uuid) for card in TWO)
    folder = tree.make(CONTAINER.cgroups_path)
    limiter.hold_back(CONTAINER, Adjustment())
    limiter.prove(CONTAINER, limiter.promised(POD, SLICES))

    assert (folder / "dmem.max").read_text() == f"drm/0000:00:00.0/vram0 {1000 << 20}\n"
    reason = str(limiter.why_not(TWO[1].uuid))
    assert "driver: GPU-b: no such card" in reason
    assert "kernel: the kernel does not count" in reason


def test_a_runtime_that_does_not_say_the_cgroup_starts_nothing_that_is_promised_a_limit(
    node: LimitedNode,
) -> None:
    lost = a_limited_container(POD)
    for path in ("", "../x"):
        container = type(lost)(id="c", sandbox_id="s", name="train", cgroups_path=path)
        with pytest.raises(EnforcementError, match="no path of a cgroup"):
            node.limiter.hold_back(container, Adjustment())
        with pytest.raises(EnforcementError, match="no path of a cgroup"):
            node.limiter.prove(container, [])


def test_what_is_kept_for_a_container_is_given_back_before_its_cgroup_goes(
    node: LimitedNode,
) -> None:
    limits = node.limiter.promised(POD, SLICES)
    node.limiter.prove(CONTAINER, limits)
    pods = node.group("/kubepods")
    assert node.driver.read(CardUuid("GPU-a"), pods).guaranteed_mib == 1000

    node.limiter.release(CONTAINER)

    assert node.driver.read(CardUuid("GPU-a"), pods).guaranteed_mib == 0
    assert stands(node, "GPU-a") == GroupLimits(guaranteed_mib=Mib(0), limit_mib=None)
    node.driver.remove(node.group(CONTAINER.cgroups_path))
    node.limiter.release(CONTAINER)  # too late, and only logged


def test_what_is_kept_is_given_back_also_when_the_pod_is_gone_and_by_another_agent(
    node: LimitedNode, tmp_path: Path
) -> None:
    node.limiter.prove(CONTAINER, node.limiter.promised(POD, SLICES))
    later = Limiter(
        (DriverEnforcer(node.driver, tmp_path / "cgroup"),),
        cards=lambda: {card.uuid: facts(card) for card in TWO},
        gate=Gate(tmp_path, node.gates, problem=lambda: None),
        root=tmp_path / "cgroup",
    )

    later.release(CONTAINER)

    for card in ("GPU-a", "GPU-b"):
        assert node.driver.read(CardUuid(card), node.group("/kubepods")).guaranteed_mib == 0


def test_of_a_container_that_was_promised_nothing_nothing_is_taken_away(node: LimitedNode) -> None:
    node.limiter.prove(CONTAINER, node.limiter.promised(POD, SLICES))
    another = a_limited_container(POD, held_back=False)

    node.limiter.release(another)

    assert stands(node, "GPU-a").guaranteed_mib == 1000


def test_what_the_driver_counts_is_known_of_running_containers_that_have_limits(
    node: LimitedNode,
) -> None:
    node.limiter.prove(CONTAINER, node.limiter.promised(POD, SLICES))
    node.driver.used_mib[CardUuid("GPU-a"), node.group(CONTAINER.cgroups_path)] = 640
    free = a_limited_container(a_pod("free"), held_back=False)
    gone = a_limited_container(a_pod("gone"))
    running = {each.id: (uid, each) for uid, each in [("f", free), ("uid-gone", gone)]}
    running[CONTAINER.id] = (POD.record.uid, CONTAINER)
    pods = {POD.record.uid: POD, "uid-gone": a_pod("gone")}

    found = node.limiter.counted(running, pods)

    whose = POD.record.uid, "train"
    assert found == {
        (*whose, "GPU-a"): GroupLimits(
            guaranteed_mib=Mib(1000), limit_mib=Mib(1000), used_mib=Mib(640)
        ),
        (*whose, "GPU-b"): GroupLimits(guaranteed_mib=Mib(300), limit_mib=Mib(300)),
    }


def test_a_limit_of_a_card_that_is_gone_is_refused(node: LimitedNode) -> None:
    limit = Limit(card=CardUuid("GPU-x"), guaranteed_mib=Mib(1), limit_mib=Mib(1))

    with pytest.raises(EnforcementError, match="GPU-x cannot be limited: it is not among"):
        node.limiter.prove(CONTAINER, [limit])
