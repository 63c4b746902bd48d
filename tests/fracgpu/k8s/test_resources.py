"""CPU, host memory and pods of a node, and what pods request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.k8s.container import ContainerKind, ContainerSpec
from fracgpu.k8s.quantity import cpu_milli, memory_mib
from fracgpu.k8s.resources import NO_HOST_RESOURCES, HostResources, node_allocatable, pod_requests


@pytest.mark.parametrize(
    ("text", "milli"),
    [("2", 2000), ("1500m", 1500), ("1.5", 1500), ("0.0001", 1), ("1k", 1_000_000), ("", 0)],
)
def test_cpu_is_read_in_thousandths_rounded_up(text: str, milli: int) -> None:
    assert cpu_milli(text) == milli


@pytest.mark.parametrize(
    ("text", "mib"),
    [("64Mi", 64), ("1Gi", 1024), ("1", 1), ("1e6", 1), ("12Ki", 1), ("1M", 1), ("nonsense", 0)],
)
def test_memory_is_read_in_mib_rounded_up(text: str, mib: int) -> None:
    assert memory_mib(text) == mib


@given(st.text(alphabet="0123456789.eEikmKMGTPn-+", max_size=8))
def test_any_text_is_an_amount_or_nothing(text: str) -> None:
    assert cpu_milli(text) >= 0
    assert memory_mib(text) >= 0


def test_a_nodes_allocatable_is_read() -> None:
    assert node_allocatable({"cpu": "64", "memory": "256Gi", "pods": "110"}) == HostResources(
        cpu_milli=64_000, memory_mib=262_144, pods=110
    )
    assert node_allocatable({}) == NO_HOST_RESOURCES


def test_a_limit_stands_in_for_a_request() -> None:
    app = ContainerSpec(name="a", limits={"cpu": "2", "memory": "1Gi"}, requests={"cpu": "1"})
    init = ContainerSpec(name="i", kind=ContainerKind.INIT, requests={"memory": "3Gi"})

    assert pod_requests((init, app)) == HostResources(cpu_milli=1000, memory_mib=3072, pods=1)
