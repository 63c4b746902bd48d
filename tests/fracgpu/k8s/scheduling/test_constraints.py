"""What of a pod's spec decides on which nodes it may run."""

import json
from typing import Any

import pytest

from fracgpu.errors import WireError
from fracgpu.k8s.pod import decode_pod
from fracgpu.k8s.scheduling.constraints import (
    HostPort,
    SchedulingConstraints,
    scheduling_constraints_of,
)
from tests.support.scheduling import REQUIRED, pod_json, pod_term, spread


def constraints_of(**facts: Any) -> SchedulingConstraints:
    return scheduling_constraints_of(decode_pod(json.dumps(pod_json("p", **facts)).encode()))


def test_a_pod_without_wishes_has_no_constraint() -> None:
    found = constraints_of()

    assert found.allows({}, ())
    assert (found.affinity, found.anti_affinity, found.spread, found.ports) == ((), (), (), ())
    assert found.unjudged == ()
    assert not found.keeps_local_data


@pytest.mark.parametrize(
    ("volume", "named"),
    [
        ({"ephemeral": {}}, "ephemeral volume"),
        ({"hostPath": {"path": "/x"}}, "hostPath"),
        ({"gcePersistentDisk": {"pdName": "x"}}, "gcePersistentDisk"),
        ({"awsElasticBlockStore": {"volumeID": "x"}}, "awsElasticBlockStore"),
        ({"iscsi": {"iqn": "x"}}, "iscsi"),
        ({"rbd": {"image": "x"}}, "rbd"),
    ],
)
def test_a_volume_that_is_not_simulated_is_named(volume: dict[str, Any], named: str) -> None:
    assert constraints_of(volumes=[volume]).unjudged == (named,)


def test_claims_of_dynamic_resources_are_named() -> None:
    assert constraints_of(resourceClaims=[{"name": "x"}]).unjudged == ("resourceClaims",)


def test_claims_of_volumes_are_known_by_name() -> None:
    data = {"name": "data", "persistentVolumeClaim": {"claimName": "big"}}

    assert constraints_of(volumes=[data]).claims == ("big",)


@pytest.mark.parametrize(
    ("volume", "kept"),
    [
        ({"emptyDir": {}}, True),
        ({"ephemeral": {}}, True),
        ({"emptyDir": {"medium": "Memory"}}, False),
        ({"configMap": {"name": "x"}}, False),
    ],
)
def test_only_volumes_on_the_disk_of_the_node_hold_local_data(
    volume: dict[str, Any], kept: bool
) -> None:
    assert constraints_of(volumes=[volume]).keeps_local_data is kept


def test_ports_of_the_node_are_those_of_containers_and_sidecars() -> None:
    port = {"containerPort": 80, "hostPort": 80}
    inits = [
        {"name": "side", "restartPolicy": "Always", "ports": [{"hostPort": 81, "protocol": "UDP"}]},
        {"name": "init", "ports": [{"hostPort": 82}]},
    ]

    found = constraints_of(ports=[port, {"containerPort": 90}], initContainers=inits)

    assert found.ports == (HostPort(protocol="UDP", port=81), HostPort(port=80))


@pytest.mark.parametrize(
    ("other", "conflicts"),
    [
        (HostPort(port=80), True),
        (HostPort(port=81), False),
        (HostPort(port=80, protocol="UDP"), False),
        (HostPort(port=80, ip="10.0.0.1"), True),
    ],
)
def test_a_port_on_every_address_conflicts_with_one_on_any(
    other: HostPort, conflicts: bool
) -> None:
    assert HostPort(port=80).conflicts(other) is conflicts
    assert other.conflicts(HostPort(port=80)) is conflicts


def test_two_addresses_may_have_the_same_port() -> None:
    assert not HostPort(port=80, ip="10.0.0.1").conflicts(HostPort(port=80, ip="10.0.0.2"))


def test_pods_of_one_template_share_their_constraints() -> None:
    spec = {
        "affinity": {"podAntiAffinity": {REQUIRED: [pod_term()]}},
        "topologySpreadConstraints": [spread()],
        "requests": {"cpu": "1"},
    }
    own = [{"name": f"kube-api-access-{name}", "projected": {}} for name in "ab"]

    first, second = (constraints_of(volumes=[volume], **spec) for volume in own)

    assert first is second


def test_what_is_no_affinity_is_refused() -> None:
    pod = decode_pod(b'{"spec": {"affinity": []}}')

    with pytest.raises(WireError, match="pod"):
        scheduling_constraints_of(pod)
