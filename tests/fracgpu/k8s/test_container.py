from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.errors import WireError
from fracgpu.k8s.container import ContainerKind, ContainerSpec, pod_resource_sum
from fracgpu.k8s.node import decode_node
from fracgpu.k8s.pod import decode_pod
from fracgpu.k8s.quantity import canonical, cpu_milli, integer_amount, memory_mib, parse
from fracgpu.k8s.resources import (
    NO_HOST_RESOURCES,
    HostResources,
    node_host,
    pod_host,
    pod_requests,
)

APP, INIT, SIDECAR = ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR


def peak_over_time(containers: Sequence[tuple[ContainerKind, int]]) -> int:
    """Return the highest sum while containers start as the kubelet starts them.

    Init containers and sidecars start in spec order; an init container ends before the next one
    starts, a sidecar keeps running; then all app containers run beside the sidecars.
    """
    running: list[int] = []
    peak = 0
    for kind, amount in containers:
        if kind is APP:
            continue
        running.append(amount)
        peak = max(peak, sum(running))
        if kind is INIT:
            running.pop()
    for kind, amount in containers:
        if kind is APP:
            running.append(amount)
            peak = max(peak, sum(running))
    return peak


kinds = st.sampled_from(ContainerKind)
pods = st.lists(st.tuples(kinds, st.integers(0, 100)), max_size=8)


@given(pods)
def test_the_rule_equals_running_the_pod_through_time(
    containers: list[tuple[ContainerKind, int]],
) -> None:
    in_spec_order = sorted(containers, key=lambda container: container[0] is APP)

    assert pod_resource_sum(in_spec_order) == peak_over_time(in_spec_order)


def test_a_container_without_limits_has_none() -> None:
    spec = ContainerSpec(name="a")

    assert (spec.kind, dict(spec.limits), dict(spec.requests)) == (APP, {}, {})


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
    assert node_host({"cpu": "64", "memory": "256Gi", "pods": "110"}) == HostResources(
        cpu_milli=64_000, memory_mib=262_144, pods=110
    )
    assert node_host({}) == NO_HOST_RESOURCES


def test_a_limit_stands_in_for_a_request() -> None:
    app = ContainerSpec(name="a", limits={"cpu": "2", "memory": "1Gi"}, requests={"cpu": "1"})
    init = ContainerSpec(name="i", kind=ContainerKind.INIT, requests={"memory": "3Gi"})

    assert pod_host(pod_requests((init, app))) == HostResources(
        cpu_milli=1000, memory_mib=3072, pods=1
    )


@pytest.mark.parametrize(
    ("written", "returned"),
    [
        # As a real kube-apiserver returned them, and as resource/quantity_test.go has them.
        ("8000", "8k"),
        (8000, "8k"),
        ("4096", "4096"),
        ("655360", "655360"),
        ("655000", "655k"),
        ("0.5", "500m"),
        (0.5, "500m"),
        ("1000m", "1"),
        ("1024Mi", "1Gi"),
        ("1500Mi", "1500Mi"),
        ("512", "512"),
        ("1Ki", "1Ki"),
        ("0.5Ki", "512"),
        ("0.1Gi", "107374182400m"),
        ("1e3", "1e3"),
        ("12E", "12E"),
        ("-5k", "-5k"),
        ("0", "0"),
        (" 1 ", "1"),
    ],
)
def test_the_canonical_form_is_the_api_servers(written: str | float, returned: str) -> None:
    assert canonical(written) == returned


@pytest.mark.parametrize(
    "text", ["", "abc", "1.2.3", "4 Gi", "1K", "4gi", "--1", "NaN", "1e", ".", "1e1000"]
)
def test_what_is_no_quantity_is_refused_in_the_api_servers_words(text: str) -> None:
    with pytest.raises(ValueError, match="quantities must match the regular expression"):
        parse(text)


def test_true_is_no_quantity() -> None:
    with pytest.raises(ValueError, match="quantities"):
        parse(True)


@given(
    st.fractions(min_value=-(10**6), max_value=10**12, max_denominator=1).map(int),
    st.sampled_from(["", "k", "M", "Ki", "Mi", "Gi", "m"]),
)
def test_the_canonical_form_means_the_same_number(number: int, suffix: str) -> None:
    written = f"{number}{suffix}"

    assert parse(canonical(written)) == parse(written)
    assert canonical(canonical(written)) == canonical(written)


def test_reading_is_exact() -> None:
    assert parse("0.1") == Fraction(1, 10)
    assert parse("1Gi") == 2**30


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("4000", 4000),
        ("4k", 4000),
        ("2Ki", 2048),
        ("1T", 10**12),
        ("1e3", 1000),
        ("3000m", 3),
        *((text, None) for text in ("1.5", "", "k", "-1", "4kk", "4Xi", "٤", "many")),
    ],
)
def test_an_amount_that_is_counted_is_whole(text: str, amount: int | None) -> None:
    assert integer_amount(text) == amount
