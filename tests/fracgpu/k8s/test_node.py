"""A node's JSON, decoded."""

import json

import pytest

from fracgpu.errors import WireError
from fracgpu.k8s.node import decode_node


@pytest.mark.parametrize(
    ("conditions", "ready"),
    [
        ([{"type": "Ready", "status": "True"}], True),
        ([{"type": "Ready", "status": "Unknown"}], False),
        ([{"type": "MemoryPressure", "status": "False"}], True),
        (None, True),
    ],
)
def test_a_node_is_ready_unless_it_is_said_not_to_be(
    conditions: list[dict[str, str]] | None, ready: bool
) -> None:
    body = json.dumps({"status": {"conditions": conditions}}).encode()

    assert decode_node(body).ready is ready


@pytest.mark.parametrize("body", [b"[]", b"", b'{"spec":{"taints":3}}', b"\xff"])
def test_what_is_no_node_is_refused(body: bytes) -> None:
    with pytest.raises(WireError, match="node"):
        decode_node(body)
