"""What has no value is an error; what expressions mean is in the contract tests."""

import pytest

from simulator.scheduler.selectors import CelError, selects
from tests.support.device_claims import DRIVER, a_device, shortlist

AT = f'device.attributes["{DRIVER}"]'


@pytest.mark.parametrize(
    "expression",
    ["", f"{shortlist('GPU-A')} &&", f'{AT}.uuid.unheardOf("GPU")', f"{AT}.uuid", "1"],
)
def test_an_expression_that_has_no_value_is_an_error_and_named(expression: str) -> None:
    with pytest.raises(CelError) as refused:
        selects(expression, DRIVER, a_device("gpu-a"))

    assert repr(expression) in str(refused.value)


@pytest.mark.parametrize("order", ["{missing} && {false}", "{false} && {missing}"])
def test_what_is_false_makes_a_conjunction_false_whatever_fails_beside_it(order: str) -> None:
    missing, false = f'{AT}.missing == "x"', 'device.driver == "other"'

    assert not selects(order.format(missing=missing, false=false), DRIVER, a_device("gpu-a"))


def test_names_without_a_domain_are_in_that_of_their_driver() -> None:
    device = a_device("gpu-a")
    device["attributes"]["example.org/uuid"] = {"string": "other"}

    assert selects(f'{AT}.uuid == "GPU-A"', DRIVER, device)
    assert selects('device.attributes["example.org"].uuid == "other"', DRIVER, device)
    assert not selects(f'"uuid" in {AT}', "other.example.org", a_device("gpu-a"))
