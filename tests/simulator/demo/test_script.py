"""Pods are grouped by their workload, and an error ends the demo with a message."""

from types import SimpleNamespace
from typing import cast

import pytest

from component.wiring import DEFAULT_WIRING
from kube.errors import Unavailable
from process.clock import SystemClock
from simulator.demo.promises import HeatFact, judge
from simulator.demo.rig import Rig
from simulator.demo.script import Progress, Script, play_within
from simulator.demo.workload import owner_of

OWNERS = {"chat": 3, "chatter": 1, "notebook": 1}


@pytest.mark.parametrize(
    ("pod", "owner"),
    [
        ("chat-5f7-abc", "chat"),
        ("chatter-5f7-abc", "chatter"),
        ("notebook", "notebook"),
        ("notebooks", ""),
        ("other-1", ""),
    ],
)
def test_a_pod_belongs_to_the_workload_whose_name_it_carries(pod: str, owner: str) -> None:
    assert owner_of(pod, OWNERS) == owner


class Refused(Script):
    """Fails as if a webhook did not answer."""

    async def play(self) -> None:
        self.progress.step = "submitting pods"
        raise Unavailable(
            verb="POST", path="/pods", status=500, reason="InternalError", message="no webhook"
        )


class SilentPrometheus:
    async def targets_up(self) -> dict[str, bool]:
        raise ConnectionRefusedError


def a_rig() -> Rig:
    """Return a rig with what a script reads at the end, of a cluster without pods."""
    observer = SimpleNamespace(pods=(), peaks=(), heat=HeatFact())
    parts = {"prometheus": SilentPrometheus(), "observer": observer}
    return cast("Rig", SimpleNamespace(**parts, wiring=DEFAULT_WIRING))


async def test_an_api_server_that_refuses_is_the_demos_trouble_not_a_traceback() -> None:
    trouble = await play_within(Refused(a_rig(), SystemClock(), Progress()), 10)

    assert trouble.startswith("failed at: submitting pods: kube-apiserver answered 500")


async def test_a_prometheus_that_does_not_answer_breaks_its_promise_and_nothing_else() -> None:
    facts = await Script(a_rig(), SystemClock(), Progress()).facts()

    assert [
        promise.held for promise in judge(facts) if promise.name == "Prometheus scrapes every role"
    ] == [False]
