import pytest

from fracgpu.errors import PodField, RequestError
from fracgpu.request.dialects.authors import Authors, in_authors_words

AUTHORS = Authors(
    containers={
        "web": (("nvidia.com/gpu", "1"),),
        "train": (("nvidia.com/gpu", "1"), ("nvidia.com/gpumem", "90000")),
    },
    models=(("nvidia.com/use-gputype", "V100"),),
)


def an_error(field: str, *, hint: str = "") -> RequestError:
    return RequestError(field=field, found="x", wanted="less", hint=hint)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (
            PodField("fracgpu.io/memory", container="train"),
            "nvidia.com/gpu, nvidia.com/gpumem of container 'train' is '1, 90000'; want less; "
            "FracGPU reads it as fracgpu.io/memory of container 'train' 'x'; 'y' would fit",
        ),
        (
            "fracgpu.io/model",
            "nvidia.com/use-gputype is 'V100'; want less; FracGPU reads it as fracgpu.io/model "
            "'x'; 'y' would fit",
        ),
        (
            "fracgpu.io/fraction",
            "nvidia.com/gpu of container 'web' is '1'; want less; FracGPU reads it as "
            "fracgpu.io/fraction 'x'; 'y' would fit",
        ),
    ],
)
def test_an_error_about_our_key_names_what_its_author_wrote(field: str, message: str) -> None:
    error = in_authors_words(an_error(field, hint="'y' would fit"), AUTHORS, own={})

    assert str(error) == message


def test_a_key_of_ours_that_its_author_wrote_stays() -> None:
    error = an_error("fracgpu.io/model")

    assert in_authors_words(error, AUTHORS, own={"fracgpu.io/model": "x"}) is error


def test_a_pod_in_our_own_language_is_its_authors_already() -> None:
    error = an_error("fracgpu.io/memory of container 'train'")

    assert in_authors_words(error, Authors(), own={}) is error


def test_a_value_that_we_made_of_the_authors_is_cut_like_any_other() -> None:
    error = RequestError(field="fracgpu.io/memory", found="9" * 500, wanted="less")

    assert "9" * 73 not in str(in_authors_words(error, AUTHORS, own={}))
