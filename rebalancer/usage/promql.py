"""The PromQL queries of the rebalancer, one function for each.

Both conventions of DCGM metrics are supported: the classic one in per cent and MiB, and that of
dcgm-exporter 4.9 in ratios and bytes. ``max by (UUID)`` selects the series of the whole card,
whether or not series of single pods share its name, and whatever relabelling was applied.

Range vectors ignore Prometheus' staleness markers, so a window still has values for a card that is
gone; hence the queries for age and coverage, without which no other answer is trusted.
"""

from typing import Final

from fracgpu import names
from fracgpu.disruption.load_history import SPAN_S
from fracgpu.disruption.policy import RebalancerPolicy

# Names of the same metric, the classic one first and then that of dcgm-exporter 4.9.
_UTIL: Final = names.METRIC_BUSY
_PERCENT, _RATIO = _UTIL
_FREE_MIB, _FREE_BYTES = names.METRIC_FREE
_POWER: Final = names.METRIC_POWER
_SM_ACTIVE: Final = names.METRIC_SM_ACTIVE
_ENGINE_ACTIVE: Final = names.METRIC_ENGINE_ACTIVE
_REMAP_FAILED: Final = names.METRIC_REMAP_FAILED

# How many scrapes an exporter may repeat before the rebalancer waits for a change.
_REPEATS: Final = 3

# Per cent of a card's time, for both conventions.
BUSY: Final = f"max by (UUID) ({_PERCENT} or 100 * {_RATIO})"

# Age in seconds of the newest sample of each card.
AGE: Final = f"time() - max by (UUID) (timestamp({_PERCENT}) or timestamp({_RATIO}))"

# Age in seconds of each exporter's last reading: an exporter may serve an old reading as new.
# Joined by scrape target, because the exporter has one timestamp for all of its cards. Exporters
# without this metric have no entry here.
COLLECT_AGE: Final = (
    f"time() - min by (UUID) ((0 * (timestamp({_PERCENT}) or timestamp({_RATIO})))"
    " + on (job, instance) group_left ()"
    f" max by (job, instance) ({names.METRIC_COLLECTED}))"
)

# Measured free MiB of each card.
FREE_MIB: Final = f"min by (UUID) ({_FREE_MIB} or {_FREE_BYTES} / 1048576)"

# 1 for each card that failed to remap a memory row: it needs to be replaced.
REMAP_FAILED: Final = f"max by (UUID) ({_REMAP_FAILED[0]} or {_REMAP_FAILED[1]})"

# What each pod used, and how busy each card was, in the span of the load history that ends when the
# query is evaluated, per cent. A pod's series of two scrapers, or of two agents, is one.
_SPAN: Final = f"{round(SPAN_S)}s"
POD_SPAN: Final = (
    "sum by (UUID, pod_uid) (max by (UUID, pod_uid, container)"
    f" (avg_over_time({names.METRIC_POD_BUSY}[{_SPAN}])))"
)
CARD_SPAN: Final = (
    f"max by (UUID) (avg_over_time({_PERCENT}[{_SPAN}]) or 100 * avg_over_time({_RATIO}[{_SPAN}]))"
)

# The server's clock: all other queries of a cycle are evaluated at this time.
SERVER_TIME: Final = "time()"


def samples(policy: RebalancerPolicy) -> str:
    """Return the query for the number of samples of each card in the short window."""
    return _count(policy.fast_window_s)


def peak(policy: RebalancerPolicy) -> str:
    """Return the query for the largest sample of each card in the long window, per cent.

    A window's mean may look sane despite an impossible sample, and the subqueries of the other
    queries read only the samples nearest to their steps.
    """
    window = _seconds(policy.slow_window_s)
    return (
        f"max by (UUID) (max_over_time({_PERCENT}[{window}])"
        f" or 100 * max_over_time({_RATIO}[{window}]))"
    )


def level(policy: RebalancerPolicy) -> str:
    """Return the query for the mean per cent of each card over the short window."""
    return f"avg_over_time(({BUSY})[{_range(policy.fast_window_s, policy)}])"


def slow_level(policy: RebalancerPolicy) -> str:
    """Return the query for the mean per cent of each card over the long window."""
    return f"avg_over_time(({BUSY})[{_range(policy.slow_window_s, policy)}])"


def fast_hot(policy: RebalancerPolicy) -> str:
    """Return the query for the share, 0..1, of short-window samples above the hot line."""
    return _above(policy.hot_ratio, _range(policy.fast_window_s, policy))


def slow_hot(policy: RebalancerPolicy) -> str:
    """Return the query for the share, 0..1, of long-window samples above the hot line."""
    return _above(policy.hot_ratio, _range(policy.slow_window_s, policy))


def history(policy: RebalancerPolicy) -> str:
    """Return the query for the number of samples of each card in the forecast window."""
    return _count(policy.forecast_window_s)


def interval(window_s: float) -> str:
    """Return the query for the mean time between two samples of each card, for each scrape job.

    Each job has its interval, which nothing but the samples' times tells. The first of the window
    is looked for in steps of a twentieth of it, so the result is that exact.
    """
    times = f"timestamp({_PERCENT}) or timestamp({_RATIO})"
    window, step = _seconds(window_s), _seconds(window_s / 20)
    samples = f"count_over_time({_PERCENT}[{window}]) or count_over_time({_RATIO}[{window}])"
    first = f"min_over_time(({times})[{window}:{step}])"
    return f"min by (UUID, job) ((({times}) - {first}) / (({samples}) - 1 > 0))"


def busy_changes(policy: RebalancerPolicy) -> str:
    """Return the query for how often each card's busy share changed in the short window."""
    return f"max by (UUID) ({_changes(_UTIL, policy.fast_window_s)})"


def power_changes(policy: RebalancerPolicy) -> str:
    """Return the query for how often each card's power draw changed in the short window."""
    return f"max by (UUID) ({_changes(_POWER, policy.fast_window_s)})"


def lately_busy_changes(interval_s: float) -> str:
    """Return the query for how often each card's busy share changed in the last scrapes.

    By scrape target as well, since an exporter that stops reading stops for all of its cards.
    """
    return f"max by (UUID, job, instance) ({_changes(_UTIL, _REPEATS * interval_s)})"


def lately_power_changes(interval_s: float) -> str:
    """Return the query for how often each card's power draw changed in the last scrapes."""
    return f"max by (UUID, job, instance) ({_changes(_POWER, _REPEATS * interval_s)})"


def sm_active(policy: RebalancerPolicy) -> str:
    """Return the query for the share of SM cycles with work, 0..1, mean over the short window."""
    return _still_reported(_SM_ACTIVE, policy)


def engine_active(policy: RebalancerPolicy) -> str:
    """Return the query for the share of time with an engine busy, mean over the short window."""
    return _still_reported(_ENGINE_ACTIVE, policy)


def _count(window_s: float) -> str:
    window = _seconds(window_s)
    return (
        f"max by (UUID) (count_over_time({_PERCENT}[{window}])"
        f" or count_over_time({_RATIO}[{window}]))"
    )


def _changes(names: tuple[str, str], window_s: float) -> str:
    window = _seconds(window_s)
    return f"changes({names[0]}[{window}]) or changes({names[1]}[{window}])"


def _still_reported(names: tuple[str, str], policy: RebalancerPolicy) -> str:
    """Return the query for a mean of the short window, of cards that still have the series."""
    window = _seconds(policy.fast_window_s)
    mean = " or ".join(f"avg_over_time({name}[{window}])" for name in names)
    return f"max by (UUID) ({mean}) and max by (UUID) ({names[0]} or {names[1]})"


def pod_mean(policy: RebalancerPolicy) -> str:
    """Return the query for the mean per cent of its card that each pod used, long window.

    The sum of those of its containers. A container has several series after a restart of the node
    agent, and where two scrape jobs find the same agent; without ``honor_labels`` its name is in
    ``exported_container``.
    """
    series = f"avg_over_time({names.METRIC_POD_BUSY}[{_seconds(policy.slow_window_s)}])"
    named = f'label_replace({series}, "container", "$1", "exported_container", "(.+)")'
    return f"sum by (UUID, pod_uid) (max by (UUID, pod_uid, container) ({named}))"


POD_OVERUSE: Final = f"max by (UUID, pod_uid) ({names.METRIC_POD_OVERUSE})"
"""The MiB that pods have used beyond their share of a card for some minutes."""


def pod_samples(policy: RebalancerPolicy) -> str:
    """Return the query for the number of samples of each pod in the long window."""
    window = _seconds(policy.slow_window_s)
    return f"max by (UUID, pod_uid) (count_over_time({names.METRIC_POD_BUSY}[{window}]))"


def _above(line_ratio: float, window: str) -> str:
    return f"avg_over_time((({BUSY}) > bool {100 * line_ratio:g})[{window}])"


def _range(window_s: float, policy: RebalancerPolicy) -> str:
    return f"{_seconds(window_s)}:{_seconds(policy.step_s)}"


def _seconds(duration_s: float) -> str:
    return f"{round(duration_s * 1000)}ms"
