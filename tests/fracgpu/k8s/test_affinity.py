"""A pod's affinity is decoded once, whoever asks for it."""

import json

import pytest

from fracgpu.k8s.affinity import read_affinity
from fracgpu.k8s.pod import decode_pod
from fracgpu.k8s.scheduling.constraints import scheduling_constraints_of
from fracgpu.k8s.scheduling.preferences import has_preferences

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def test_preferences_and_constraints_read_an_affinity_that_was_decoded_once() -> None:
    affinity = {
        "nodeAffinity": {
            REQUIRED: {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]
            },
            PREFERRED: [{"weight": 1, "preference": {"matchFields": []}}],
        },
        "podAntiAffinity": {REQUIRED: [{"topologyKey": "decoded-once"}]},
    }
    pod = decode_pod(json.dumps({"spec": {"affinity": affinity}}).encode())
    decoded = read_affinity.cache_info().misses

    constraints = scheduling_constraints_of(pod)

    assert has_preferences(pod.spec)
    assert constraints.node.terms is not None
    assert [term.topology_key for term in constraints.anti_affinity] == ["decoded-once"]
    assert read_affinity.cache_info().misses == decoded + 1


@pytest.mark.parametrize("body", [b"", b"null", b"{}"])
def test_no_affinity_has_no_terms(body: bytes) -> None:
    found = read_affinity(body)

    assert (found.node_affinity, found.pod_affinity, found.pod_anti_affinity) == (None, None, None)
    assert not found.prefers
