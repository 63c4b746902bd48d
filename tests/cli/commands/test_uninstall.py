"""What the command prints, and when it changes something."""

import json

import pytest

from cli.commands.uninstall import (
    left_lines,
    main,
    plan_json,
    plan_lines,
    plan_names,
)
from cli.flags import as_json
from cli.main import CALLED_WRONG, DONE
from cli.main import main as fracgpu
from cli.removal import FoundObject, Left, RemovalPlan
from fracgpu.cards.node_marks import NodeMarks
from kube.kinds import CLUSTER_ROLES, NAMESPACES, ROLE_BINDINGS
from tests.cli.live_cluster import Cli

OBJECTS = (
    FoundObject(kind=CLUSTER_ROLES, name="fracgpu-webhook"),
    FoundObject(kind=ROLE_BINDINGS, name="reader", namespace="kube-system"),
)


def test_the_plan_names_every_object_and_says_what_becomes_of_running_pods() -> None:
    plan = RemovalPlan(
        nodes={"n1": NodeMarks(labels=("fracgpu.io/driver",), condition=True)},
        objects=OBJECTS,
        namespaces=["fracgpu-system"],
        shared={"apps": ["Deployment web"]},
        pods=[f"ml/p{n}" for n in range(22)],
    )

    *lines, pods = plan_lines(plan)

    assert lines == [
        "node n1: label fracgpu.io/driver, condition FracGPUSharing",
        "ClusterRole fracgpu-webhook",
        "RoleBinding kube-system/reader",
        "Namespace fracgpu-system, with everything in it",
        "Namespace apps stays, because not everything in it is FracGPU's: Deployment web",
    ]
    assert pods.startswith("22 pods with cards: each keeps them until it ends")
    assert pods.endswith("ml/p19 and 2 more")


def test_what_is_left_is_named_with_the_files_of_hosts_that_no_agent_cleaned() -> None:
    left = Left(
        nodes={"n1": ["capacity fracgpu.io/gpu-slot"]},
        namespaces=["fracgpu-system"],
        without_agent=["n2"],
    )

    lines = left_lines(left)

    assert lines[:2] == [
        "node n1 still has capacity fracgpu.io/gpu-slot",
        "Namespace fracgpu-system is not gone yet",
    ]
    assert "n2" in lines[2]
    assert "/var/run/cdi/fracgpu.io-slot_*" in lines[2]
    assert left.unfinished
    assert left_lines(Left()) == ["nothing is left"]


@pytest.mark.parametrize("flags", [["--yes", "--dry-run"], ["--wait-s", "soon"], ["extra"]])
def test_a_wrong_call_is_told(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert fracgpu(["uninstall", *flags]) == CALLED_WRONG
    assert "usage: fracgpu uninstall" in capsys.readouterr().err


PLAN = RemovalPlan(
    nodes={"n1": NodeMarks(labels=("fracgpu.io/driver",))},
    objects=OBJECTS,
    namespaces=["fracgpu-system"],
    pods=["ml/p0"],
    moved=["ml/p1"],
)


def test_programs_read_the_plan_and_what_is_left_as_json() -> None:
    assert plan_json(PLAN) == {
        "nodes": {"n1": ["label fracgpu.io/driver"]},
        "objects": [
            {"kind": "ClusterRole", "namespace": "", "name": "fracgpu-webhook"},
            {"kind": "RoleBinding", "namespace": "kube-system", "name": "reader"},
        ],
        "namespaces": ["fracgpu-system"],
        "sharedNamespaces": {},
        "pods": ["ml/p0"],
        "moved": ["ml/p1"],
    }
    left = Left(
        nodes={"n1": ["capacity x"]}, namespaces=["a"], without_agent=["n2"], moved=["ml/p1"]
    )
    assert as_json(left) == {
        "nodes": {"n1": ["capacity x"]},
        "namespaces": ["a"],
        "withoutAgent": ["n2"],
        "moved": ["ml/p1"],
    }


def test_names_are_those_of_kubectl() -> None:
    assert plan_names(PLAN) == [
        "node/n1",
        "clusterrole.rbac.authorization.k8s.io/fracgpu-webhook",
        "rolebinding.rbac.authorization.k8s.io/reader",
        "namespace/fracgpu-system",
    ]


async def test_nothing_is_changed_and_the_plan_is_printed_as_json(cli: Cli) -> None:
    await cli.kube.create(
        NAMESPACES,
        {
            "metadata": {
                "name": "fracgpu-system",
                "labels": {"app.kubernetes.io/part-of": "fracgpu"},
            }
        },
    )

    assert await cli.call(main, "-o", "json") == DONE

    answer = json.loads(cli.read().out)
    assert answer["found"]["namespaces"] == ["fracgpu-system"]
    assert answer["left"] is None
    assert await cli.kube.get(NAMESPACES, "fracgpu-system")
