"""The chart in the repository is what ``make chart`` writes from deploy/."""

import shutil

import pytest

from tools.helm_chart.__main__ import differing
from tools.helm_chart.files import CHART, files
from tools.helm_chart.rules import RULES, rules_yaml


def test_the_chart_is_what_make_chart_writes() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed; it builds the kustomizations")

    assert differing(files(), CHART) == [], "deploy/ or tools/helm_chart changed: run `make chart`"


def test_the_rules_of_the_operator_are_those_of_prometheus() -> None:
    assert RULES.read_text() == rules_yaml(), "the alerts changed: run `make chart`"
