"""The demo's promises although it is sabotaged: real processes, TLS, HTTP, gRPC and Prometheus."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from component.wiring import Wiring
from process.clock import SystemClock
from simulator.background import background
from simulator.demo.promises import Promise, judge
from simulator.demo.rig import Rig, RigSettings, open_rig
from simulator.demo.roles import plugin_name
from simulator.demo.script import Progress, Script, play_within
from tests.support.waiting import until_true

LIMIT_S = 400.0  # for what never comes; on a busy machine it takes more than two minutes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Which role is killed at which step: each when it is needed most.
DEATHS = {
    "waiting until every pod runs": ("scheduler", plugin_name("gpu-node-1")),
    "letting a card run hot": ("certs", plugin_name("gpu-node-2")),
    "the card is hot": ("rebalancer", "webhook"),
    "a pod moves": ("scheduler",),
}


@asynccontextmanager
async def a_rig(wiring: Wiring) -> AsyncIterator[Rig]:
    # Sockets are in it, so its path must be short.
    with tempfile.TemporaryDirectory(prefix="fg-", dir="/tmp") as folder:
        async with open_rig(
            RigSettings(nodes=2, cards_per_node=6, wiring=wiring), Path(folder), SystemClock()
        ) as rig:
            yield rig


async def play(rig: Rig, progress: Progress) -> tuple[Promise, ...]:
    script = Script(rig, SystemClock(), progress)
    trouble = await play_within(script, LIMIT_S)
    assert not trouble, f"{trouble}; {rig.observer.event_lines[-20:]}"
    return judge(await script.facts())


@pytest.mark.parametrize("wiring", list(Wiring))
async def test_the_promises_hold_although_every_role_is_killed_when_it_is_needed(
    wiring: Wiring,
) -> None:
    async with a_rig(wiring) as rig:
        progress = Progress()
        async with background(_sabotage(rig, progress)):
            promises = await play(rig, progress)

        assert [promise for promise in promises if not promise.held] == []
        for name in {name for names in DEATHS.values() for name in names}:
            assert rig.supervisor.starts(name) >= 2, f"{name} was not killed"
        pids = [rig.supervisor.pid(name) for name in rig.supervisor.names()]
        pids.append(rig.prometheus.pid)

    assert [pid for pid in pids if pid is not None and _alive(pid)] == []


async def _bare_pods_run(rig: Rig) -> None:
    """Wait for the pods without a controller: kubelet rejects for good what it cannot admit."""
    bare = {"notebook", "legacy"}
    await until_true(
        lambda: bare <= {view.record.name for view in rig.observer.pods if view.ready},
        what="the pods without an owner",
        limit_s=LIMIT_S,
    )


async def _sabotage(rig: Rig, progress: Progress) -> None:
    """Kill with SIGKILL as the demo reaches each step."""
    pending = dict(DEATHS)
    while pending:
        for step in [step for step in pending if progress.step.startswith(step)]:
            for name in pending.pop(step):
                if name == plugin_name("gpu-node-1"):
                    await _bare_pods_run(rig)
                rig.supervisor.kill(name)
        await asyncio.sleep(0.05)


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
