"""The runtime names a container: it gets its own pod's cards, or the start is refused."""

import math
import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from deviceplugin.cards.interface import CardHardware, CardList, DeviceNode
from deviceplugin.claims import Claim, RejectReason
from deviceplugin.container.cdi import ABSENT, MARK_PATH, SHARED, qualified_name
from deviceplugin.container.mps import ANSWERED, CONTROL, boot_s
from deviceplugin.enforcement.gate import PROOF_PATH, Gate
from deviceplugin.enforcement.limiter import Limiter
from deviceplugin.identity.starts import ContainerStarts
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.nri.interface import (
    Adjustment,
    Container,
    ContainerState,
    Mount,
    PodSandbox,
    Refused,
)
from fracgpu import names
from fracgpu.cards.card import Card, CardUuid
from fracgpu.state.allocation import Slice, write_assignment
from fracgpu.state.pod_info import PodInfo
from fracgpu.units import Mib
from tests.deviceplugin.builders import (
    NODE,
    VANISHING,
    FakeCards,
    a_card,
    a_container,
    a_pod,
    a_resized_pod,
    a_spec_builder,
    a_tracker,
)
from tests.deviceplugin.enforcement.builders import a_limited_container, a_limited_node
from tests.fakes.clock import VirtualClock

OLD_MARK = "/var/run/cdi/fracgpu.io-slot_0123456789abcdef.fedcba9876543210"
MI210 = a_card("AMD-a", model="AMD Instinct MI210")
TWO = (a_card("GPU-a"), a_card("GPU-b", index=1))


class Rig:
    """A node's starts by NRI: what was answered, counted and noted."""

    def __init__(
        self,
        starts: ContainerStarts,
        started: list[Claim],
        isolations: list[str],
        registry: CollectorRegistry,
        clock: VirtualClock,
    ) -> None:
        self.starts = starts
        self.clock = clock
        self.started = started
        self.isolations = isolations
        self._registry = registry

    def outcome(self, name: str) -> float:
        sample = "fracgpu_deviceplugin_starts_total"
        return self._registry.get_sample_value(sample, {"outcome": name}) or 0


def no_limits() -> Limiter:
    """A node that limits nothing."""
    gate = Gate(Path(), Path("/nowhere"), problem=lambda: None)
    return Limiter((), cards=dict, gate=gate, root=Path("/nowhere"))


async def a_rig(  # noqa: PLR0913 - what a test may set of a node
    *pods: PodInfo,
    listed: bool = True,
    cards: Sequence[Card] = TWO,
    nodes: Sequence[str] = (),
    limiter: Limiter | None = None,
    known: Mapping[str, PodInfo] | None = None,
    node_folder: Path = Path("/nonexistent"),
    slots: int = 2,
    looks: float = math.inf,
) -> Rig:
    fake, registry, clock = FakeCards(*cards), CollectorRegistry(), VirtualClock()
    files = [DeviceNode(path=f"/dev/nvidia{n}", host_path=at) for n, at in enumerate(nodes)]
    fake.answer = CardList(
        cards=tuple(
            CardHardware(
                card=card,
                device_nodes=tuple(files[number : number + 1]),
                compute_units=64 if card.model.startswith("AMD") else 0,
            )
            for number, card in enumerate(cards)
        )
    )
    tracker = a_tracker(fake, clock, slots_per_card=slots)
    await tracker.refresh()
    tracker.looks = looks
    if known is None:
        known = {pod.record.uid: pod for pod in pods}
    started: list[Claim] = []
    isolations: list[str] = []

    def note(claim: Claim, isolation: str) -> None:
        started.append(claim)
        isolations.append(isolation)

    starts = ContainerStarts(
        node=NODE,
        tracker=tracker,
        pods=lambda: known if listed else None,
        builder=a_spec_builder(node_folder),
        limiter=limiter or no_limits(),
        clock=clock,
        metrics=DevicePluginMetrics(registry),
        on_started=note,
    )
    return Rig(starts, started, isolations, registry, clock)


def a_sandbox(pod: PodInfo, **changes: str) -> PodSandbox:
    record = pod.record
    notes = {key: text for key, text in pod.annotations.items() if key == names.ASSIGNMENT}
    return PodSandbox(
        id=f"sandbox-{record.uid}",
        uid=changes.pop("uid", record.uid),
        name=record.name,
        namespace=record.namespace,
        annotations=notes | changes,
    )


def created(name: str = "train", *, mark: str = ABSENT, cdi: Sequence[str] = ()) -> Container:
    """A container as the runtime is about to create it."""
    mounts = [Mount(destination=MARK_PATH, source=mark)] if mark else []
    return Container(
        id=f"id-{name}", sandbox_id="sandbox", name=name, mounts=mounts, cdi_devices=cdi
    )


async def test_a_container_gets_its_card_and_the_mount_that_holds_it_back_is_replaced() -> None:
    pod = a_pod(assigned={"train": [("GPU-b", 1000)]})
    rig = await a_rig(pod, nodes=["/dev/null", "/dev/zero"])

    answer = rig.starts.create_container(a_sandbox(pod), created())

    assert answer.env[names.ENV_VISIBLE_DEVICES] == "GPU-b"
    assert [(device.path, device.major, device.minor) for device in answer.devices] == [
        ("/dev/nvidia1", 1, 5)
    ]
    assert [(mount.destination, mount.source) for mount in answer.mounts] == [
        (MARK_PATH, "/dev/null")
    ]
    assert rig.outcome("wired") == 1
    assert [claim.container for claim in rig.started] == ["train"]


@VANISHING
async def test_a_container_whose_card_vanishes_while_it_starts_is_refused_or_gets_it(
    looks: int,
) -> None:
    pod = a_pod()
    rig = await a_rig(pod, looks=looks)

    with suppress(Refused):
        answer = rig.starts.create_container(a_sandbox(pod), created())
        assert answer.env[names.ENV_VISIBLE_DEVICES] == "GPU-a"

    assert rig.outcome("wired") + rig.outcome("card_not_here") == 1


async def test_a_container_that_kubelet_may_start_is_awaited_until_the_runtime_asks() -> None:
    pod = a_pod()
    rig = await a_rig(pod)
    rig.starts.expect()
    rig.starts.expect()

    refusal(rig, a_sandbox(a_pod("unknown")), created())
    rig.starts.create_container(a_sandbox(a_pod("other", assigned={})), created(mark=""))
    one_left = rig.starts.unasked
    rig.starts.create_container(a_sandbox(pod), created())

    assert (one_left, rig.starts.unasked) == (True, False)


async def test_a_container_that_is_never_created_is_awaited_for_seconds_only() -> None:
    pod = a_pod()
    rig = await a_rig(pod)
    rig.starts.expect()
    await rig.clock.advance(6)
    late = rig.starts.unasked
    rig.starts.expect()
    early = rig.starts.unasked

    rig.starts.create_container(a_sandbox(pod), created())

    assert (late, early, rig.starts.unasked) == (False, True, False)


async def test_each_container_of_a_pod_gets_its_own_card() -> None:
    """Init container, sidecar and app containers, one of them with two cards."""
    assigned = {
        "prepare": [("GPU-b", 100)],
        "proxy": [("GPU-a", 200)],
        "train": [("GPU-b", 300), ("GPU-a", 300)],
    }
    pod = a_pod(
        assigned=assigned,
        inits=[
            a_container("prepare", mib=100),
            a_container("proxy", mib=200, restart_policy="Always"),
        ],
        containers=[a_container("train", mib=300, slots=2), {"name": "main"}],
    )
    rig = await a_rig(pod)

    answers = {
        name: rig.starts.create_container(a_sandbox(pod), created(name)) for name in assigned
    }

    assert {name: answer.env[names.ENV_VISIBLE_DEVICES] for name, answer in answers.items()} == {
        "prepare": "GPU-b",
        "proxy": "GPU-a",
        "train": "GPU-b,GPU-a",
    }
    main = rig.starts.create_container(a_sandbox(pod), created("main", mark=""))
    assert main == Adjustment()


async def test_a_container_of_ours_is_known_by_its_mount_its_device_or_its_assignment() -> None:
    pod = a_pod()
    rig = await a_rig(pod)

    for container in (
        created(),
        created(mark="", cdi=[qualified_name(SHARED)]),
        created(mark=""),  # a runtime that resolves CDI devices after it has asked us
    ):
        answer = rig.starts.create_container(a_sandbox(pod), container)
        assert answer.env[names.ENV_VISIBLE_DEVICES] == "GPU-a"


async def test_a_strangers_container_is_left_alone_and_known_by_its_cgroup() -> None:
    rig = await a_rig(a_pod())
    sandbox = PodSandbox(id="s", uid="uid-x", name="web", namespace="default")
    container = Container(id="c", sandbox_id="s", name="web", cgroups_path="/kubepods/podx/c")

    assert rig.starts.create_container(sandbox, container) == Adjustment()
    assert rig.starts.containers == {"c": ("uid-x", "/kubepods/podx/c")}

    rig.starts.remove_container(sandbox, container)
    assert rig.starts.containers == {}
    every = [replace(container, id=state.name, state=state) for state in ContainerState]
    rig.starts.synchronize([sandbox], every)
    assert rig.starts.containers["RUNNING"] == ("uid-x", "/kubepods/podx/c")
    assert rig.starts.containers.keys() == set(ContainerState.__members__)
    # Whose limits are audited.
    assert (rig.starts.running or {}).keys() == {"RUNNING", "PAUSED"}


def refusal(rig: Rig, sandbox: PodSandbox, container: Container) -> str:
    with pytest.raises(Refused) as caught:
        rig.starts.create_container(sandbox, container)
    assert rig.started == []
    assert rig.starts.containers == {}
    return str(caught.value)


async def test_a_pod_made_anew_under_its_name_is_another_pod() -> None:
    rig = await a_rig(a_pod())

    text = refusal(rig, a_sandbox(a_pod(), uid="uid-new"), created())

    assert "uid-new" in text
    assert rig.outcome(RejectReason.UNKNOWN_POD.value) == 1


async def test_a_static_pod_that_writes_its_own_assignment_gets_nothing() -> None:
    """Its mirror pod in the API server has another UID."""
    rig = await a_rig()

    assert "does not know pod ml/train-0" in refusal(rig, a_sandbox(a_pod()), created())


@pytest.mark.parametrize("text", ["", '{"train":[["GPU-b",1000]]}'])
async def test_an_assignment_in_the_sandbox_that_the_api_server_does_not_have_is_refused(
    text: str,
) -> None:
    rig = await a_rig(a_pod())

    refusal(rig, a_sandbox(a_pod(), **{names.ASSIGNMENT: text}), created())

    assert rig.outcome(RejectReason.DIFFERS.value) == 1


async def test_a_spec_of_an_older_agent_that_the_runtime_remembers_is_not_added_to() -> None:
    """It may give another pod's card: kubelet gives one slot to two pods."""
    rig = await a_rig(a_pod())

    refusal(rig, a_sandbox(a_pod()), created(mark=OLD_MARK))

    assert rig.outcome(RejectReason.OLD_SPEC.value) == 1


async def test_what_agrees_not_with_the_containers_limits_is_refused_here_too() -> None:
    pod = a_pod(assigned={"train": [("GPU-a", 900)]})
    rig = await a_rig(pod)

    refusal(rig, a_sandbox(pod), created())

    assert rig.outcome(RejectReason.WRONG_SIZE.value) == 1


async def test_before_the_pods_are_listed_only_containers_of_others_start() -> None:
    rig = await a_rig(a_pod(), listed=False)

    assert "not listed yet" in refusal(rig, a_sandbox(a_pod()), created())
    assert rig.starts.create_container(a_sandbox(a_pod()), created("web", mark="")) == Adjustment()


async def test_a_device_file_that_is_gone_refuses_the_start(tmp_path: Path) -> None:
    rig = await a_rig(a_pod(), nodes=[str(tmp_path / "gone"), "/dev/zero"])

    assert "gone" in refusal(rig, a_sandbox(a_pod()), created())
    assert rig.outcome("no_outfit") == 1


async def test_a_container_with_a_promised_limit_starts_once_it_stands(tmp_path: Path) -> None:
    pod = a_pod(assigned={"train": [("GPU-b", 1000)]})
    node = a_limited_node(tmp_path)
    rig = await a_rig(pod, limiter=node.limiter)
    container = a_limited_container(pod)

    answer = rig.starts.create_container(a_sandbox(pod), replace(container, mounts=()))
    node.driver.make(node.group(container.cgroups_path))  # the runtime does so now
    assert PROOF_PATH in {mount.destination for mount in answer.mounts}
    assert node.opened() == set()
    assert rig.isolations == ["kernel"]
    awaited = rig.starts.unasked  # its start, by an agent that leaves
    rig.starts.start_container(a_sandbox(pod), container)
    assert (awaited, rig.starts.unasked) == (True, False)

    group, card = node.group(container.cgroups_path), CardUuid("GPU-b")
    assert node.driver.read(card, group).limit_mib == 1000
    assert node.opened() == {container.id}
    rig.starts.stop_container(a_sandbox(pod), container)
    assert node.driver.read(card, node.group("/kubepods")).guaranteed_mib == 0
    rig.starts.remove_container(a_sandbox(pod), container)
    assert list(node.gates.iterdir()) == []


async def test_a_size_that_is_granted_while_a_container_starts_is_its_limit(tmp_path: Path) -> None:
    pod = a_resized_pod(900)
    node = a_limited_node(tmp_path)
    known = {pod.record.uid: pod}
    rig = await a_rig(pod, limiter=node.limiter, known=known)
    container = a_limited_container(pod)
    node.driver.make(node.group(container.cgroups_path))

    def grant(*_: object) -> None:
        known[pod.record.uid] = a_resized_pod(400, applied=900)
        node.driver.on_set = lambda *_: None

    node.driver.on_set = grant
    rig.starts.start_container(a_sandbox(pod), container)

    card, group = CardUuid("GPU-a"), node.group(container.cgroups_path)
    assert node.driver.read(card, group).limit_mib == 400


async def test_a_promised_limit_that_does_not_stand_fails_the_start(tmp_path: Path) -> None:
    pod = a_pod()
    node = a_limited_node(tmp_path)
    rig = await a_rig(pod, limiter=node.limiter)
    container = a_limited_container(pod)
    rig.starts.create_container(a_sandbox(pod), replace(container, mounts=()))

    with pytest.raises(Refused, match="do not stand: GPU-a: the driver does not know the cgroup"):
        rig.starts.start_container(a_sandbox(pod), container)
    assert rig.outcome("limit_not_proved") == 1
    assert node.opened() == set()


async def test_an_agent_that_does_not_know_what_was_promised_starts_nothing(
    tmp_path: Path,
) -> None:
    """Another agent created the container, and then this one began."""
    pod = a_pod()
    node = a_limited_node(tmp_path)
    container = a_limited_container(pod)

    for rig, why in (
        (await a_rig(limiter=node.limiter), "does not know its cards"),
        (await a_rig(pod, limiter=no_limits()), "GPU-a cannot be limited: --limits is none"),
    ):
        with pytest.raises(Refused, match=why):
            rig.starts.start_container(a_sandbox(pod), container)


async def test_a_container_of_a_node_that_limits_nothing_gets_no_gate() -> None:
    pod = a_pod()
    rig = await a_rig(pod)

    answer = rig.starts.create_container(a_sandbox(pod), created())
    rig.starts.start_container(a_sandbox(pod), created())
    rig.starts.stop_container(a_sandbox(pod), created())

    assert PROOF_PATH not in {mount.destination for mount in answer.mounts}


async def test_gates_of_containers_that_went_meanwhile_are_removed(tmp_path: Path) -> None:
    pod = a_pod()
    node = a_limited_node(tmp_path)
    rig = await a_rig(pod, limiter=node.limiter)
    container = a_limited_container(pod)
    rig.starts.create_container(a_sandbox(pod), replace(container, mounts=()))

    rig.starts.synchronize([], [])

    assert list(node.gates.iterdir()) == []


async def test_a_pod_that_wants_to_be_limited_does_not_start_on_a_card_that_cannot(
    tmp_path: Path,
) -> None:
    """The node said otherwise when it was placed."""
    pod = a_pod(annotations={names.ISOLATION: "kernel"})
    node = a_limited_node(tmp_path)
    node.driver.troubles[CardUuid("GPU-a")] = "MIG is on"
    rig = await a_rig(pod, limiter=node.limiter)

    assert "wants fracgpu.io/isolation: kernel, and GPU-a cannot be limited: driver" in refusal(
        rig, a_sandbox(pod), created()
    )
    assert rig.outcome("limit_not_proved") == 1


@pytest.mark.parametrize(("wanted", "got"), [("none", "none"), ("kernel, none", "kernel")])
async def test_the_pod_says_what_it_got(tmp_path: Path, wanted: str, got: str) -> None:
    pod = a_pod(annotations={names.ISOLATION: wanted})
    rig = await a_rig(pod, limiter=a_limited_node(tmp_path).limiter)

    rig.starts.create_container(a_sandbox(pod), a_limited_container(pod, held_back=False))

    assert rig.isolations == [got]


async def test_a_pod_that_asks_for_mps_starts_with_a_daemon_that_answers_and_never_without() -> (
    None
):
    pod = a_pod(annotations={names.ISOLATION: "mps"})
    with (
        tempfile.TemporaryDirectory(prefix="fg-") as folder,
        socket.socket(socket.AF_UNIX) as daemon,
    ):
        pipe = Path(folder) / "GPU-a" / "pipe"
        pipe.mkdir(parents=True)
        rig = await a_rig(pod, node_folder=Path(folder))
        assert "cannot be limited by mps" in refusal(rig, a_sandbox(pod), created())

        daemon.bind(str(pipe / CONTROL))
        daemon.listen()
        (pipe.parent / ANSWERED).write_text(str(boot_s()))
        answer = rig.starts.create_container(a_sandbox(pod), created())
        assert rig.isolations == ["mps"]
        made = replace(created(), mounts=answer.mounts)
        rig.starts.start_container(a_sandbox(pod), made)

        daemon.close()
        with pytest.raises(Refused, match=r"its MPS daemon does not answer: .* refused"):
            rig.starts.start_container(a_sandbox(pod), made)
        assert rig.outcome("limit_not_proved") == 1


@pytest.mark.parametrize(
    ("wanted", "got"),
    [("mps, none", "none"), ("interposer, mps, best", "none"), ("mps, best", "none")],
)
async def test_what_a_pod_can_do_without_it_starts_without(wanted: str, got: str) -> None:
    pod = a_pod(annotations={names.ISOLATION: wanted})
    rig = await a_rig(pod)

    rig.starts.create_container(a_sandbox(pod), created())

    assert rig.isolations == [got]


def with_cores(uid: str, cores: int) -> PodInfo:
    part = Slice(card=CardUuid("AMD-a"), mib=Mib(1000), cores=cores)
    return a_pod(uid=uid, annotations={names.ASSIGNMENT: write_assignment({"train": (part,)})})


async def test_units_that_a_container_only_says_it_has_are_not_taken() -> None:
    """Neither of a pod with another card, nor of one that shares the card's compute freely."""
    says = f"{names.ENV_COMPUTE_UNITS}=AMD-a=0-31"
    liars = [a_pod(uid="no-cards"), with_cores("freely", 0), with_cores("all", 100)]
    mine = with_cores("mine", 25)
    rig = await a_rig(*liars[1:], mine, cards=(MI210,), slots=8)
    running = [
        replace(created(), id=pod.record.uid, sandbox_id=f"sandbox-{pod.record.uid}", env=[says])
        for pod in liars
    ]
    rig.starts.synchronize([a_sandbox(pod) for pod in liars], running)

    answer = rig.starts.create_container(a_sandbox(mine), created())

    assert answer.env[names.ENV_CU_MASK] == "0:0-15"


async def test_containers_on_one_amd_card_get_other_compute_units_after_a_restart_too() -> None:
    pods = [with_cores(f"uid-{number}", 25) for number in range(5)]
    rig = await a_rig(*pods, cards=(MI210,), slots=8)

    def start(rig: Rig, pod: PodInfo) -> Adjustment:
        container = replace(created(), id=pod.record.uid, sandbox_id=f"sandbox-{pod.record.uid}")
        return rig.starts.create_container(a_sandbox(pod), container)

    given = [start(rig, pod) for pod in pods[:3]]
    ended = replace(created(), id="uid-1", sandbox_id="sandbox-uid-1")
    rig.starts.stop_container(a_sandbox(pods[1]), ended)
    fourth = start(rig, pods[3])
    # A new agent knows them from the runtime.
    again = await a_rig(*pods, cards=(MI210,), slots=8)
    running = [
        replace(
            created(),
            id=pod.record.uid,
            sandbox_id=f"sandbox-{pod.record.uid}",
            env=[f"{key}={value}" for key, value in answer.env.items()],
        )
        for pod, answer in ((pods[0], given[0]), (pods[2], given[2]), (pods[3], fourth))
    ]
    again.starts.synchronize([a_sandbox(pod) for pod in pods], running)
    fifth = start(again, pods[4])

    masks = [answer.env[names.ENV_CU_MASK] for answer in (*given, fourth, fifth)]
    assert masks == ["0:0-15", "0:16-31", "0:32-47", "0:16-31", "0:48-63"]
    assert given[0].env[names.ENV_VISIBLE_DEVICES] == "void"
