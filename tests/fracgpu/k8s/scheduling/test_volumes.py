"""Claims and volumes, as far as they tie a pod to nodes."""

import json
from typing import Any

import pytest

from fracgpu.errors import WireError
from fracgpu.k8s.scheduling.volumes import Volume, read_claim, read_volume
from tests.support.scheduling import HOST, ZONE


def claim_of(*modes: str) -> Any:
    return read_claim(
        json.dumps({"spec": {"volumeName": "pv", "accessModes": list(modes)}}).encode()
    )


@pytest.mark.parametrize(
    ("modes", "one_pod", "one_node"),
    [
        (("ReadWriteOnce",), False, True),
        (("ReadWriteOncePod",), True, False),
        (("ReadWriteMany",), False, False),
        (("ReadWriteOnce", "ReadOnlyMany"), False, False),
    ],
)
def test_access_modes_say_who_may_share(
    modes: tuple[str, ...], one_pod: bool, one_node: bool
) -> None:
    found = claim_of(*modes)

    assert (found.volume, found.one_pod, found.one_node) == ("pv", one_pod, one_node)


def test_a_claim_that_is_deleted_while_a_pod_uses_it_is_known_as_such() -> None:
    deleted = {"metadata": {"deletionTimestamp": "2026-01-05T12:00:00Z"}}

    assert read_claim(json.dumps(deleted).encode()).terminating
    assert not claim_of("ReadWriteOnce").terminating


def test_a_volume_names_its_nodes_and_zones() -> None:
    wanted = {"key": HOST, "operator": "In", "values": ["n1"]}
    body = {
        "metadata": {"labels": {ZONE: "a__b"}},
        "spec": {
            "local": {"path": "/disk"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}},
        },
    }

    found = read_volume(json.dumps(body).encode())

    assert found.local
    assert found.zones == {ZONE: {"a", "b"}}
    assert found.terms is not None
    assert [expression.values for term in found.terms for expression in term] == [("n1",)]


def test_a_volume_without_places_is_reachable_everywhere() -> None:
    assert read_volume(b'{"metadata": {"labels": {"topology.kubernetes.io/zone": ""}}}') == Volume()


@pytest.mark.parametrize("read", [read_claim, read_volume])
def test_what_is_no_object_is_refused(read: Any) -> None:
    with pytest.raises(WireError):
        read(b"[]")
