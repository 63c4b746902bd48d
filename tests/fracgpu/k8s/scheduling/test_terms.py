"""The terms of affinity between pods, and of topology spread."""

import json

import pytest

from fracgpu.k8s.scheduling.terms import PodQuery, read_pod_terms, read_spread
from fracgpu.k8s.selectors import LabelSelector
from tests.support.scheduling import PREFERRED, REQUIRED, Json, pod_term, selector, spread

NAMESPACES = {"mine": {"team": "a"}, "near": {"team": "a"}, "far": {"team": "b"}}


def reached(term: Json) -> frozenset[str] | None:
    affinity = json.dumps({"podAffinity": {REQUIRED: [term]}}).encode()
    (found,), _ = read_pod_terms(affinity, "mine")
    return found.query(NAMESPACES).namespaces


@pytest.mark.parametrize(
    ("more", "namespaces"),
    [
        ({}, {"mine"}),
        ({"namespaces": ["far"]}, {"far"}),
        ({"namespaceSelector": selector(team="a")}, {"mine", "near"}),
        ({"namespaces": ["far"], "namespaceSelector": selector(team="a")}, {"mine", "near", "far"}),
    ],
)
def test_a_term_counts_the_pods_of_these_namespaces(more: Json, namespaces: set[str]) -> None:
    assert reached(pod_term(**more)) == frozenset(namespaces)


def test_an_empty_namespace_selector_reaches_every_namespace() -> None:
    assert reached(pod_term(namespaceSelector={})) is None


def test_a_term_without_a_selector_counts_no_pod() -> None:
    assert not PodQuery(namespaces=None, selector=None).matches("mine", {})
    assert PodQuery(namespaces=None, selector=LabelSelector()).matches("mine", {})


def test_preferences_between_pods_are_no_terms() -> None:
    wish = {PREFERRED: [{"weight": 1, "podAffinityTerm": pod_term()}]}
    affinity = json.dumps({"podAffinity": wish, "podAntiAffinity": wish}).encode()

    assert read_pod_terms(affinity, "mine") == ((), ())


def test_a_spread_that_may_be_missed_is_no_constraint() -> None:
    either = [spread(), spread(whenUnsatisfiable="ScheduleAnyway")]

    (found,) = read_spread(json.dumps(either).encode())

    assert (found.min_domains, found.honors_affinity, found.honors_taints) == (1, True, False)


def test_the_values_of_the_pod_itself_are_selected_as_well() -> None:
    (found,) = read_spread(json.dumps([spread(matchLabelKeys=["version", "absent"])]).encode())
    mine = found.selector_for({"app": "web", "version": "2"})

    assert mine is not None
    assert mine.matches({"app": "web", "version": "2"})
    assert not mine.matches({"app": "web", "version": "1"})
