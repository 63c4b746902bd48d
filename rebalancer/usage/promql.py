"""The PromQL queries of the rebalancer, one function for each.

They ask for the node agent's own series, which are the same for cards of every vendor.
``max by (UUID)`` makes one of several series of a card, as after a restart of its agent or where
two jobs scrape it, whatever relabelling was applied.

Range vectors ignore Prometheus' staleness markers, so a window still has values for a card that is
gone; hence the queries for age and coverage, without which no other answer is trusted.
"""

from typing import Final

from fracgpu import names
from fracgpu.disruption.load_history import SPAN_S
from fracgpu.disruption.policy import RebalancerPolicy

_BUSY: Final = names.METRIC_BUSY

# A scrape target. One store may have several clusters, whose jobs and addresses are often the same;
# the label is empty where there is none.
_TARGET: Final = "cluster, job, instance"

# How many scrapes an exporter may repeat before the rebalancer waits for a change.
_REPEATS: Final = 3

# Per cent of a card's time.
BUSY: Final = f"max by (UUID) ({_BUSY})"

# Age in seconds of the newest sample of each card.
AGE: Final = f"time() - max by (UUID) (timestamp({_BUSY}))"

# Age in seconds of each exporter's reading when it was scraped: it may serve an old one as new.
# Joined by scrape target, because the exporter has one timestamp for all of its cards. Of a target
# without an answer it is not known. Not as of now, since one of two jobs may scrape seldom.
COLLECT_AGE: Final = (
    f"max by (UUID, {_TARGET}) (timestamp({_BUSY}))"
    f" - on ({_TARGET}) group_left ()"
    f" max by ({_TARGET}) ({names.METRIC_COLLECTED})"
)

# Measured free MiB of each card.
FREE_MIB: Final = f"min by (UUID) ({names.METRIC_FREE})"


def _pod_mean(window_s: float) -> str:
    """Return the query for the mean per cent of its card that each pod used.

    The sum of those of its containers. A container has several series after a restart of the node
    agent, and where two scrape jobs find the same agent; without ``honor_labels`` its name is in
    ``exported_container``.
    """
    series = f"avg_over_time({names.METRIC_POD_BUSY}[{_seconds(window_s)}])"
    named = f'label_replace({series}, "container", "$1", "exported_container", "(.+)")'
    return f"sum by (UUID, pod_uid) (max by (UUID, pod_uid, container) ({named}))"


def _seconds(duration_s: float) -> str:
    return f"{round(duration_s * 1000)}ms"


# What each pod used, and how busy each card was, in the span of the load history that ends when the
# query is evaluated, per cent.
POD_SPAN: Final = _pod_mean(SPAN_S)
CARD_SPAN: Final = f"max by (UUID) (avg_over_time({_BUSY}[{_seconds(SPAN_S)}]))"

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
    return f"max by (UUID) (max_over_time({_BUSY}[{_seconds(policy.slow_window_s)}]))"


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
    window, step = _seconds(window_s), _seconds(window_s / 20)
    first = f"min_over_time(timestamp({_BUSY})[{window}:{step}])"
    more = f"(count_over_time({_BUSY}[{window}]) - 1 > 0)"
    return f"min by (UUID, cluster, job) ((timestamp({_BUSY}) - {first}) / {more})"


def busy_changes(policy: RebalancerPolicy) -> str:
    """Return the query for how often each card's busy share changed in the short window."""
    return f"max by (UUID) ({_changes(_BUSY, policy.fast_window_s)})"


def power_changes(policy: RebalancerPolicy) -> str:
    """Return the query for how often each card's power draw changed in the short window."""
    return f"max by (UUID) ({_changes(names.METRIC_POWER, policy.fast_window_s)})"


def lately_busy_changes(interval_s: float) -> str:
    """Return the query for how often each card's busy share changed in the last scrapes.

    By scrape target as well, since an exporter that stops reading stops for all of its cards.
    """
    return f"max by (UUID, {_TARGET}) ({_changes(_BUSY, _REPEATS * interval_s)})"


def lately_power_changes(interval_s: float) -> str:
    """Return the query for how often each card's power draw changed in the last scrapes."""
    return f"max by (UUID, {_TARGET}) ({_changes(names.METRIC_POWER, _REPEATS * interval_s)})"


def active(policy: RebalancerPolicy) -> str:
    """Return the query for how much of each card did work, per cent, mean over the short window.

    Of cards that still have the series.
    """
    mean = f"avg_over_time({names.METRIC_ACTIVE}[{_seconds(policy.fast_window_s)}])"
    return f"max by (UUID) ({mean}) and max by (UUID) ({names.METRIC_ACTIVE})"


def _count(window_s: float) -> str:
    return f"max by (UUID) (count_over_time({_BUSY}[{_seconds(window_s)}]))"


def _changes(name: str, window_s: float) -> str:
    return f"changes({name}[{_seconds(window_s)}])"


def pod_mean(policy: RebalancerPolicy) -> str:
    """Return the query for the mean per cent of its card that each pod used, long window."""
    return _pod_mean(policy.slow_window_s)


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
