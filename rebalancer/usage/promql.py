"""PromQL text: one function for each question the rebalancer asks, and nothing else.

Both dialects of DCGM names are understood: the classic one in per cent and MiB, and that of
dcgm-exporter 4.9 in ratios and bytes. ``max by (UUID)`` picks the line of the card as a whole,
whether or not lines of single pods share its name and whatever scraping did to the labels.

Range vectors ignore Prometheus' staleness markers, so a window keeps answering for a card that is
gone; hence the questions about age and coverage, without which no other answer is believed.
"""

from typing import Final

from fracgpu.disruption.policy import RebalancerPolicy

_PERCENT: Final = "DCGM_FI_DEV_GPU_UTIL"
_RATIO: Final = "DCGM_FI_DEV_GPU_UTIL_RATIO"

# Per cent of a card's time, whichever dialect the exporter speaks.
BUSY: Final = f"max by (UUID) ({_PERCENT} or 100 * {_RATIO})"

# Age in seconds of the newest sample of each card.
AGE: Final = f"time() - max by (UUID) (timestamp({_PERCENT}) or timestamp({_RATIO}))"

# Age in seconds of what each card's exporter last read: it may serve an old reading as a new one.
# Joined by scrape target, because the exporter tells it once for all of its cards. Exporters that
# do not tell it have no entry here.
COLLECT_AGE: Final = (
    f"time() - min by (UUID) ((0 * (timestamp({_PERCENT}) or timestamp({_RATIO})))"
    " + on (job, instance) group_left ()"
    " max by (job, instance) (fracgpu_collect_timestamp_seconds))"
)

# Free MiB of each card as measured.
FREE_MIB: Final = "min by (UUID) (DCGM_FI_DEV_FB_FREE or DCGM_FI_DEV_FB_FREE_BYTES / 1048576)"

# The server's own clock: every other question of a cycle is asked as of this time.
SERVER_TIME: Final = "time()"

_POD_BUSY: Final = "fracgpu_pod_sm_util"


def samples(policy: RebalancerPolicy) -> str:
    """How many samples each card has in the short window."""
    window = _seconds(policy.fast_window_s)
    return (
        f"max by (UUID) (count_over_time({_PERCENT}[{window}])"
        f" or count_over_time({_RATIO}[{window}]))"
    )


def peak(policy: RebalancerPolicy) -> str:
    """The largest single sample of each card in the long window, per cent.

    A window's mean may look sane with a sample in it that cannot be true, and the windows of the
    other questions see only the samples nearest to their steps.
    """
    window = _seconds(policy.slow_window_s)
    return (
        f"max by (UUID) (max_over_time({_PERCENT}[{window}])"
        f" or 100 * max_over_time({_RATIO}[{window}]))"
    )


def level(policy: RebalancerPolicy) -> str:
    """Mean per cent of each card over the short window."""
    return f"avg_over_time(({BUSY})[{_range(policy.fast_window_s, policy)}])"


def slow_level(policy: RebalancerPolicy) -> str:
    """Mean per cent of each card over the long window."""
    return f"avg_over_time(({BUSY})[{_range(policy.slow_window_s, policy)}])"


def fast_hot(policy: RebalancerPolicy) -> str:
    """Share of the short window's samples of each card above the hot line, 0..1."""
    return _above(policy.hot_ratio, _range(policy.fast_window_s, policy))


def slow_hot(policy: RebalancerPolicy) -> str:
    """Share of the long window's samples of each card above the hot line, 0..1."""
    return _above(policy.hot_ratio, _range(policy.slow_window_s, policy))


def forecast_mean(policy: RebalancerPolicy) -> str:
    """Mean per cent of each card over the forecast window."""
    return f"avg_over_time(({BUSY})[{_range(policy.forecast_window_s, policy)}])"


def forecast_quantile(policy: RebalancerPolicy) -> str:
    """Upper quartile of the per cent of each card over the long window."""
    return f"quantile_over_time(0.75, ({BUSY})[{_range(policy.slow_window_s, policy)}])"


def pod_mean(policy: RebalancerPolicy) -> str:
    """Mean per cent of its card that each pod used over the long window."""
    window = _seconds(policy.slow_window_s)
    return f"sum by (UUID, pod_uid) (avg_over_time({_POD_BUSY}[{window}]))"


def pod_high(policy: RebalancerPolicy) -> str:
    """90th percentile of what each pod used of its card over the forecast window.

    Summed over its containers, which bounds the pod's own percentile from above well enough.
    """
    window = _seconds(policy.forecast_window_s)
    return f"sum by (UUID, pod_uid) (quantile_over_time(0.9, {_POD_BUSY}[{window}]))"


def _above(line_ratio: float, window: str) -> str:
    return f"avg_over_time((({BUSY}) > bool {100 * line_ratio:g})[{window}])"


def _range(window_s: float, policy: RebalancerPolicy) -> str:
    return f"{_seconds(window_s)}:{_seconds(policy.step_s)}"


def _seconds(duration_s: float) -> str:
    return f"{round(duration_s * 1000)}ms"
