from fracgpu.request.dialects.resolve import find_owned_keys
from tests.fracgpu.request.dialects.pods import a_pod, a_spec


def names_of(*enabled: str, limits: dict[str, str]) -> list[str]:
    return [
        owned.dialect.name for owned in find_owned_keys(a_pod(limits), enabled=frozenset(enabled))
    ]


def test_a_shared_key_is_its_first_owners_that_is_on() -> None:
    limits = {"nvidia.com/gpu": "1"}

    assert names_of("hami", "nvidia", limits=limits) == ["hami"]
    assert names_of("nvidia", limits=limits) == ["nvidia"]


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
