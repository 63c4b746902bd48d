"""The history of loads: each span is asked for once, and outlives the pod that it is of."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from fracgpu.disruption.load_history import SPAN_S
from fracgpu.disruption.policy import RebalancerPolicy
from rebalancer.usage import promql
from rebalancer.usage.measured import LoadRecorder
from rebalancer.usage.prometheus import QueryError, QueryFailed, Sample
from tests.support.rebalancing import a_past_move

POLICY = RebalancerPolicy(memory_window_s=6 * SPAN_S)
NOW_S = 1000 * SPAN_S + 5


@dataclass
class FakeSpans:
    """Answers for two pods: what they used is the number of the span."""

    asked: list[float] = field(default_factory=list)
    broken: bool = False
    pods: tuple[str, ...] = ("a", "b")

    async def query(self, query: str, *, at_s: float | None = None) -> tuple[Sample, ...]:
        assert at_s is not None
        if self.broken:
            raise QueryFailed(QueryError.UNREACHABLE, "no answer")
        if query == promql.CARD_SPAN:
            return (Sample(labels={"UUID": "GPU-1"}, value=99.0),)
        assert query == promql.POD_SPAN
        self.asked.append(at_s)
        used = at_s / SPAN_S - 950
        return tuple(
            Sample(labels={"UUID": f"GPU-{n}", "pod_uid": uid}, value=used)
            for n, uid in enumerate(self.pods)
        )


async def test_it_reads_what_was_before_it_started_the_newest_first_and_each_span_once() -> None:
    spans = FakeSpans()
    recorder = LoadRecorder(spans)

    await recorder.observe(POLICY, at_s=NOW_S)
    assert spans.asked == [n * SPAN_S for n in (1000, 999, 998, 997)]
    await recorder.observe(POLICY, at_s=NOW_S + 15)
    await recorder.observe(POLICY, at_s=NOW_S + 30)
    assert spans.asked[4:] == [n * SPAN_S for n in (996, 995)]
    await recorder.observe(POLICY, at_s=NOW_S + SPAN_S)
    assert spans.asked[6:] == [1001 * SPAN_S]

    history = recorder.history(())
    assert history.busy[history.rows["a"]] == pytest.approx([0.46, 0.47, 0.48, 0.49, 0.5, 0.51])
    assert history.full[history.rows["b"]].all()
    assert not history.full[history.rows["a"]].any()


async def test_one_look_reads_all() -> None:
    recorder = LoadRecorder(FakeSpans())

    await recorder.read_all(POLICY, at_s=NOW_S)

    assert recorder.history(()).busy.shape == (2, 6)


async def test_a_span_that_could_not_be_read_is_asked_for_again() -> None:
    spans = FakeSpans(broken=True)
    recorder = LoadRecorder(spans)
    await recorder.observe(POLICY, at_s=NOW_S)
    assert recorder.history(()).busy.size == 0

    spans.broken = False
    await recorder.observe(POLICY, at_s=NOW_S)

    assert recorder.history(()).busy.shape == (2, 4)


async def test_a_replacement_has_the_history_of_the_pod_that_it_replaced() -> None:
    spans = FakeSpans()
    recorder = LoadRecorder(spans)
    await recorder.observe(POLICY, at_s=NOW_S - SPAN_S)
    spans.pods = ("c", "b")
    await recorder.observe(POLICY, at_s=NOW_S)
    moved = a_past_move(pod_uid="a", replacement_uid="c")

    history = recorder.history((moved,))

    assert history.busy[history.rows["c"]][-2:] == pytest.approx([0.49, 0.5])
    assert np.isnan(recorder.history(()).busy[history.rows["c"]][-2])


async def test_without_prometheus_nothing_is_remembered() -> None:
    recorder = LoadRecorder()

    await recorder.observe(POLICY, at_s=NOW_S)

    assert recorder.history(()).rows == {}
