"""Two pods with one slot, in any order of calls: what the runtime reads is the pod's own card."""

import asyncio
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from deviceplugin.kubelet.pre_start import PreStartError
from fracgpu import names
from tests.deviceplugin.kubelet.test_pre_start import (
    S1,
    Rig,
    a_rig_with_one_slot_for_two,
    learn,
    specs,
)

CARDS = {"one": "GPU-a", "two": "GPU-b"}


@dataclass(slots=True)
class Worker:
    """Kubelet's worker of one pod: it waits for each answer before it does anything else.

    Attributes:
        call: a start that waits for the agent's answer.
        creating: the start was allowed, and the runtime has not read the spec yet.
        said: the last refusal, which kubelet writes into the pod's status some time.
    """

    name: str
    call: asyncio.Task[str] | None = None
    creating: bool = False
    runs: bool = False
    said: str = ""


class World:
    """Kubelet, the runtime and the API server around the agent; each step is one of theirs."""

    def __init__(self, rig: Rig, folder: Path, group: asyncio.TaskGroup) -> None:
        self.rig = rig
        self._folder = folder
        self.workers = [Worker("one"), Worker("two")]
        self._group = group

    async def step(self, worker: Worker, what: str) -> None:
        if what == "wait":
            await self.rig.clock.advance(3)
        else:
            {
                "ask": self._start,
                "create": self._create,
                "crash": self._crash,
                "report": self._report,
                "restart kubelet": self._restart_kubelet,
            }[what](worker)
        self._run_what_runs()
        await self._settle()

    def _start(self, worker: Worker) -> None:
        if not (worker.call or worker.creating or worker.runs):
            worker.call = self._group.create_task(self._ask(worker))

    def _create(self, worker: Worker) -> None:
        if worker.creating:
            (spec,) = [json.loads(text) for text in specs(self._folder)]
            env = spec["devices"][0]["containerEdits"]["env"]
            assert f"{names.ENV_VISIBLE_DEVICES}={CARDS[worker.name]}" in env, worker
            worker.creating, worker.runs = False, True

    def _crash(self, worker: Worker) -> None:
        worker.runs = False

    def _report(self, worker: Worker) -> None:
        learn(self.rig, worker.name, waiting="" if worker.runs else worker.said)

    def _restart_kubelet(self, _: Worker) -> None:
        for worker in self.workers:
            if worker.call is not None:
                worker.call.cancel()

    def _run_what_runs(self) -> None:
        running = {(f"uid-{worker.name}", "train") for worker in self.workers if worker.runs}
        self.rig.runtime.running = running

    async def _settle(self) -> None:
        """Wait until every call is answered or waits for the time to pass."""
        async with asyncio.timeout(10):
            while self._unanswered() > self.rig.clock.sleeping:  # noqa: ASYNC110 - no signal
                await asyncio.sleep(0.001)
        for worker in self.workers:
            if worker.call is not None and worker.call.done():
                call, worker.call = worker.call, None
                self._answered(worker, call)

    def _unanswered(self) -> int:
        return sum(worker.call is not None and not worker.call.done() for worker in self.workers)

    async def _ask(self, worker: Worker) -> str:
        """Return why the start is refused, or an empty text."""
        try:
            claim = await self.rig.pre_start.prepare(S1)
        except PreStartError as error:
            return f"rpc error: {error}"
        assert claim.pod.record.name == worker.name
        return ""

    def _answered(self, worker: Worker, call: "asyncio.Task[str]") -> None:
        if not call.cancelled():
            worker.said = call.result()
            worker.creating = not worker.said


STEPS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from(["ask", "create", "crash", "report", "wait", "restart kubelet"]),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
@example(  # a refusal in the status, older than the call that now waits
    steps=[(0, "ask"), (1, "ask"), (1, "report"), (0, "restart kubelet"), (1, "ask"), (0, "wait")]
)
def test_no_order_of_calls_gives_a_container_the_other_pods_card_or_keeps_it_waiting(
    steps: list[tuple[int, str]],
) -> None:
    async def live() -> None:
        with tempfile.TemporaryDirectory() as folder:
            rig = await a_rig_with_one_slot_for_two(Path(folder))
            async with asyncio.TaskGroup() as group:
                world = World(rig, Path(folder), group)
                for index, what in steps:
                    await world.step(world.workers[index], what)
                # From here on kubelet tries again, as it does every 10 to 15 s.
                for _ in range(30):
                    for worker in world.workers:
                        for what in ("ask", "report", "wait", "create"):
                            await world.step(worker, what)
                assert [worker.runs for worker in world.workers] == [True, True]

    asyncio.run(live())
