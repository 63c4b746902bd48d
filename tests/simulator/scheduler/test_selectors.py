"""Which expressions on devices are evaluated; what they mean is in the contract tests."""

import pytest

from simulator.scheduler.selectors import CelError, selects
from tests.support.device_claims import DRIVER, a_device, shortlist

AT = f'device.attributes["{DRIVER}"]'


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "true",
        f'{AT}.uuid == "GPU-A" || {AT}.uuid == "GPU-B"',
        f'({AT}.uuid == "GPU-A")',
        f'{shortlist("GPU-A")} && {AT}.uuid.startsWith("GPU")',
        f"{shortlist('GPU-A')} &&",
        f'device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("1Gi"))',
    ],
)
def test_an_expression_of_another_form_is_refused_and_named(expression: str) -> None:
    with pytest.raises(CelError, match="this simulator does not evaluate") as refused:
        selects(expression, DRIVER, a_device("gpu-a"))

    assert repr(expression) in str(refused.value)


def test_names_without_a_domain_are_in_that_of_their_driver() -> None:
    device = a_device("gpu-a")
    device["attributes"]["example.org/uuid"] = {"string": "other"}

    assert selects(f'{AT}.uuid == "GPU-A"', DRIVER, device)
    assert selects('device.attributes["example.org"].uuid == "other"', DRIVER, device)
    assert not selects(f'"uuid" in {AT}', "other.example.org", a_device("gpu-a"))
