import pytest

from fracgpu.cards.card_class import model_allowed
from fracgpu.errors import RequestError
from fracgpu.request.dialects.preferences import model_globs, strategy
from fracgpu.request.need import Strategy


def test_parts_of_model_names_choose_the_same_models_here() -> None:
    globs = model_globs({"use": "Tesla T4, h100", "avoid": "PCIe"}, use="use", avoid="avoid")

    assert globs == ("*Tesla-T4*", "*h100*", "!*PCIe*")
    assert model_allowed("NVIDIA H100 80GB HBM3", globs=globs)
    assert model_allowed("Tesla T4", globs=globs)
    assert not model_allowed("NVIDIA H100 PCIe", globs=globs)
    assert not model_allowed("NVIDIA A100", globs=globs)


@pytest.mark.parametrize("text", ["", ",", "A100,", "A*", "A[1]", "A?", "!A100", "A" * 64, "a=b"])
def test_what_no_model_is_called_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="want parts of card models"):
        model_globs({"use": text}, use="use", avoid="avoid")


def test_the_policy_of_cards_goes_before_that_of_nodes() -> None:
    answer, warnings = strategy({"c": "binpack", "n": "spread"}, card="c", node="n", others=())

    assert answer is Strategy.PACK
    assert warnings == (
        "annotation n is 'spread' and annotation c is 'binpack'; FracGPU has one policy for both "
        "and takes the card's",
    )


def test_no_policy_is_none() -> None:
    assert strategy({}, card="c", node="n", others=()) == (None, ())
