"""Whether a pod prefers some nodes to others."""

import json
from typing import Any

import pytest

from fracgpu.k8s.pod import decode_pod
from fracgpu.k8s.scheduling.preferences import has_preferences
from tests.support.scheduling import pod_json

SOFT = "preferredDuringSchedulingIgnoredDuringExecution"
HARD = "requiredDuringSchedulingIgnoredDuringExecution"


def prefers(**facts: Any) -> bool:
    return has_preferences(decode_pod(json.dumps(pod_json("p", **facts)).encode()).spec)


def test_a_pod_without_affinity_and_spreading_prefers_nothing() -> None:
    assert not prefers()
    assert not prefers(affinity=None, topologySpreadConstraints=None)
    assert not prefers(affinity={}, topologySpreadConstraints=[])


@pytest.mark.parametrize(
    ("kind", "hard"),
    [
        ("nodeAffinity", {"nodeSelectorTerms": []}),
        ("podAffinity", [{"topologyKey": "zone"}]),
        ("podAntiAffinity", [{"topologyKey": "zone"}]),
    ],
)
def test_soft_affinity_is_a_preference_and_hard_affinity_is_not(kind: str, hard: Any) -> None:
    assert prefers(affinity={kind: {SOFT: [{"weight": 1}]}})
    assert not prefers(affinity={kind: {SOFT: []}})
    assert not prefers(affinity={kind: {SOFT: None}})
    assert not prefers(affinity={kind: {HARD: hard}})


def test_soft_spreading_is_a_preference_and_hard_spreading_is_not() -> None:
    soft = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    hard = {**soft, "whenUnsatisfiable": "DoNotSchedule"}

    assert prefers(topologySpreadConstraints=[hard, soft])
    assert not prefers(topologySpreadConstraints=[hard])


def test_what_cannot_be_read_may_be_a_preference() -> None:
    assert prefers(affinity={"nodeAffinity": [SOFT]})
    assert prefers(topologySpreadConstraints="ScheduleAnyway")
