"""The CPU time of a review beside an echo's."""

from benchmarks.webhook.benchmark import beside_echo


async def test_a_review_takes_more_than_an_echo_and_no_multiple_of_ten() -> None:
    figure = await beside_echo(1)

    assert figure.unit == "ratio"
    assert 1 < figure.value < 10
