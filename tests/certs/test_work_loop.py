import asyncio
from datetime import datetime, timedelta

from certs.metrics import CertsMetrics
from certs.work_loop import LookAgain, WorkLoop
from kube.errors import Unavailable
from process.telemetry import new_registry
from tests.fakes.clock import NOON, VirtualClock


class Scripted(WorkLoop):
    """Does in each pass what the script says."""

    def __init__(self, *script: Exception | timedelta) -> None:
        self.clock, self.registry = VirtualClock(), new_registry()
        super().__init__(self.clock, CertsMetrics(self.registry, self.clock))
        self.script = list(script)
        self.times: list[datetime] = []

    async def _go_round(self, now: datetime) -> timedelta:
        self.times.append(now)
        act = self.script.pop(0)
        if isinstance(act, Exception):
            raise act
        self.problem = None
        return act


SILENCE = Unavailable(verb="GET", path="/x", status=None, reason="Timeout", message="silence")
HOUR = timedelta(hours=1)


async def test_after_a_write_it_looks_again_ever_more_patiently() -> None:
    loop = Scripted(*[LookAgain()] * 10, HOUR, LookAgain())

    pauses = [await loop.run_once() for _ in range(12)]

    seconds = [pause.total_seconds() for pause in pauses]
    assert seconds[:8] == [0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12]
    assert seconds[8:] == [5.12, 5.12, 3600, 0.04]


async def test_silence_of_the_api_server_is_a_problem_until_a_round_succeeds() -> None:
    loop = Scripted(SILENCE, HOUR)

    assert await loop.run_once() == timedelta(seconds=5)
    problem = loop.problem
    assert await loop.run_once() == HOUR

    assert (problem, loop.problem) == (str(SILENCE), None)
    failures = loop.registry.get_sample_value("fracgpu_certs_failures_total", {"reason": "Timeout"})
    assert failures == 1


async def test_it_goes_round_when_time_is_up_and_when_told_to_look() -> None:
    loop = Scripted(HOUR, HOUR, HOUR)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(loop.run())
        await loop.clock.advance(3601)
        loop.wake()
        await loop.clock.advance(1)
        running.cancel()

    assert loop.times == [NOON, NOON + HOUR, NOON + timedelta(seconds=3601)]
