"""Two pods with one slot, in any order of calls: what the runtime reads is the pod's own card.

The runtime may read what it remembers of any earlier spec, too, as long as the file that it mounts
is there. Each test has another pair of pods: both listed by kubelet, or one with an init container,
which kubelet does not list.
"""

import asyncio
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from deviceplugin.kubelet.pre_start import PreStartError
from fracgpu import names
from tests.deviceplugin.builders import a_container, a_holder, pod_json
from tests.deviceplugin.kubelet.test_pre_start import (
    S1,
    Rig,
    a_rig_with_one_slot_for_two,
    specs,
    views,
)

CARDS = {"one": "GPU-a", "two": "GPU-b"}


@dataclass(slots=True)
class Worker:
    """Kubelet's worker of one pod: it waits for each answer before it does anything else.

    Attributes:
        call: a start that waits for the agent's answer.
        creating: the start was allowed, and the runtime has not read the spec yet.
        over: the container has succeeded, and is never started again.
        said: the last refusal, which kubelet writes into the pod's status some time.
    """

    name: str
    container: str = "train"
    call: asyncio.Task[str] | None = None
    creating: bool = False
    runs: bool = False
    over: bool = False
    said: str = ""


class World:
    """Kubelet, the runtime and the API server around the agent; each step is one of theirs."""

    def __init__(
        self, rig: Rig, folder: Path, group: asyncio.TaskGroup, *, listed: bool = True
    ) -> None:
        self.rig = rig
        self._folder = folder
        self.workers = [Worker("one"), Worker("two", "train" if listed else "prepare")]
        self._group = group
        self._remembered: set[str] = set()
        for worker in self.workers:
            rig.pre_start.allocated(S1)
            self._report(worker)
        if not listed:
            rig.kubelet.answer = (a_holder("one"),)

    async def step(self, worker: Worker, what: str) -> None:
        if what == "wait":
            await self.rig.clock.advance(3)
        else:
            {
                "ask": self._start,
                "create": self._create,
                "crash": self._crash,
                "succeed": self._succeed,
                "report": self._report,
                "restart kubelet": self._restart_kubelet,
            }[what](worker)
        self._run_what_runs()
        await self._settle()
        self._remembered.update(specs(self._folder))

    def _start(self, worker: Worker) -> None:
        if not (worker.call or worker.creating or worker.runs or worker.over):
            worker.call = self._group.create_task(self._ask(worker))

    def _create(self, worker: Worker) -> None:
        if not worker.creating:
            return
        worker.creating = False
        for text in self._remembered:
            edits = json.loads(text)["devices"][0]["containerEdits"]
            if all(Path(mount["hostPath"]).exists() for mount in edits["mounts"]):
                card = CARDS[worker.name]
                assert f"{names.ENV_VISIBLE_DEVICES}={card}" in edits["env"], worker
                worker.runs = True

    def _crash(self, worker: Worker) -> None:
        worker.runs = False

    def _succeed(self, worker: Worker) -> None:
        if worker.runs:
            worker.runs, worker.over = False, True

    def _report(self, worker: Worker) -> None:
        said = {worker.container: worker.said} if worker.said and not worker.runs else {}
        body = pod_json(
            worker.name,
            assigned={worker.container: [(CARDS[worker.name], 1000)]},
            inits=[a_container("prepare", mib=1000)] if worker.container == "prepare" else [],
            containers=[{"name": "train"}] if worker.container == "prepare" else None,
            waiting={} if worker.over else said,
            restarts="OnFailure",
            ended={worker.container: 0} if worker.over else {},
        )
        self.rig.api.pods[worker.name] = body
        assert self.rig.known is not None
        self.rig.known.update(views(**{worker.name: body}))

    def _restart_kubelet(self, _: Worker) -> None:
        for worker in self.workers:
            if worker.call is not None:
                worker.call.cancel()

    def _run_what_runs(self) -> None:
        self.rig.runtime.running = {
            (f"uid-{worker.name}", worker.container) for worker in self.workers if worker.runs
        }
        self.rig.runtime.exited = {
            (f"uid-{worker.name}", worker.container, f"id-{worker.container}")
            for worker in self.workers
            if worker.over
        }

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
        st.sampled_from(["ask", "create", "crash", "succeed", "report", "wait", "restart kubelet"]),
    ),
    max_size=40,
)


async def live(steps: list[tuple[int, str]], *, listed: bool) -> None:
    """Take the steps, then go on as kubelet does until each container has run."""
    with tempfile.TemporaryDirectory() as folder:
        rig = await a_rig_with_one_slot_for_two(Path(folder))
        async with asyncio.TaskGroup() as group:
            world = World(rig, Path(folder), group, listed=listed)
            for index, what in steps:
                await world.step(world.workers[index], what)
            # From here on kubelet tries again, as it does every 10 to 15 s.
            for _ in range(30):
                for worker in world.workers:
                    for what in ("ask", "report", "wait", "create"):
                        await world.step(worker, what)
            assert [worker.runs or worker.over for worker in world.workers] == [True, True]


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
@example(  # a refusal in the status, older than the call that now waits
    steps=[(0, "ask"), (1, "ask"), (1, "report"), (0, "restart kubelet"), (1, "ask"), (0, "wait")]
)
@example(  # a container that never starts again, before the other one has started
    steps=[(0, "ask"), (1, "ask"), (1, "report"), (0, "wait"), (0, "create"), (0, "succeed")]
)
def test_no_order_of_calls_gives_a_container_the_other_pods_card_or_keeps_it_waiting(
    steps: list[tuple[int, str]],
) -> None:
    asyncio.run(live(steps, listed=True))


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_no_order_of_calls_gives_an_init_container_that_is_not_listed_the_other_pods_card(
    steps: list[tuple[int, str]],
) -> None:
    asyncio.run(live(steps, listed=False))
