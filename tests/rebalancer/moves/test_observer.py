"""Which pod is the replacement, and what is seen of the pod that is moved."""

import json
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web

from fracgpu import names
from fracgpu.k8s.pod import decode_pod
from fracgpu.state.cluster_state import PlacedPod
from kube.access import connect_to
from kube.errors import KubeDecodeError
from rebalancer.moves.observer import (
    Observer,
    candidate,
    orphans_of,
    replacement_of,
    victim_of,
    why_stuck,
)
from rebalancer.moves.steps import DELETION_COST, LOWEST_COST, StepContext
from simulator.envtest.ports import free_ports
from tests.fakes.clock import NOON
from tests.support.rebalancing import ACTIVE, COOL_CARD, a_disruption_state, a_move, a_placed_pod
from tests.support.records import a_record

RECORD = a_record(move=a_move(pod_uid="pod-a", owner_uid="owner-1"), created=NOON)
LATER = NOON + timedelta(seconds=20)
CONSUMED = {names.MOVE: RECORD.id}


def a_pod(uid: str, **facts: Any) -> PlacedPod:
    return a_placed_pod(uid, created_at=facts.pop("created_at", LATER), **facts)


def chosen(*pods: PlacedPod) -> str:
    found = candidate(RECORD, pods)
    return found.uid if found else ""


def test_the_pod_that_consumed_the_reservation_is_the_replacement() -> None:
    unbound = a_pod("new", record={"node": ""})
    mine = a_pod("mine", annotations=CONSUMED, created_at=NOON)

    assert chosen(unbound, mine) == "mine"


def test_until_then_it_may_be_any_pod_made_since_and_first_one_that_is_not_bound() -> None:
    bound, unbound = a_pod("bound"), a_pod("unbound", record={"node": ""})

    assert chosen(bound, unbound) == "unbound"
    assert chosen(bound) == "bound"


@pytest.mark.parametrize(
    "pod",
    [
        a_pod("pod-a"),
        a_pod("sibling", created_at=NOON),
        a_pod("stranger", owner=("ReplicaSet", "other", "owner-2")),
        a_pod("going", record={"terminating": True}),
    ],
)
def test_neither_the_pod_itself_nor_a_sibling_is_its_replacement(pod: PlacedPod) -> None:
    assert chosen(pod) == ""


def test_what_is_seen_of_the_moved_pod() -> None:
    labels, notes = {"pod-template-hash": "5d4f8c.moved"}, {names.MOVED_BY: "m"}
    info = a_placed_pod("pod-a", owner=None, labels=labels, annotations=notes).info

    found = victim_of(info, uid="pod-a")

    assert found.there
    assert found.released
    assert (found.controller_uid, found.moved_by) == ("", "m")
    assert victim_of(info, uid="other").why_gone == "ml/pod-a is another pod now"
    assert victim_of(None, uid="pod-a").why_gone == "there is no such pod"
    ending = a_placed_pod("pod-a", record={"terminating": True}).info
    assert not victim_of(ending, uid="pod-a").there


def test_what_is_seen_of_the_replacement() -> None:
    notes = {**CONSUMED, DELETION_COST: LOWEST_COST}
    pod = a_placed_pod("pod-c", COOL_CARD, node="n2", annotations=notes, ready=False)

    found = replacement_of(pod.info, RECORD, stuck="")

    assert (found.node, found.card, found.ready) == ("n2", COOL_CARD, False)
    assert found.by_reservation
    assert found.demoted


@pytest.mark.parametrize(
    ("field", "waiting", "why"),
    [
        (
            "containerStatuses",
            {"reason": "ImagePullBackOff", "message": "no such image"},
            "container train: ImagePullBackOff: no such image",
        ),
        (
            "initContainerStatuses",
            {"reason": "InvalidImageName"},
            "container train: InvalidImageName",
        ),
        ("containerStatuses", {"reason": "ContainerCreating", "message": "soon"}, ""),
        ("containerStatuses", None, ""),
    ],
)
def test_a_container_that_time_alone_does_not_start_is_named(
    field: str, waiting: dict[str, str] | None, why: str
) -> None:
    states = [{"name": "other"}, {"name": "train", "state": {"waiting": waiting}}]
    body = json.dumps({"status": {field: states}}).encode()

    assert why_stuck(decode_pod(body)) == why


def test_orphans_are_the_pods_that_a_deleted_replicaset_left_behind() -> None:
    labels = {"pod-template-hash": "5d4f8c"}
    left = a_placed_pod("left", owner=None, labels=labels)
    owned = a_placed_pod("owned", labels=labels)

    assert orphans_of([left, owned], "ml", hash_value="5d4f8c") == [left]
    assert orphans_of([left], "other", hash_value="5d4f8c") == []
    assert orphans_of([a_placed_pod("bare", owner=None)], "ml", hash_value="") == []


@pytest.mark.parametrize("kind", ["pods", "nodes"])
async def test_an_object_that_cannot_be_read_is_left_to_the_next_cycle(kind: str) -> None:
    """As from a proxy with a page of its own; the controller goes on after a KubeError."""

    async def answer(request: web.Request) -> web.Response:
        if f"/{kind}/" in request.path:
            return web.Response(text="<html>sign in</html>", content_type="text/html")
        return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    (port,) = free_ports(1)
    context = StepContext(state=a_disruption_state(), nodes={}, policy=ACTIVE, now=NOON)
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        async with connect_to(f"http://127.0.0.1:{port}") as client:
            with pytest.raises(KubeDecodeError):
                await Observer(client).observe(RECORD, context)
    finally:
        await runner.cleanup()
