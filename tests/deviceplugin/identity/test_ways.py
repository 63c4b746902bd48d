"""Which way a node uses: NRI where the runtime has it, and nothing where neither way works."""

import pytest
from prometheus_client import CollectorRegistry

from deviceplugin.identity.ways import UNDECIDED, Way, Ways
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.nri.interface import Connection, Status
from tests.fakes.clock import VirtualClock

CONNECTED = Status(connection=Connection.CONNECTED, runtime_name="containerd")


class Rig:
    def __init__(self, hook_problem: str | None = None) -> None:
        self.clock, self.registry = VirtualClock(), CollectorRegistry()
        self.changes = 0
        self.ways = Ways(
            hook_problem=lambda: hook_problem,
            clock=self.clock,
            record=DevicePluginMetrics(self.registry).identity_is,
            on_change=self._changed,
        )

    def _changed(self) -> None:
        self.changes += 1

    def is_now(self, connection: Connection) -> None:
        self.ways.observe(Status(connection=connection, problem=connection.value))

    def shown(self) -> list[str]:
        name = "fracgpu_deviceplugin_identity"
        return [
            by
            for by in ("nri", "listed", "none")
            if self.registry.get_sample_value(name, {"by": by})
        ]


async def test_before_the_runtime_was_tried_nothing_starts_and_nothing_is_taken_back() -> None:
    rig = Rig()

    for _ in range(2):
        assert (rig.ways.way(), rig.ways.away, rig.ways.problem) == (None, UNDECIDED, None)
        assert rig.shown() == ["none"]
        rig.is_now(Connection.CONNECTING)


async def test_a_connected_runtime_is_the_first_way() -> None:
    rig = Rig("no hook")

    rig.ways.observe(CONNECTED)

    assert (rig.ways.way(), rig.ways.away, rig.ways.problem) == (Way.NRI, None, None)
    assert (rig.shown(), rig.changes) == (["nri"], 1)


@pytest.mark.parametrize("connection", [Connection.NO_SOCKET, Connection.NO_LISTENER])
async def test_a_runtime_without_nri_is_known_by_its_list_if_the_hook_runs(
    connection: Connection,
) -> None:
    works, broken = Rig(), Rig("the hook is on a noexec mount")

    for rig in (works, broken):
        rig.is_now(connection)

    assert (works.ways.way(), works.ways.away, works.ways.problem) == (Way.LISTED, None, None)
    assert works.shown() == ["listed"]
    assert broken.ways.away == broken.ways.problem == "the hook is on a noexec mount"


@pytest.mark.parametrize(
    "connection", [Connection.REFUSED, Connection.SILENT, Connection.BROKEN, Connection.CLOSED]
)
async def test_a_runtime_that_has_nri_and_does_not_connect_starts_nothing(
    connection: Connection,
) -> None:
    rig = Rig()

    rig.is_now(connection)

    assert rig.ways.way() is Way.NRI
    assert rig.ways.away is not None
    assert connection.value in rig.ways.away
    assert rig.ways.problem == rig.ways.away


async def test_a_restart_of_the_runtime_holds_starts_up_and_takes_the_node_back_only_later() -> (
    None
):
    rig = Rig()
    rig.ways.observe(CONNECTED)

    rig.is_now(Connection.NO_SOCKET)
    assert rig.ways.way() is Way.NRI
    assert rig.ways.away is not None
    assert rig.ways.problem is None
    await rig.clock.advance(31)
    assert rig.ways.way() is Way.LISTED  # NRI was switched off

    rig.ways.observe(CONNECTED)
    rig.is_now(Connection.CLOSED)
    await rig.clock.advance(31)
    assert rig.ways.way() is Way.NRI
    assert rig.ways.problem is not None
