"""What a pod requests of a node's resources."""

from fracgpu.k8s.pod import Resources
from fracgpu.k8s.scheduling.requests import node_amounts, pod_requests


def wants(**amounts: str) -> Resources:
    return Resources(requests={**amounts})


def test_containers_add_up_and_a_limit_stands_for_a_request() -> None:
    limited = Resources(limits={"cpu": "1", "example.com/widget": "2"})

    found = pod_requests(init_containers=[], containers=[wants(cpu="250m", memory="1Ki"), limited])

    assert found == (("cpu", 1250), ("example.com/widget", 2), ("memory", 1024))


def test_init_containers_run_one_by_one_beside_the_sidecars_before_them() -> None:
    inits = [("Always", wants(cpu="1")), (None, wants(cpu="4"))]

    assert pod_requests(init_containers=inits, containers=[wants(cpu="2")]) == (("cpu", 5000),)


def test_a_request_of_the_whole_pod_replaces_the_sum_and_overhead_comes_on_top() -> None:
    found = pod_requests(
        init_containers=[],
        containers=[wants(cpu="1", memory="1"), wants(cpu="1")],
        overhead={"cpu": "100m"},
        pod_level=wants(cpu="500m"),
    )

    assert found == (("cpu", 600), ("memory", 1))


def test_amounts_of_zero_are_no_request() -> None:
    assert pod_requests(init_containers=[], containers=[wants(cpu="0"), None]) == ()


def test_a_node_has_whole_units_and_millicores() -> None:
    assert node_amounts({"cpu": "1.5", "memory": "1Mi", "pods": "110"}) == {
        "cpu": 1500,
        "memory": 1024 * 1024,
        "pods": 110,
    }
