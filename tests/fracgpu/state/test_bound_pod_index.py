"""What the bound pods take of each node besides cards."""

from hypothesis import given
from hypothesis import strategies as st

from fracgpu.k8s.resources import NO_HOST_RESOURCES, HostResources
from fracgpu.state.bound_pod import BoundPod
from fracgpu.state.bound_pod_index import BoundPodIndex
from fracgpu.state.snapshot import PodAllocation


def a_pod(uid: str, *, node: str = "n", cpu: int = 100) -> BoundPod:
    return BoundPod(
        namespace="default",
        name=uid,
        host=HostResources(cpu_milli=cpu, memory_mib=10, pods=1),
        holds=PodAllocation(pod_uid=uid, node=node, by_card={}),
    )


def test_the_same_news_twice_counts_once() -> None:
    roster = BoundPodIndex()
    roster.put(a_pod("p"))
    roster.put(a_pod("p"))

    assert roster.used("n") == HostResources(cpu_milli=100, memory_mib=10, pods=1)
    roster.remove("p")
    roster.remove("p")
    assert roster.used("n") == NO_HOST_RESOURCES


changes = st.tuples(st.sampled_from("abc"), st.sampled_from(["n", "m", None]), st.integers(0, 300))


@given(st.lists(changes))
def test_the_sums_equal_those_from_scratch(steps: list[tuple[str, str | None, int]]) -> None:
    roster, pods = BoundPodIndex(), dict[str, BoundPod]()
    for uid, node, cpu in steps:
        if node is None:
            roster.remove(uid)
            pods.pop(uid, None)
        else:
            pods[uid] = a_pod(uid, node=node, cpu=cpu)
            roster.put(pods[uid])
    for node in ("n", "m"):
        here = [it.host for it in pods.values() if it.node == node]
        assert roster.used(node) == HostResources(
            cpu_milli=sum(it.cpu_milli for it in here),
            memory_mib=sum(it.memory_mib for it in here),
            pods=len(here),
        )
    assert len(roster) == len(pods)
