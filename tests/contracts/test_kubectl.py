"""kubectl on the simulator's API server and on a real one: apply, get, describe, delete."""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kube.client import KubeClient
from kube.kinds import MOVES, PODS
from simulator.demo.definitions import install_definitions
from simulator.envtest.control_plane import ASSETS_ENV
from tests.support.gpu import a_sharing_node, register, some_cards
from tests.support.kubectl import Kubectl
from tests.support.moves import move_body, move_of
from tests.support.waiting import until


@pytest.fixture
def kubectl(api_server: Path, monkeypatch: pytest.MonkeyPatch) -> Kubectl:
    """Return kubectl of the PATH, or the one beside the real control plane's binaries."""
    assets = os.environ.get(ASSETS_ENV)
    if shutil.which("kubectl") is None and assets:
        monkeypatch.setenv("PATH", assets, prepend=os.pathsep)
    return Kubectl.find(api_server)


def a_pod(name: str, namespace: str, **container: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": "x"}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "image", **container}],
        },
    }


def a_deployment(namespace: str, **spec: Any) -> dict[str, Any]:
    labels = {"app": "web"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "j"}]},
            },
            **spec,
        },
    }


def columns(text: str) -> list[str]:
    return re.split(r" {2,}", text.splitlines()[0].strip())


def row(text: str) -> Sequence[str]:
    """Return the cells of the first row; those of kubectl are at least three blanks apart."""
    return re.split(r" {2,}", text.splitlines()[1].strip())


async def test_apply_creates_leaves_alone_and_changes(kubectl: Kubectl, namespace: str) -> None:
    body = a_deployment(namespace)

    assert (await kubectl("apply", "-f", "-", stdin=body)).endswith("web created\n")
    assert (await kubectl("apply", "-f", "-", stdin=body)).endswith("web unchanged\n")
    changed = a_deployment(namespace, replicas=5, minReadySeconds=3)
    assert (await kubectl("apply", "-f", "-", stdin=changed)).endswith("web configured\n")

    words = ("get", "deployment", "web", "-n", namespace, "-o")
    assert await kubectl(*words, "jsonpath={.spec.replicas} {.spec.minReadySeconds}") == "5 3"
    # What was applied before and is no longer there goes.
    await kubectl("apply", "-f", "-", stdin=a_deployment(namespace))
    assert await kubectl(*words, "jsonpath={.spec.replicas} {.spec.minReadySeconds}") in {
        "2 ",
        "2 0",
    }


async def test_pods_are_shown_in_columns(kubectl: Kubectl, namespace: str) -> None:
    await kubectl("create", "-f", "-", stdin=a_pod("x", namespace))

    short = await kubectl("get", "pods", "-n", namespace)
    wide = await kubectl("get", "pods", "-n", namespace, "-o", "wide")

    assert columns(short) == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert row(short)[:4] == ["x", "0/1", "Pending", "0"]
    assert re.fullmatch(r"\d+s", row(short)[4])
    assert columns(wide)[5:7] == ["IP", "NODE"]
    assert row(wide)[5:7] == ["<none>"] * 2


async def test_moves_are_shown_in_the_columns_of_their_definition(
    client: KubeClient, kubectl: Kubectl, namespace: str
) -> None:
    await install_definitions(client)
    move = move_of(f"move-of-{namespace}")
    await client.create(MOVES, move_body(move))

    async def shown() -> bool:
        # A real server publishes the columns of a new definition a moment later.
        return "PHASE" in await kubectl("get", "moves", move.name)

    await until(shown, what="the columns of Moves")
    short = await kubectl("get", "moves", move.name)
    wide = await kubectl("get", "moves", move.name, "-o", "wide")

    names = ["NAME", "NAMESPACE", "POD", "FROM", "TO", "PHASE", "RESULT", "REASON", "AGE"]
    assert columns(short) == names
    assert columns(wide) == [*names[:-1], "MESSAGE", "AGE"]
    assert row(short)[0] == move.name
    assert move.spec.pod.name in row(short)


async def test_a_watch_shows_rows_in_the_same_columns(kubectl: Kubectl, namespace: str) -> None:
    await kubectl("create", "-f", "-", stdin=a_pod("x", namespace))

    words = ("get", "pods", "-n", namespace, "--watch", "--request-timeout=3s")
    answer = await kubectl.ask(*words)

    assert columns(answer.out) == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert row(answer.out)[:3] == ["x", "0/1", "Pending"]


async def test_describe_tells_of_a_pod(kubectl: Kubectl, namespace: str) -> None:
    await kubectl("create", "-f", "-", stdin=a_pod("x", namespace))

    said = await kubectl("describe", "pod", "x", "-n", namespace)

    assert re.search(rf"^Namespace: +{namespace}$", said, re.MULTILINE)
    assert re.search(r"^Labels: +app=x$", said, re.MULTILINE)
    assert re.search(r"^ +Image: +image$", said, re.MULTILINE)


async def test_delete_with_the_file_that_was_applied(
    client: KubeClient, kubectl: Kubectl, namespace: str
) -> None:
    body = a_pod("x", namespace)
    await kubectl("apply", "-f", "-", stdin=body)

    said = await kubectl("delete", "-f", "-", stdin=body)

    assert said.startswith('pod "x" ')
    assert not (await client.list(PODS, namespace=namespace)).items


async def test_it_runs_and_completes_our_plugin(
    client: KubeClient, kubectl: Kubectl, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = Path(sys.executable).parent
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    cards = some_cards(namespace, count=2)
    await register(client, a_sharing_node(f"node-of-{namespace}", cards=cards))

    said = await kubectl("fracgpu", "cards", "-o", "name")

    assert {f"card/{card.uuid}" for card in cards} <= set(said.splitlines())
    assert str(programs / "kubectl-fracgpu") in await kubectl("plugin", "list")
    # What kubectl's own completion scripts ask at a press of Tab.
    completed = await kubectl("__complete", "fracgpu", "cards", "-o", "ya")
    assert completed.splitlines() == ["yaml", ":4"]
