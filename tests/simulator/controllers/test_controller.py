from __future__ import annotations

import asyncio

from kube.errors import Conflict
from kube.kinds import DEPLOYMENTS, REPLICASETS
from kube.objects import ObjectKey
from simulator.controllers.controller import WorkQueue, controller_of, enqueue_owner, run_controller

A, B = ObjectKey("default", "a"), ObjectKey("default", "b")


async def test_a_key_waits_once_however_often_it_was_added() -> None:
    queue = WorkQueue()
    for key in (A, B, A):
        queue.add(key)

    assert [await queue.get(), await queue.get()] == [A, B]
    queue.add(A)
    assert await queue.get() == A


async def test_a_reader_waits_for_the_first_key() -> None:
    queue = WorkQueue()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        reading = group.create_task(queue.get())
        queue.add(B)

    assert reading.result() == B


class Stubborn:
    """Fails a few times, then succeeds."""

    def __init__(self, failures: int) -> None:
        self.name = "stubborn"
        self.queue = WorkQueue()
        self.synced: list[ObjectKey] = []
        self.done = asyncio.Event()
        self._failures = failures

    async def reconcile(self, key: ObjectKey) -> None:
        self.synced.append(key)
        if len(self.synced) <= self._failures:
            raise Conflict(verb="PUT", path="/", status=409, reason="Conflict", message="stale")
        self.done.set()


async def test_a_reconcile_that_lost_a_race_is_retried() -> None:
    controller = Stubborn(failures=1)
    controller.queue.add(A)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        running = group.create_task(run_controller(controller))
        await controller.done.wait()
        running.cancel()

    assert controller.synced == [A, A]


async def test_only_owners_of_the_kind_are_queued() -> None:
    queue = WorkQueue()
    owned = {
        "metadata": {
            "namespace": "default",
            "ownerReferences": [
                {"kind": "Node", "name": "n1", "uid": "0"},
                {"kind": "ReplicaSet", "name": "a", "uid": "1", "controller": True},
            ],
        }
    }

    enqueue_owner(queue, DEPLOYMENTS)(owned)
    enqueue_owner(queue, REPLICASETS)(owned)

    assert await queue.get() == A
    reference = controller_of(owned)
    assert reference is not None
    assert reference["uid"] == "1"
