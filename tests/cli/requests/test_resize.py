"""``fracgpu resize pod``: it asks, waits for scheduler and agent, and says what came of it."""

import argparse
import asyncio
import json

import pytest

from cli.main import CALLED_WRONG, DONE, FAILED
from cli.requests import resize
from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.state.allocation import Assignment, Slice, write_assignment
from fracgpu.state.resize import write_resize
from fracgpu.units import Mib
from kube.client import KubeClient
from kube.kinds import PODS
from tests.cli.live_cluster import Cli
from tests.fakes.clock import VirtualClock
from tests.support.gpu import a_gpu_pod


def of(mib: int) -> Assignment:
    return {"train": (Slice(card=CardUuid("GPU-gpu-1-0"), mib=Mib(mib)),)}


async def a_running_pod(kube: KubeClient, **notes: str) -> None:
    annotations = {names.ASSIGNMENT: write_assignment(of(2000)), **notes}
    await kube.create(PODS, a_gpu_pod("web", mib=2000, annotations=annotations, nodeName="gpu-1"))


class Answering(VirtualClock):
    """Between two looks the scheduler answers, and then the agent applies."""

    def __init__(self, kube: KubeClient, *, refused: str = "", applies: bool = True) -> None:
        super().__init__()
        self._kube = kube
        self._refused = refused
        self._applies = applies
        self.asked: list[str] = []
        self.now_s = 0.0

    async def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s
        pod = await self._kube.get_object(PODS, "web", namespace="default")
        notes = pod["metadata"]["annotations"]
        if not self.asked:
            self.asked.append(notes[names.RESIZE])
            granted = of(2000) if self._refused else of(4096)
            text = write_resize(notes[names.RESIZE], granted, refused=self._refused)
            change = {names.RESIZED: text}
        else:
            change = {names.APPLIED: write_assignment(of(4096))} if self._applies else {}
        patch = {"metadata": {"annotations": change}}
        await self._kube.patch(PODS, "web", patch, namespace="default")

    def monotonic(self) -> float:
        return self.now_s


def options(*more: str) -> argparse.Namespace:
    given = ["pod", "default/web", "--memory=4Gi", "--timeout-s=5", *more]
    return resize.arguments().parse_args(given)


async def test_it_waits_until_the_limit_is_set(
    kube: KubeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    await a_running_pod(kube)
    clock = Answering(kube)

    assert await resize.resize(kube, options(), clock) == DONE

    assert clock.asked == ["4Gi"]
    assert capsys.readouterr().out == "default/web has 4Gi of its card now\n"


async def test_programs_read_which_size_it_has(
    kube: KubeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    await a_running_pod(kube)

    assert await resize.resize(kube, options("-o", "json"), Answering(kube)) == DONE

    assert json.loads(capsys.readouterr().out) == {"pod": "default/web", "memory": "4Gi"}


async def test_who_stops_waiting_is_told_that_it_stays_asked_for(
    kube: KubeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    await a_running_pod(kube)

    class Stopped(VirtualClock):
        async def sleep(self, duration_s: float) -> None:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await resize.resize(kube, options(), Stopped())

    assert "stopped waiting; what was asked for stays asked for" in capsys.readouterr().err


async def test_a_refusal_is_said_with_its_reason(
    kube: KubeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    await a_running_pod(kube)
    clock = Answering(kube, refused="at most 3000Mi fit on the pod's card now")

    assert await resize.resize(kube, options(), clock) == FAILED

    assert "stays as it is: at most 3000Mi fit" in capsys.readouterr().err


async def test_the_size_that_was_answered_before_is_asked_for_anew(kube: KubeClient) -> None:
    refused = write_resize("4Gi", of(2000), refused="too much")
    await a_running_pod(kube, **{names.RESIZE: "4Gi", names.RESIZED: refused})
    clock = Answering(kube)

    assert await resize.resize(kube, options(), clock) == DONE

    assert clock.asked == ["4096Mi"]


async def test_what_takes_too_long_is_said_to_be_under_way(
    kube: KubeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    await a_running_pod(kube)

    assert await resize.resize(kube, options(), Answering(kube, applies=False)) == FAILED

    said = capsys.readouterr().err
    assert "after 5 s it is granted, and its limit is not set yet" in said


async def test_what_is_no_pod_or_no_size_is_named(cli: Cli) -> None:
    assert await cli.call(resize.main, "pod", "default/none", "--memory", "4Gi") == FAILED
    assert "there is no pod default/none" in cli.read().err
    for size in ("4", "much"):
        with pytest.raises(SystemExit, match=str(CALLED_WRONG)):
            await cli.call(resize.main, "pod", "default/web", "--memory", size)
