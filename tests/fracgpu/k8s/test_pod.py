"""A pod's JSON, decoded once."""

import json

import pytest

from fracgpu.errors import WireError
from fracgpu.k8s.pod import decode_pod


@pytest.mark.parametrize(
    ("phase", "live"),
    [
        ("", True),
        ("Pending", True),
        ("Running", True),
        ("Unknown", True),
        ("Succeeded", False),
        ("Failed", False),
    ],
)
def test_a_pod_is_live_until_it_has_ended(phase: str, live: bool) -> None:
    assert decode_pod(json.dumps({"status": {"phase": phase}}).encode()).live is live


def test_what_is_absent_is_empty_as_is_what_is_null() -> None:
    spec = dict.fromkeys(["nodeSelector", "containers", "volumes", "priority", "overhead"])

    absent, null = (decode_pod(json.dumps(body).encode()) for body in ({}, {"spec": spec}))

    assert absent == null


@pytest.mark.parametrize(
    "body", [b"[]", b"{", b"\xff", b"[" * 100_000, b'{"spec": {"containers": {}}}']
)
def test_what_is_no_pod_is_refused(body: bytes) -> None:
    with pytest.raises(WireError, match="pod"):
        decode_pod(body)
