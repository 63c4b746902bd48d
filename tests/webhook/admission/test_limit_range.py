import pytest

from fracgpu.errors import PodField, RequestError
from tests.webhook.builders import a_container, a_pod, denied, judged
from webhook.admission.limit_range import ANNOTATION, blame_limit_range

MEM = "fracgpu.io/gpu-mem"
BLAME = (
    "it is the default of a LimitRange of this namespace: state another amount, or have "
    f"{MEM} taken out of its max, default and defaultRequest"
)
SET = f"LimitRanger plugin set: cpu, {MEM} request for container train; {MEM} limit for container "


@pytest.mark.parametrize(
    ("text", "blamed"),
    [
        (f"{SET}train", True),
        (f"LimitRanger plugin set: {MEM} limit for init container train", True),
        (f"{SET}web", False),
        ("LimitRanger plugin set: cpu limit for container train", False),
        (f"LimitRanger plugin set: {MEM} request for container train", False),
        ("", False),
        ("nonsense", False),
    ],
)
def test_only_what_a_limit_range_set_is_its_fault(text: str, *, blamed: bool) -> None:
    field = PodField(MEM, container="train", amounts="limits")
    error = RequestError(field=field, found="2048", wanted="4096", hint="leave it out")

    found = blame_limit_range(error, {ANNOTATION: text})

    assert found.hint == (BLAME if blamed else "leave it out")


def test_an_error_about_something_else_stays() -> None:
    error = RequestError(field="fracgpu.io/fraction", found="2", wanted="less")

    assert blame_limit_range(error, {ANNOTATION: f"{SET}train"}) is error


def test_a_limit_range_default_that_collides_is_named_as_such() -> None:
    pod = a_pod(a_container(resources={"limits": {MEM: "2048"}}), fraction="0.5")
    pod["metadata"]["annotations"][ANNOTATION] = f"{SET}train"

    assert denied(judged(pod)).message == (
        f"limits['{MEM}'] of container 'train' is '2048'; want 40960, as its annotations say; "
        f"{BLAME}"
    )
