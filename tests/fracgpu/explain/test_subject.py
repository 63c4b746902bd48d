"""The pod to explain, read from its JSON."""

import json

import pytest

from fracgpu.errors import WireError
from fracgpu.explain.subject import read_subject
from tests.support.gpu import a_gpu_pod


def test_its_gates_and_its_node_affinity_are_read() -> None:
    body = a_gpu_pod("p", schedulingGates=[{"name": "quota"}], nodeSelector={"zone": "a"})

    subject = read_subject(json.dumps(body).encode())

    assert subject.gates == ("quota",)
    assert subject.info.record.key == "default/p"
    assert not subject.scheduling_constraints.allows({"zone": "b"}, ())


def test_what_is_no_pod_is_refused() -> None:
    with pytest.raises(WireError, match="pod"):
        read_subject(b'{"spec": {"schedulingGates": 7}}')
