from fracgpu.k8s.container import ContainerSpec
from fracgpu.request.dialects.resolve import find_owned_keys, keys_of
from tests.fracgpu.request.dialects.pods import a_pod, a_spec

HAMI_POD = a_pod({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "10"})


def names_of(*enabled: str, limits: dict[str, str]) -> list[str]:
    return [
        owned.dialect.name for owned in find_owned_keys(a_pod(limits), enabled=frozenset(enabled))
    ]


def test_a_pod_without_foreign_keys_has_no_owner() -> None:
    pod = a_pod({"cpu": "1", "fracgpu.io/gpu-mem": "10"}, annotations={"team": "x"})

    assert find_owned_keys(pod, enabled=frozenset({"hami"})) == ()


def test_a_shared_key_is_its_first_owners_that_is_on() -> None:
    limits = {"nvidia.com/gpu": "1"}

    assert names_of("hami", "nvidia", limits=limits) == ["hami"]
    assert names_of("nvidia", limits=limits) == ["nvidia"]


def test_a_shared_key_with_both_owners_off_is_the_ones_that_is_spoken_there() -> None:
    assert names_of(limits={"nvidia.com/gpu": "1"}) == ["nvidia"]
    assert names_of(limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem": "10"}) == ["hami"]


def test_a_dialect_sees_its_own_keys_and_no_others() -> None:
    pod = a_pod(
        {"nvidia.com/gpumem": "10", "cpu": "1"},
        ContainerSpec(name="side"),
        annotations={"nvidia.com/use-gputype": "A100", "team": "x"},
    )

    (owned,) = find_owned_keys(pod, enabled=frozenset())
    pieces = owned.pieces(pod)

    assert pieces.containers == (
        ContainerSpec(name="train", limits={"nvidia.com/gpumem": "10"}),
        ContainerSpec(name="side"),
    )
    assert pieces.annotations == {"nvidia.com/use-gputype": "A100"}
    assert keys_of(pieces) == ("nvidia.com/gpumem", "nvidia.com/use-gputype")


def test_stray_keys_are_mended_into_their_place() -> None:
    pod = a_pod(
        {},
        a_spec({"nvidia.com/gpu": "1"}, name="eval"),
        annotations={"nvidia.com/gpumem": "10"},
    )

    (owned,) = (
        owned for owned in find_owned_keys(pod, enabled=frozenset()) if owned.dialect.name == "hami"
    )

    assert owned.stray_annotations == {"nvidia.com/gpumem": "10"}
    assert owned.mended(pod).containers[1].limits == {
        "nvidia.com/gpu": "1",
        "nvidia.com/gpumem": "10",
    }
