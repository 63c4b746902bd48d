"""How the commands read the API server's pods and nodes."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from cli.cluster import (
    ObservedCluster,
    certs_settings,
    cluster_state_of,
    is_installed,
    permission_of,
    trouble,
    with_cluster,
    workload_of,
)
from cli.commands import plan
from cli.main import FAILED
from fracgpu import names
from fracgpu.explain.subject import read_subject
from fracgpu.k8s.node import Taint
from fracgpu.request.need import Strategy
from fracgpu.state.node_info import observe_node
from kube.client import KubeClient
from kube.errors import AccessError, KubeError, Unavailable, error_from_status
from kube.kinds import DEPLOYMENTS, NAMESPACES
from simulator.demo.definitions import install_definitions
from tests.cli.live_cluster import Cli
from tests.support.examined import shipped
from tests.support.explaining import NOON
from tests.support.gpu import a_gpu_pod, a_sharing_node


def observed_node(node: dict[str, Any]) -> Any:
    return observe_node(json.dumps(node).encode())


def subject(pod: dict[str, Any]) -> Any:
    return read_subject(json.dumps(pod).encode())


def test_gates_taints_and_cordons_are_read() -> None:
    node = a_sharing_node("n")
    node["spec"] = {
        "unschedulable": True,
        "taints": [
            {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
            {"key": "team", "value": "a", "effect": "NoSchedule"},
        ],
    }
    pod = subject(a_gpu_pod("p", schedulingGates=[{"name": "quota"}]))
    observed = ObservedCluster(pods=(pod,), nodes=(observed_node(node),))

    state = cluster_state_of(
        observed, pod, schedulers=[names.SCHEDULER_NAME], strategy=Strategy.PACK, now=NOON
    )

    assert pod.gates == ("quota",)
    assert state.node_constraints["n"].cordoned
    assert state.node_constraints["n"].taints == (Taint(key="team", value="a"),)


def test_what_others_request_besides_cards_is_counted_on_their_node() -> None:
    hungry = a_gpu_pod("hungry", nodeName="n")
    hungry["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "63500m"
    asking = a_gpu_pod("asking")
    hungry["metadata"]["uid"], asking["metadata"]["uid"] = "u1", "u2"
    asking["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1"
    pods = (subject(hungry), subject(asking))
    observed = ObservedCluster(
        pods=pods, nodes=(observed_node(a_sharing_node("n")), observed_node(a_sharing_node("m")))
    )

    state = cluster_state_of(observed, pods[1], schedulers=[], strategy=Strategy.PACK, now=NOON)

    assert state.node_constraints["n"].short == ("too little CPU: 500m free, 1000m asked",)
    assert state.node_constraints["m"].short == ()


def an_error(status: int | None, verb: str = "GET", path: str = "/api/v1/nodes") -> KubeError:
    message = 'nodes is forbidden: User "me" cannot list resource "nodes"'
    if status is None:
        return Unavailable(verb=verb, path=path, status=None, reason="NoAnswer", message="refused")
    return error_from_status(verb=verb, path=path, status=status, reason="R", message=message)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (AccessError("no kubeconfig at 'x'"), "no kubeconfig at 'x'"),
        (an_error(401), "does not accept the credentials"),
        (an_error(403), 'may not list nodes: nodes is forbidden: User "me"'),
        (an_error(403), "kubectl auth can-i list nodes -A"),
        (an_error(None), "no answer from kube-apiserver to GET /api/v1/nodes: refused; is this"),
        (an_error(None), "--context"),
        (an_error(404), "kube-apiserver answered 404"),
    ],
)
def test_an_error_of_the_api_server_says_what_to_do(error: KubeError, words: str) -> None:
    assert words in trouble(error)


@pytest.mark.parametrize(
    ("verb", "path", "wanted"),
    [
        ("GET", "/api/v1/pods", ("list", "pods", " -A")),
        ("GET", "/api/v1/namespaces/ml/pods", ("list", "pods", " -n ml")),
        ("GET", "/api/v1/namespaces/ml/configmaps/c", ("get", "configmaps", " -n ml")),
        ("GET", "/apis/fracgpu.io/v1alpha1/moves", ("list", "moves", " -A")),
        ("PATCH", "/api/v1/nodes/n/status", ("patch", "nodes/status", "")),
        ("POST", "/api/v1/namespaces/ml/pods/p/eviction", ("create", "pods/eviction", " -n ml")),
        ("DELETE", "/api/v1/namespaces/ml", ("delete", "namespaces", "")),
        ("GET", "/version", ("get", "/version", "")),
    ],
)
def test_the_permission_that_a_request_needs_is_read_from_it(
    verb: str, path: str, wanted: tuple[str, str, str]
) -> None:
    assert permission_of(an_error(403, verb, path)) == wanted


async def test_a_command_that_is_stopped_is_not_done(cli: Cli) -> None:
    async def stopped(_: KubeClient) -> int:
        raise KeyboardInterrupt

    def command(words: Sequence[str]) -> int:
        return with_cluster("plan", plan.arguments().parse_args(words), stopped)

    assert await cli.call(command) == FAILED


async def test_whether_it_is_installed_is_asked_of_the_api_server(kube: KubeClient) -> None:
    assert not await is_installed(kube)

    await install_definitions(kube)

    assert await is_installed(kube)


async def test_the_certificates_are_those_that_the_role_was_told_to_make(kube: KubeClient) -> None:
    await kube.create(NAMESPACES, {"metadata": {"name": "gpu"}})
    without = await certs_settings(kube, namespace="gpu")
    (body,) = (b for b in shipped("Deployment") if b["metadata"]["name"] == "fracgpu-certs")
    body["metadata"] |= {"name": "gpu-certs", "namespace": "gpu"}
    (container,) = body["spec"]["template"]["spec"]["containers"]
    container["args"] = ["run", "certs", "--services=gpu-webhook", "--clients=gpu-scheduler"]
    await kube.create(DEPLOYMENTS, body)

    found = await certs_settings(kube, namespace="gpu", clients=("other",))

    assert without.services == ("fracgpu-webhook", "fracgpu-scheduler")
    assert (found.namespace, found.services) == ("gpu", ("gpu-webhook",))
    assert found.clients == ("other",)
    found_by_label = await workload_of(kube, "fracgpu-certs", namespace="gpu")
    assert found_by_label["metadata"]["name"] == "gpu-certs"
