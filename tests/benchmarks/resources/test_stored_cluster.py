"""The objects of the large cluster: what an API server reads from etcd, and our roles from it."""

import json

from benchmarks.fixtures.objects import CARDS
from benchmarks.resources.stored_cluster import namespaces, objects
from fracgpu import names
from fracgpu.state.pod_info import decode_pod_info


def test_each_node_has_its_pods_under_the_keys_of_the_api_server() -> None:
    found = dict(objects(nodes=2, pods_per_node=3))

    kinds = [key.split("/")[2] for key in found]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "minions": 2,
        "deployments": 2,
        "replicasets": 2,
        "pods": 6,
    }
    for key, body in found.items():
        assert body["apiVersion"] in ("v1", "apps/v1")
        assert key.endswith(f"/{body['metadata']['name']}")
        assert "resourceVersion" not in body["metadata"]
    assert {body["metadata"].get("namespace") for body in found.values()} - {None} == namespaces(2)


def test_its_pods_hold_cards_and_belong_to_a_controller() -> None:
    pods = [body for _, body in objects(nodes=1, pods_per_node=CARDS) if body["kind"] == "Pod"]

    infos = [decode_pod_info(json.dumps(pod).encode()) for pod in pods]
    assert all(info.owner for info in infos)
    assert len({pod["metadata"]["annotations"][names.ASSIGNMENT] for pod in pods}) == CARDS
