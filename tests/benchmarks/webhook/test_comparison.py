import pytest

from benchmarks.webhook.comparison import Block, figures_of


def a_block(times: float, *, echo_ms: float = 1.0, slowest_ms: float = 0.0) -> Block:
    """Return a block in which our answers take *times* as long as the echo's, but for one."""
    ours = [echo_ms * times] * 99
    return Block(ours_ms=[*ours, slowest_ms or ours[0]], theirs_ms=[echo_ms] * 100, cpu_ratio=times)


def test_blocks_that_other_load_slowed_down_do_not_decide() -> None:
    rounds = [
        [a_block(1.5), a_block(9.0, echo_ms=0.5)],
        [a_block(1.5, echo_ms=40.0), a_block(1.5)],
        [a_block(0.2), a_block(1.5, echo_ms=2.0)],
    ]

    found = {figure.name: figure.value for figure in figures_of("row", rounds, note="")}

    assert found["webhook.row_to_echo_p50"] == pytest.approx(1.5)
    assert found["webhook.row_to_echo_cpu"] == pytest.approx(1.5)


def test_the_tail_is_that_of_a_whole_round() -> None:
    rounds = [[a_block(1.0, slowest_ms=50.0), a_block(1.0)] for _ in range(3)]

    found = {figure.name: figure.value for figure in figures_of("row", rounds, note="")}

    # One in 200 calls is beyond the 99th percentile, though it was one in 100 of its block.
    assert found["webhook.row_p99"] == pytest.approx(1.0)
