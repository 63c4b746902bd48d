"""Faults of what the rebalancer needs, planted one by one."""

import pytest

from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.doctor.facts import PrometheusFact
from fracgpu.doctor.finding import Severity
from fracgpu.doctor.measurements import NOT_COMPILED, SERIES, Series
from rebalancer.usage import promql
from tests.support.examined import found_by, healthy, result_of

ALL = {series.spellings[0]: 4 for series in SERIES}


def test_a_prometheus_that_does_not_answer_is_found() -> None:
    answer = PrometheusFact(url="http://prom:9090", error="connection refused")

    finding = found_by("prometheus", healthy(prometheus=answer))

    assert "Prometheus at http://prom:9090 does not answer: connection refused" in finding.seen
    assert "FRACGPU_REBALANCER_PROMETHEUS_URL" in finding.cure


@pytest.mark.parametrize("series", SERIES, ids=lambda series: series.spellings[0])
def test_each_series_that_is_absent_is_named(series: Series) -> None:
    left = {name: count for name, count in ALL.items() if name != series.spellings[0]}

    finding = found_by("prometheus", healthy(prometheus=PrometheusFact(url="u", series=left)))

    assert f"has no series {' or '.join(series.spellings)}" in finding.seen
    assert "honor_labels" in finding.cure


def test_another_spelling_of_a_series_will_do() -> None:
    ratios = {series.spellings[-1]: 1 for series in SERIES}

    assert not result_of(
        "prometheus", healthy(prometheus=PrometheusFact(url="u", series=ratios))
    ).findings


def test_an_extender_that_places_by_pack_for_want_of_its_library_is_found() -> None:
    answer = PrometheusFact(url="u", series={**ALL, NOT_COMPILED: 2})

    finding = found_by("prometheus", healthy(prometheus=answer))

    assert finding.severity is Severity.WARNING
    assert "2 scheduler extenders without the compiled code of least-waste" in finding.seen
    assert "pack" in finding.seen


def test_the_series_without_which_nothing_is_moved_are_those_that_the_rebalancer_asks_for() -> None:
    asked = " ".join(
        (promql.BUSY, promql.FREE_MIB, promql.COLLECT_AGE, promql.pod_mean(RebalancerPolicy()))
    )

    for series in SERIES:
        if series.severity is Severity.ERROR or "pod" in series.spellings[0]:
            assert all(spelling in asked for spelling in series.spellings)


def test_a_mistake_in_the_configuration_is_found() -> None:
    mistakes = {"rebalancer": "hotRatio is 9; want a number from 0.5 to 1"}

    finding = found_by("configuration", healthy(config_mistakes=mistakes))

    assert "ConfigMap fracgpu-system/fracgpu-config, key rebalancer: hotRatio is 9" in finding.seen
    assert finding.cure == "kubectl -n fracgpu-system edit configmap fracgpu-config"


def test_a_missing_configuration_is_found() -> None:
    assert "every role uses its defaults" in (
        found_by("configuration", healthy(config_mistakes=None)).seen
    )
