"""Nodes and running pods in any number, written straight into a real API server's etcd.

Through the API each pod would need two requests. kube-apiserver reads JSON from etcd as well as
what it writes itself (the decoder of its storage recognizes the format: k8s.io/apimachinery,
``runtime/serializer/recognizer``); it needs the apiVersion and kind in each object.
"""

import base64
import http.client
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from benchmarks.fixtures.objects import CARD_MIB, CARDS, a_node, a_pod
from fracgpu import names

_AT_ONCE: Final = 100  # puts of one transaction; etcd takes 128 by default (--max-txn-ops)
_LIMIT_S: Final = 60.0
_SINCE: Final = "2026-01-01T00:00:00Z"
_HASH: Final = "7c5d8b"
# As the node agent writes them; a pod with a fraction asks for its class.
_LABELS: Final = {
    names.CARD_MODEL_LABEL: "NVIDIA-A100-SXM4-80GB",
    names.CARD_MEMORY_LABEL: str(CARD_MIB),
    names.CARD_COUNT_LABEL: str(CARDS),
    f"{names.CARD_CLASS_LABEL_PREFIX}{CARD_MIB}": str(CARDS),
}


def write_cluster(etcd_url: str, *, nodes: int, pods_per_node: int) -> None:
    """Write the nodes, and for each a Deployment with its ReplicaSet and running pods.

    Raises:
        RuntimeError: etcd refused something.
    """
    connection = http.client.HTTPConnection(urlsplit(etcd_url).netloc, timeout=_LIMIT_S)
    try:
        stored = objects(nodes=nodes, pods_per_node=pods_per_node)
        while batch := list(itertools.islice(stored, _AT_ONCE)):
            _put(connection, batch)
    finally:
        connection.close()


def namespaces(nodes: int) -> set[str]:
    """Return the namespaces of the pods, which the caller creates."""
    return {a_pod(node, 0)["metadata"]["namespace"] for node in range(nodes)}


def _put(connection: http.client.HTTPConnection, batch: Iterable[tuple[str, Any]]) -> None:
    # Source: etcd's gRPC gateway, https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/
    puts = [
        {"requestPut": {"key": _base64(key.encode()), "value": _base64(json.dumps(body).encode())}}
        for key, body in batch
    ]
    connection.request("POST", "/v3/kv/txn", json.dumps({"success": puts}))
    answer = connection.getresponse()
    text = answer.read().decode()
    if answer.status != http.client.OK:
        raise RuntimeError(f"etcd answered {answer.status}: {text[:300]}")


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def objects(*, nodes: int, pods_per_node: int) -> Iterator[tuple[str, Any]]:
    """Yield the key and the stored form of each object."""
    for number in range(nodes):
        node = {"apiVersion": "v1", "kind": "Node", **a_node(number)}
        _stored(node)
        node["metadata"]["labels"] |= _LABELS
        yield f"/registry/minions/{node['metadata']['name']}", node
        yield from _workload(number, pods_per_node)


def _workload(node: int, pods: int) -> Iterator[tuple[str, Any]]:
    namespace = a_pod(node, 0)["metadata"]["namespace"]
    labels = {"app": f"train-{node}"}
    deployment = _controller("Deployment", f"train-{node}", namespace, labels, pods)
    deployment["status"] |= {"updatedReplicas": pods}
    hashed = labels | {"pod-template-hash": _HASH}
    replica_set = _controller("ReplicaSet", f"train-{node}-{_HASH}", namespace, hashed, pods)
    replica_set["status"] |= {"fullyLabeledReplicas": pods}
    replica_set["metadata"]["ownerReferences"] = [_owned_by(deployment)]
    for body in (deployment, replica_set):
        metadata = body["metadata"]
        yield f"/registry/{body['kind'].lower()}s/{namespace}/{metadata['name']}", body
    for number in range(pods):
        pod = {"apiVersion": "v1", "kind": "Pod", **a_pod(node, number)}
        pod["metadata"] |= {
            "labels": hashed,
            "ownerReferences": [_owned_by(replica_set)],
        }
        _stored(pod)
        yield f"/registry/pods/{namespace}/{pod['metadata']['name']}", pod


def _controller(
    kind: str, name: str, namespace: str, labels: dict[str, str], pods: int
) -> dict[str, Any]:
    container = {"name": "train", "image": "registry.example/train:1"}
    status = {"replicas": pods, "readyReplicas": pods, "availableReplicas": pods}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"{kind}-{name}",
            "generation": 1,
            "creationTimestamp": _SINCE,
        },
        "spec": {
            "replicas": pods,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
        "status": {**status, "observedGeneration": 1},
    }


def _owned_by(owner: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _stored(body: dict[str, Any]) -> None:
    """Turn what an API server shows into what it stores: etcd has the version of each object."""
    del body["metadata"]["resourceVersion"]
    body["metadata"]["creationTimestamp"] = _SINCE
