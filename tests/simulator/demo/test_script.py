"""Pods are told apart by the workload they belong to."""

import pytest

from simulator.demo.script import owner_of

OWNERS = {"chat": 3, "chatter": 1, "notebook": 1}


@pytest.mark.parametrize(
    ("pod", "owner"),
    [
        ("chat-5f7-abc", "chat"),
        ("chatter-5f7-abc", "chatter"),
        ("notebook", "notebook"),
        ("notebooks", ""),
        ("other-1", ""),
    ],
)
def test_a_pod_belongs_to_the_workload_whose_name_it_carries(pod: str, owner: str) -> None:
    assert owner_of(pod, OWNERS) == owner
