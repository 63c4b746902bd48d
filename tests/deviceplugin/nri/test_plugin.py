"""Whatever a runtime does on the socket, the status says it and the plugin connects again."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from deviceplugin.nri import plugin
from deviceplugin.nri.connection import EVENTS
from deviceplugin.nri.framing import MAX_MESSAGE, ConnectionId, MessageType
from deviceplugin.nri.interface import (
    Adjustment,
    Connection,
    Container,
    PodSandbox,
    RuntimeUnavailable,
    Status,
)
from deviceplugin.proto import nri_pb2 as wire
from tests.deviceplugin.nri.scripted import Script, Wire, a_scripted_runtime
from tests.fakes.clock import VirtualClock
from tests.support.node import short_folder
from tests.support.nri import Recorder, a_plugin, connected
from tests.support.simulated_nri import a_simulated_runtime
from tests.support.waiting import until_true

POD = wire.PodSandbox(id="sandbox", uid="uid-1", name="train", namespace="team")
MAIN = wire.ContainerRequest(pod=POD, container=wire.Container(id="c1", name="main"))


@pytest.fixture
def socket() -> Iterator[Path]:
    with short_folder() as folder:
        yield folder / "nri.sock"


async def status_after(
    socket: Path, script: Script, reason: Connection, *, stall_s: float = 15.0
) -> Status:
    """Return the status once the runtime of *script* has brought the plugin to *reason*."""
    async with (
        a_scripted_runtime(socket, script),
        a_plugin(socket, Recorder(), stall_s=stall_s) as running,
    ):
        return await running.wait(reason)


async def test_no_socket_means_no_nri_or_that_it_is_switched_off(socket: Path) -> None:
    async with a_plugin(socket, Recorder()) as running:
        status = await running.wait(Connection.NO_SOCKET)
        with pytest.raises(RuntimeUnavailable, match="there is no NRI socket"):
            running.plugin.update_containers({"c1": {"memory.high": "1"}})
    assert status.problem == (
        f"there is no NRI socket {socket}: the runtime has no NRI, or it is switched off"
    )


async def test_a_socket_that_was_left_behind_is_told_apart_from_none(socket: Path) -> None:
    async with a_simulated_runtime() as runtime:
        runtime.socket.rename(socket)
    async with a_plugin(socket, Recorder()) as running:
        status = await running.wait(Connection.NO_LISTENER)
    assert status.problem == f"no runtime listens on its NRI socket {socket}: Connection refused"


async def test_a_runtime_that_comes_later_is_found() -> None:
    async with a_simulated_runtime() as runtime:
        await runtime.stop()
        runtime.socket.unlink(missing_ok=True)
        async with a_plugin(runtime.socket, Recorder()) as running:
            await running.wait(Connection.NO_SOCKET)
            await runtime.start()
            status = await running.wait(Connection.CONNECTED)
    assert (status.problem, status.runtime_name) == (None, "containerd")


async def hang(runtime: Wire) -> None:
    await asyncio.Event().wait()


async def hang_once_registered(runtime: Wire) -> None:
    await runtime.register()
    await asyncio.Event().wait()


async def stop_within_a_message(runtime: Wire) -> None:
    await runtime.welcome()
    runtime.writer.write(b"\0\0\0\1\0\0")
    await asyncio.Event().wait()


async def close_within_a_message(runtime: Wire) -> None:
    await runtime.welcome()
    runtime.writer.write(b"\0\0\0\1\0\0\0\xff half")


async def close_between_messages(runtime: Wire) -> None:
    await runtime.welcome()


@pytest.mark.parametrize(
    ("script", "reason", "problem"),
    [
        (hang, Connection.SILENT, "took the connection and does not answer"),
        (hang_once_registered, Connection.SILENT, "took the connection and does not answer"),
        (stop_within_a_message, Connection.SILENT, "stopped within a message"),
        (close_within_a_message, Connection.BROKEN, "closed the connection within a message"),
        (close_between_messages, Connection.CLOSED, "closed the connection"),
    ],
)
async def test_a_runtime_that_hangs_or_breaks_off(
    socket: Path, script: Script, reason: Connection, problem: str
) -> None:
    stall_s = 0.2 if reason is Connection.SILENT else 15.0
    status = await status_after(socket, script, reason, stall_s=stall_s)
    assert status.problem == f"the runtime {problem}"


async def test_a_runtime_with_nothing_to_say_stays_connected(socket: Path) -> None:
    async def script(runtime: Wire) -> None:
        await runtime.welcome()
        await asyncio.sleep(0.3)  # several times as long as a runtime may be silent before
        await runtime.call("CreateContainer", MAIN)

    async with (
        a_scripted_runtime(socket, script) as ended,
        a_plugin(socket, Recorder(), stall_s=0.05) as running,
    ):
        await ended
        assert Connection.SILENT not in {status.connection for status in running.statuses}


async def test_a_runtime_that_has_not_listed_its_containers_does_not_ask_yet(
    socket: Path,
) -> None:
    async def script(runtime: Wire) -> None:
        await runtime.register()
        await runtime.call("Configure", wire.ConfigureRequest(runtime_name="cri-o"))
        await asyncio.Event().wait()

    async with (
        a_scripted_runtime(socket, script),
        a_plugin(socket, Recorder(), stall_s=0.05) as running,
    ):
        status = await running.wait_for(lambda status: status.runtime_name == "cri-o")
    assert status.connection is Connection.CONNECTING
    assert status.problem == "the runtime has not listed its containers yet"


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\0\0\0\1" + (MAX_MESSAGE + 11).to_bytes(4),
        b"\0\0\0\1\0\0\0\x0c\0\0\0\2\0\0\0\1\1\0\xff\xff",
    ],
    ids=["another protocol", "too long", "no request of ttrpc"],
)
async def test_what_is_not_nri_ends_the_connection(socket: Path, garbage: bytes) -> None:
    async def script(runtime: Wire) -> None:
        await runtime.welcome()
        runtime.writer.write(garbage)
        await asyncio.Event().wait()

    status = await status_after(socket, script, Connection.BROKEN)
    assert str(status.problem).startswith("the runtime does not speak NRI: ")


async def test_after_any_end_the_plugin_connects_again(socket: Path) -> None:
    async def script(runtime: Wire) -> None:
        await runtime.welcome()
        runtime.writer.write(b"GET / HTTP/1.1\r\n\r\n")

    async with a_plugin(socket, Recorder()) as running:
        async with a_scripted_runtime(socket, script):
            await running.wait(Connection.BROKEN)
        async with a_scripted_runtime(socket, hang_once_welcomed):
            await running.wait(Connection.CONNECTED)


async def hang_once_welcomed(runtime: Wire) -> None:
    await runtime.welcome("cri-o", "1.34.0")
    await asyncio.Event().wait()


async def test_only_what_we_need_is_asked_for(socket: Path) -> None:
    async def script(runtime: Wire) -> None:
        request = await runtime.register()
        assert (request.service, request.method) == (
            "nri.pkg.api.v1alpha1.Runtime",
            "RegisterPlugin",
        )
        registration = wire.RegisterPluginRequest.FromString(request.payload)
        assert (registration.plugin_name, registration.plugin_idx) == ("fracgpu", "10")
        response = await runtime.call("Configure", wire.ConfigureRequest(runtime_name="x"))
        # Bits of CreateContainer, StartContainer and RemoveContainer.
        assert wire.ConfigureResponse.FromString(response.payload).events == 0b110_0010_1000

    async with a_scripted_runtime(socket, script) as ended, a_plugin(socket, Recorder()):
        await ended
    assert EVENTS == 0b110_0010_1000


async def test_unknown_fields_events_methods_and_messages_are_harmless(socket: Path) -> None:
    recorder = Recorder(on_create=lambda *_: Adjustment(env={"CARD": "GPU-1"}))
    # Field 200 of each message, bytes.
    unknown = bytes.fromhex("c20c") + b"\5later"
    pod = wire.PodSandbox.FromString(POD.SerializeToString() + unknown)
    state = wire.Container.FromString(MAIN.container.SerializeToString() + b"\x20\x63")

    async def script(runtime: Wire) -> None:
        await runtime.welcome()
        runtime.send(7, 1, MessageType.REQUEST, b"another connection")
        runtime.send(ConnectionId.TO_PLUGIN, 99, 3, b"data of a stream")
        runtime.send(ConnectionId.TO_RUNTIME, 99, MessageType.RESPONSE, b"")
        for method in ("StateChange", "StopContainer", "RestoreContainer"):
            event = wire.StateChangeEvent(pod=pod).SerializeToString() + b"\x08\x63"
            response = await runtime.call(method, event)
            assert (response.status.code, response.payload) == (0, b"")
        response = await runtime.call("Log", b"", service="nri.pkg.api.v1alpha1.HostFunctions")
        assert response.status.code == 12
        request = wire.ContainerRequest(pod=pod, container=state).SerializeToString()
        response = await runtime.call("CreateContainer", request + unknown)
        adjust = wire.CreateContainerResponse.FromString(response.payload).adjust
        assert [(one.key, one.value) for one in adjust.env] == [("CARD", "GPU-1")]
        await runtime.call("Shutdown", wire.Empty())

    async with (
        a_scripted_runtime(socket, script) as ended,
        a_plugin(socket, recorder) as running,
    ):
        await ended
        await running.wait(Connection.CLOSED)
    ((_, container),) = recorder.created
    assert (container.name, container.state.name) == ("main", "UNKNOWN")
    assert recorder.started == recorder.removed == []


async def test_a_request_that_cannot_be_read_fails_alone(socket: Path) -> None:
    async def script(runtime: Wire) -> None:
        await runtime.welcome()
        response = await runtime.call("CreateContainer", b"\xff\xff\xff")
        assert response.status.code == 3
        assert response.status.message.startswith("CreateContainer cannot be read")
        response = await runtime.call("CreateContainer", MAIN)
        assert response.status.code == 0

    async with a_scripted_runtime(socket, script) as ended, a_plugin(socket, Recorder()):
        await ended


async def test_a_list_in_parts_is_put_together(socket: Path) -> None:
    recorder = Recorder(update={"c1": {"memory.high": "1"}})

    async def script(runtime: Wire) -> None:
        await runtime.register()
        await runtime.call("Configure", wire.ConfigureRequest(runtime_name="containerd"))
        part = wire.SynchronizeRequest(pods=[POD], more=True)
        response = await runtime.call("Synchronize", part)
        answer = wire.SynchronizeResponse.FromString(response.payload)
        assert (answer.more, len(answer.update)) == (True, 0)
        part = wire.SynchronizeRequest(containers=[MAIN.container])
        response = await runtime.call("Synchronize", part)
        (update,) = wire.SynchronizeResponse.FromString(response.payload).update
        assert update.container_id == "c1"
        assert dict(update.linux.resources.unified) == {"memory.high": "1"}

    async with a_scripted_runtime(socket, script) as ended, a_plugin(socket, recorder):
        await ended
    (((pod,), (container,)),) = recorder.listed
    assert (pod.uid, container.id) == ("uid-1", "c1")


@pytest.mark.parametrize(("took_s", "late"), [(1.9, False), (2.1, True)])
async def test_the_runtime_says_how_long_it_waits(socket: Path, took_s: float, late: bool) -> None:
    clock, answered = VirtualClock(), list[bool]()

    def take_long(_pod: PodSandbox, _container: Container) -> Adjustment:
        clock._elapsed_s += took_s  # in the plugin's thread, where no loop advances it
        return Adjustment()

    async def script(runtime: Wire) -> None:
        await runtime.welcome()
        runtime.request("CreateContainer", MAIN, timeout_s=2.0)
        answered.append(bool(await runtime.reader.read(1)))

    async with (
        a_scripted_runtime(socket, script) as ended,
        a_plugin(socket, Recorder(on_create=take_long), clock=clock) as running,
    ):
        status = await running.wait(Connection.LATE if late else Connection.CLOSED)
        await ended
    assert answered == [not late]
    if late:
        assert status.problem == "CreateContainer took 2.1 s; the runtime waits 2.0 s"


@pytest.mark.parametrize(
    ("result", "mistake"),
    [
        (OSError("no such cgroup"), OSError("no such cgroup")),
        (ValueError("no number"), ValueError("no number")),
        (Adjustment(env={"CARD": "x" * MAX_MESSAGE}), ValueError("at most")),
    ],
    ids=["the system's", "a value", "an adjustment that no message holds"],
)
async def test_a_mistake_is_answered_before_the_agent_ends(
    socket: Path, result: Exception | Adjustment, mistake: Exception
) -> None:
    def answer(_pod: PodSandbox, _container: Container) -> Adjustment:
        if isinstance(result, Exception):
            raise result
        return result

    async def script(runtime: Wire) -> None:
        await runtime.welcome()
        response = await runtime.call("CreateContainer", MAIN)
        assert response.status.code == 13
        failed = f"the plugin failed: {type(mistake).__name__}: "
        assert response.status.message.startswith(failed)
        assert str(mistake) in response.status.message

    async def serve() -> None:
        recorder = Recorder(on_create=answer)
        async with (
            a_scripted_runtime(socket, script) as ended,
            a_plugin(socket, recorder) as running,
        ):
            await ended
            await asyncio.wait([running.task])

    with pytest.raises(ExceptionGroup) as raised:
        await serve()
    assert raised.group_contains(type(mistake), match=str(mistake))


async def test_a_mistake_ends_the_agent_also_where_the_runtime_is_gone_already(
    socket: Path,
) -> None:
    gone = threading.Event()

    def make_a_mistake(_pod: PodSandbox, _container: Container) -> Adjustment:
        assert gone.wait(60)
        raise KeyError("GPU-1")

    async def script(runtime: Wire) -> None:
        await runtime.welcome()
        runtime.request("CreateContainer", MAIN)

    async def serve() -> None:
        recorder = Recorder(on_create=make_a_mistake)
        async with (
            a_scripted_runtime(socket, script) as ended,
            a_plugin(socket, recorder) as running,
        ):
            await ended
            await until_true(lambda: bool(recorder.created), what="the plugin is asked")
            gone.set()
            await asyncio.wait([running.task])

    with pytest.raises(ExceptionGroup) as raised:
        await serve()
    assert raised.group_contains(KeyError, match="GPU-1")


async def test_updates_reach_their_containers_and_failures_are_named() -> None:
    async with a_simulated_runtime() as runtime, connected(runtime.socket, Recorder()) as running:
        pod = await runtime.run_pod("train", uid="uid-1", annotations={})
        one, two = await runtime.create(pod, "one"), await runtime.create(pod, "two")
        keys, unknown = {"memory.high": "1048576"}, {"nonsense.key": "1"}

        failed = await asyncio.to_thread(
            running.plugin.update_containers, {one: unknown, two: keys}
        )

        assert failed == {one: "NRI update of some containers failed"}
        assert runtime.server.unified == {two: keys}


async def test_an_update_that_the_runtime_does_not_live_to_answer(socket: Path) -> None:
    async def script(runtime: Wire) -> None:
        await runtime.welcome()
        await runtime.read()

    async with a_scripted_runtime(socket, script), connected(socket, Recorder()) as running:
        with pytest.raises(RuntimeUnavailable, match="the connection to the runtime ended"):
            await asyncio.to_thread(running.plugin.update_containers, {"c1": {"memory.high": "1"}})


async def test_an_update_that_the_runtime_does_not_answer(socket: Path) -> None:
    async with (
        a_scripted_runtime(socket, hang_once_welcomed),
        a_plugin(socket, Recorder(), stall_s=0.2) as running,
    ):
        await running.wait(Connection.CONNECTED)
        with pytest.raises(RuntimeUnavailable, match=r"has not updated c1 in 0\.2 s"):
            await asyncio.to_thread(running.plugin.update_containers, {"c1": {"memory.high": "1"}})


async def test_a_plugin_that_is_stopped_finishes_its_answer(
    socket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "_STOP_S", 30.0)
    asked, go_on = threading.Event(), threading.Event()

    def wait(_pod: PodSandbox, _container: Container) -> Adjustment:
        asked.set()
        go_on.wait(10)
        return Adjustment(env={"CARD": "0"})

    async def script(runtime: Wire) -> None:
        await runtime.welcome()
        response = await runtime.call("CreateContainer", MAIN)
        adjust = wire.CreateContainerResponse.FromString(response.payload).adjust
        assert [each.value for each in adjust.env] == ["0"]

    async with a_scripted_runtime(socket, script) as ended:
        async with a_plugin(socket, Recorder(on_create=wait)):
            await asyncio.to_thread(asked.wait, 10)
            # While the plugin ends, which holds the loop.
            threading.Timer(0.05, go_on.set).start()
        await ended


async def test_a_plugin_that_is_stopped_leaves_the_runtime_and_may_run_again() -> None:
    async with a_simulated_runtime() as runtime:
        for _ in range(2):
            async with connected(runtime.socket, Recorder()) as running:
                # The runtime lists a plugin once it has read the answer to Synchronize.
                await until_true(
                    lambda: runtime.server.plugins == ["10-fracgpu"],
                    what="the runtime lists the plugin",
                )
            assert running.plugin.status.connection is Connection.CONNECTING
