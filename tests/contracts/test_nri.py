"""What the agent expects of a container runtime's NRI: of the simulated and of real containerd."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from deviceplugin.nri.interface import (
    Adjustment,
    Connection,
    Container,
    ContainerState,
    Device,
    Hook,
    HookKind,
    Mount,
    PodSandbox,
    Refused,
    RuntimeUnavailable,
)
from tests.fakes.clock import ShiftedClock
from tests.support.containerd import a_containerd
from tests.support.nri import (
    AnyRuntime,
    MadePod,
    Recorder,
    StartFailed,
    a_plugin,
    connected,
)
from tests.support.simulated_nri import a_simulated_runtime
from tests.support.waiting import until_true

pytestmark = pytest.mark.timeout(240)

ANNOTATIONS: Final = {"fracgpu.io/assignment": '{"main":"GPU-1:500"}'}

_RUNTIMES: Final[Mapping[str, Callable[[], AbstractAsyncContextManager[AnyRuntime]]]] = {
    "simulated": a_simulated_runtime,
    "simulated-0.6": partial(a_simulated_runtime, nri=(0, 6)),
    "containerd-1.7": partial(a_containerd, 1),
    "containerd-2": partial(a_containerd, 2),
}


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.e2e if "containerd" in name else ())
        for name in _RUNTIMES
    ]
)
async def runtime(request: pytest.FixtureRequest) -> AsyncIterator[AnyRuntime]:
    async with _RUNTIMES[request.param]() as started:
        yield started


async def a_pod(runtime: AnyRuntime, uid: str = "uid-1") -> MadePod:
    return await runtime.run_pod("train", uid=uid, annotations=ANNOTATIONS)


async def test_before_a_container_is_created_all_is_known_of_it_and_its_pod(
    runtime: AnyRuntime,
) -> None:
    recorder = Recorder()
    async with connected(runtime.socket, recorder):
        pod = await a_pod(runtime)
        container = await runtime.create(pod, "main", env={"MODE": "fast"})
        await runtime.start_container(container)
        await runtime.remove(container)

    ((sandbox, created),) = recorder.created
    assert (sandbox.id, sandbox.uid, sandbox.name) == (pod.id, "uid-1", "train")
    assert (sandbox.namespace, sandbox.labels["app"]) == ("team", "train")
    assert sandbox.annotations.items() >= ANNOTATIONS.items()
    assert sandbox.cgroup_parent.endswith("poduid-1")
    assert (created.id, created.sandbox_id, created.name) == (container, pod.id, "main")
    assert "MODE=fast" in created.env
    assert created.cgroups_path == f"{sandbox.cgroup_parent}/{container}"
    assert created.labels["io.kubernetes.container.name"] == "main"
    for calls in (recorder.started, recorder.removed):
        ((sandbox, other),) = calls
        assert (sandbox.uid, other.id, other.name) == ("uid-1", container, "main")


async def test_the_end_of_a_container_is_told_before_its_removal(runtime: AnyRuntime) -> None:
    recorder = Recorder()
    async with connected(runtime.socket, recorder):
        container = await runtime.create(await a_pod(runtime), "main")
        await runtime.start_container(container)
        assert recorder.stopped == []
        await runtime.remove(container)
        await until_true(lambda: bool(recorder.removed), what="the runtime tells of the removal")

    assert {stopped.id for _, stopped in recorder.stopped} == {container}
    assert recorder.stopped[0][1].cgroups_path


async def test_what_was_there_before_is_listed_with_its_state(runtime: AnyRuntime) -> None:
    pod = await a_pod(runtime)
    running, created = await runtime.create(pod, "main"), await runtime.create(pod, "side")
    await runtime.start_container(running)

    recorder = Recorder()
    async with connected(runtime.socket, recorder):
        ((pods, containers),) = recorder.listed

    assert [pod.uid for pod in pods] == ["uid-1"]
    assert {one.id: (one.name, one.state) for one in containers} == {
        running: ("main", ContainerState.RUNNING),
        created: ("side", ContainerState.CREATED),
    }


def everything(root: Path) -> Adjustment:
    return Adjustment(
        mounts=[
            Mount(destination="/new", source=str(root), options=["rbind", "ro"]),
            Mount(destination="/old", source=str(root), options=["rbind", "ro"]),
        ],
        devices=[Device(path="/dev/card", major=1, minor=3, mode=0o666, uid=0, gid=0)],
        env={"NEW": "1", "OLD": "2"},
        hooks={HookKind.CREATE_RUNTIME: [Hook(path="/bin/true", args=["true"], timeout_s=5)]},
    )


async def test_a_container_gets_its_adjustment_and_keeps_the_rest(runtime: AnyRuntime) -> None:
    for folder in ("before", "kept", "given"):
        (runtime.root / folder).mkdir()
    given = str(runtime.root / "given")
    recorder = Recorder(on_create=lambda *_: everything(runtime.root / "given"))
    async with connected(runtime.socket, recorder):
        container = await runtime.create(
            await a_pod(runtime),
            "main",
            env={"OLD": "1", "KEPT": "1"},
            mounts={"/old": runtime.root / "before", "/kept": runtime.root / "kept"},
        )
        await runtime.start_container(container)

    sight = runtime.sight(container)
    assert runtime.running(container)
    assert sight.env.items() >= {"NEW": "1", "OLD": "2", "KEPT": "1"}.items()
    assert sight.mounts["/new"] == sight.mounts["/old"] == given
    assert sight.mounts["/kept"] == str(runtime.root / "kept")
    assert sight.devices >= {"/dev/card"}
    assert sight.hooks == ("/bin/true",)


async def test_keys_of_cgroup_v2_come_with_the_container(runtime: AnyRuntime) -> None:
    recorder = Recorder(on_create=lambda *_: Adjustment(unified={"memory.high": "1048576"}))
    async with connected(runtime.socket, recorder):
        container = await runtime.create(await a_pod(runtime), "main")

    assert runtime.sight(container).unified == {"memory.high": "1048576"}


async def test_an_adjustment_of_many_mounts_arrives_whole(runtime: AnyRuntime) -> None:
    """Real cards come with some hundred files; a runtime reads frames through a small buffer."""
    mounts = [
        Mount(destination=f"/usr/lib/lib{number:04}{'x' * 100}.so", source=str(runtime.root))
        for number in range(600)
    ]
    recorder = Recorder(on_create=lambda *_: Adjustment(mounts=mounts))
    async with connected(runtime.socket, recorder):
        container = await runtime.create(await a_pod(runtime), "main")

    assert runtime.sight(container).mounts.keys() >= {mount.destination for mount in mounts}


def refuse(_pod: PodSandbox, _container: Container) -> Adjustment:
    raise Refused("the card of train is out of service")


async def test_a_refused_container_is_not_created_and_the_reason_is_said(
    runtime: AnyRuntime,
) -> None:
    async with connected(runtime.socket, Recorder(on_create=refuse)):
        pod = await a_pod(runtime)
        with pytest.raises(StartFailed, match="the card of train is out of service"):
            await runtime.create(pod, "main")


async def test_a_container_that_is_refused_before_its_first_process_does_not_run(
    runtime: AnyRuntime,
) -> None:
    async with connected(runtime.socket, Recorder(on_start=refuse)) as running:
        container = await runtime.create(await a_pod(runtime), "main")
        with pytest.raises(StartFailed, match="the card of train is out of service"):
            await runtime.start_container(container)
        assert not runtime.running(container)
        assert running.plugin.status.connection is Connection.CONNECTED


def make_a_mistake(_pod: PodSandbox, _container: Container) -> Adjustment:
    raise KeyError("GPU-1")


async def test_after_a_mistake_of_ours_the_container_fails_and_the_agent_ends(
    runtime: AnyRuntime,
) -> None:
    async def start_one() -> None:
        async with connected(runtime.socket, Recorder(on_create=make_a_mistake)) as running:
            pod = await a_pod(runtime)
            with pytest.raises(StartFailed, match="the plugin failed: KeyError"):
                await runtime.create(pod, "main")
            await asyncio.wait([running.task])

    with pytest.raises(ExceptionGroup) as mistake:
        await start_one()
    assert mistake.group_contains(KeyError, match="GPU-1", depth=1)


async def test_a_runtime_creates_containers_without_a_plugin_that_is_away(
    runtime: AnyRuntime,
) -> None:
    async with connected(runtime.socket, Recorder(on_create=refuse)):
        pod = await a_pod(runtime)

    await runtime.start_container(await runtime.create(pod, "main"))


async def test_a_mount_that_only_a_plugin_makes_good_starts_nothing_without_it(
    runtime: AnyRuntime,
) -> None:
    """What keeps a container from starting without its card while the agent is away."""
    proof, device = "/run/fracgpu/proof", "fracgpu.io/slot=card"
    (runtime.root / "proof").touch()
    runtime.write_cdi_spec("card", mounts={proof: runtime.root / "nowhere"})
    mount = Mount(destination=proof, source=str(runtime.root / "proof"), options=["rbind", "ro"])
    recorder = Recorder(on_create=lambda *_: Adjustment(mounts=[mount]))
    async with connected(runtime.socket, recorder):
        pod = await a_pod(runtime)
        first = await runtime.create(pod, "first", cdi_devices=[device])
        await runtime.start_container(first)
        assert runtime.running(first)
    with pytest.raises(StartFailed, match="no such file or directory"):
        await runtime.start_container(await runtime.create(pod, "next", cdi_devices=[device]))

    (_, container), *_ = recorder.created
    assert proof in {one.destination for one in container.mounts}


async def test_a_plugin_that_answers_late_is_left_out_and_connects_again(
    runtime: AnyRuntime,
) -> None:
    go_on, clock = threading.Event(), ShiftedClock()

    def answer_late(_pod: PodSandbox, container: Container) -> Adjustment:
        if container.name == "slow":
            assert go_on.wait(60)
            # Late by the plugin's own clock too: it began to wait after the runtime did.
            clock.passed_s += 60
        return Adjustment(env={"ADJUSTED": container.name})

    recorder = Recorder(on_create=answer_late)
    async with connected(runtime.socket, recorder, clock=clock) as running:
        pod = await a_pod(runtime)
        slow = await runtime.create(pod, "slow")
        before = len(running.statuses)
        go_on.set()
        await until_true(
            lambda: Connection.CONNECTED in {one.connection for one in running.statuses[before:]},
            what="the plugin is connected again",
        )
        quick = await runtime.create(pod, "quick")

        assert running.statuses[before].connection is Connection.LATE
        assert str(running.statuses[before].problem).startswith("CreateContainer took ")
        assert "ADJUSTED" not in runtime.sight(slow).env
        assert runtime.sight(quick).env["ADJUSTED"] == "quick"


async def test_after_a_restart_of_the_runtime_the_plugin_is_asked_again(
    runtime: AnyRuntime,
) -> None:
    recorder = Recorder(on_create=lambda *_: Adjustment(env={"ADJUSTED": "1"}))
    async with connected(runtime.socket, recorder) as running:
        pod = await a_pod(runtime)
        first = await runtime.create(pod, "first")
        await runtime.start_container(first)
        await runtime.stop()
        await running.wait_gone()
        await runtime.start()
        await running.wait(Connection.CONNECTED)
        second = await runtime.create(pod, "second")

        assert runtime.sight(second).env["ADJUSTED"] == "1"
    assert [[one.name for one in containers] for _, containers in recorder.listed] == [
        [],
        ["first"],
    ]


async def test_two_plugins_that_want_the_same_start_no_container(runtime: AnyRuntime) -> None:
    """As when an old and a new agent are connected at once, under one name."""
    recorder = Recorder(on_create=lambda *_: Adjustment(env={"CARD": "GPU-1"}))
    async with connected(runtime.socket, recorder), connected(runtime.socket, recorder):
        pod = await a_pod(runtime)
        with pytest.raises(StartFailed, match="10-fracgpu"):
            await runtime.create(pod, "main")


async def test_a_plugin_of_somebody_else_that_changes_other_things_is_no_hindrance(
    runtime: AnyRuntime,
) -> None:
    def add(name: str) -> Recorder:
        return Recorder(on_create=lambda *_: Adjustment(env={name: "1"}))

    async with (
        connected(runtime.socket, add("OURS")),
        connected(runtime.socket, add("THEIRS"), name="another"),
    ):
        container = await runtime.create(await a_pod(runtime), "main")

    assert runtime.sight(container).env.items() >= {"OURS": "1", "THEIRS": "1"}.items()


async def test_a_runtime_that_does_not_want_the_plugin_says_why(runtime: AnyRuntime) -> None:
    async with a_plugin(runtime.socket, Recorder(), index="1x") as running:
        status = await running.wait(Connection.REFUSED)
    assert "invalid plugin index" in str(status.problem)


async def test_containers_that_a_runtime_does_not_know_are_updated_without_a_word(
    runtime: AnyRuntime,
) -> None:
    async with connected(runtime.socket, Recorder()) as running:
        keys = {"unknown": {"memory.high": "1048576"}}
        assert await asyncio.to_thread(running.plugin.update_containers, keys) == {}
    with pytest.raises(RuntimeUnavailable, match="not been reached"):
        running.plugin.update_containers(keys)


async def test_an_update_that_cannot_be_made_is_said(runtime: AnyRuntime) -> None:
    async with connected(runtime.socket, Recorder()) as running:
        container = await runtime.create(await a_pod(runtime), "main")
        await runtime.start_container(container)
        keys = {container: {"nonsense.key": "1"}}
        failed = await asyncio.to_thread(running.plugin.update_containers, keys)

    assert failed == {container: "NRI update of some containers failed"}
