"""The sum of what bound pods request of each node besides cards."""

from hypothesis import given
from hypothesis import strategies as st

from fracgpu.k8s.resources import HostResources
from fracgpu.state.bound_pod import BoundPod
from fracgpu.state.bound_pod_index import BoundPodIndex
from fracgpu.state.snapshot import PodAllocation


def a_pod(uid: str, *, node: str = "n", cpu: int = 100) -> BoundPod:
    return BoundPod(
        namespace="default",
        name=uid,
        host=HostResources(cpu_milli=cpu, memory_mib=10, pods=1),
        allocation=PodAllocation(pod_uid=uid, node=node, by_card={}),
    )


changes = st.tuples(st.sampled_from("abc"), st.sampled_from(["n", "m", None]), st.integers(0, 300))


@given(st.lists(changes))
def test_the_sums_equal_those_from_scratch(steps: list[tuple[str, str | None, int]]) -> None:
    index, pods = BoundPodIndex(), dict[str, BoundPod]()
    for uid, node, cpu in steps:
        if node is None:
            index.remove(uid)
            pods.pop(uid, None)
        else:
            pods[uid] = a_pod(uid, node=node, cpu=cpu)
            index.put(pods[uid])
    for node in ("n", "m"):
        here = [pod.host for pod in pods.values() if pod.node == node]
        assert index.used(node) == HostResources(
            cpu_milli=sum(host.cpu_milli for host in here),
            memory_mib=sum(host.memory_mib for host in here),
            pods=len(here),
        )
    assert len(index) == len(pods)
