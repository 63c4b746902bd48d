"""deploy/alerts/: every rule uses a metric that exists, and fires when it should."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from certs.metrics import CertsMetrics
from rebalancer.metrics import RebalancerMetrics
from scheduler.metrics import SchedulerMetrics
from tests.fakes.clock import NOON, VirtualClock
from webhook.metrics import WebhookMetrics

RULES = Path(__file__).parents[2] / "deploy" / "alerts" / "fracgpu.rules.yaml"
FIGURE = re.compile(r"\bfracgpu_\w+")


def rules() -> list[dict[str, Any]]:
    return [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]


def test_every_rule_asks_for_a_figure_that_there_is_and_says_what_it_means() -> None:
    registry = CollectorRegistry()
    SchedulerMetrics(registry)
    WebhookMetrics(registry)
    RebalancerMetrics(registry)
    certs = CertsMetrics(registry, VirtualClock())
    certs.expires("fracgpu-ca", at=NOON)
    there = {sample.name for family in registry.collect() for sample in family.samples}

    assert len(rules()) >= 6
    for rule in rules():
        asked = set(FIGURE.findall(rule["expr"]))
        assert asked, rule["alert"]
        assert asked <= there, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"].keys() == {"summary", "description"}


def test_there_is_an_alert_for_any_card_promised_beyond_its_memory() -> None:
    (rule,) = [rule for rule in rules() if rule["alert"] == "FracGPUCardOverbooked"]

    assert rule["expr"] == "fracgpu_scheduler_overbooked_cards > 0"
    assert "for" not in rule


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no program 'promtool' in PATH; it comes with Prometheus")
    command = [found, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - promtool


def test_promtool_reads_the_rules() -> None:
    done = promtool("check", "rules", str(RULES))

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules())} rules found" in done.stdout


DAY_S = 86_400
CERTS_LEFT = 'fracgpu_certs_expiry_seconds{certificate="fracgpu-ca",instance="%s"}'
WEBHOOK_LEFT = 'fracgpu_webhook_certificate_expiry_seconds{instance="w"}'
BLIND = 'fracgpu_rebalancer_blind{instance="%s",reason="%s"}'
LOST = 'fracgpu_rebalancer_lost_pods_total{instance="r"}'
LEADER = 'fracgpu_rebalancer_leader{instance="%s"}'
VALID = 'fracgpu_rebalancer_config_valid{instance="%s"}'
BREAKER = 'fracgpu_rebalancer_breaker_open{instance="r",name="%s"}'
HOT = 'fracgpu_rebalancer_hot_cards{instance="r",relievable="%s"}'
AWAITED = 'fracgpu_certs_awaited_restarts{instance="c"}'


@pytest.mark.parametrize(
    ("alert", "series", "minutes", "labels"),
    [
        ("FracGPUCertificateExpires", {CERTS_LEFT % "a": 8 * DAY_S}, 600, None),
        (
            "FracGPUCertificateExpires",
            {CERTS_LEFT % "a": 6 * DAY_S},
            11,
            {"certificate": "fracgpu-ca", "severity": "critical"},
        ),
        ("FracGPUCertificateExpires", {CERTS_LEFT % "a": 6 * DAY_S}, 9, None),
        # A replica that led before the renewal, and one that leads.
        (
            "FracGPUCertificateExpires",
            {CERTS_LEFT % "a": -5, CERTS_LEFT % "b": 20 * DAY_S},
            600,
            None,
        ),
        ("FracGPUWebhookCertificateExpires", {WEBHOOK_LEFT: 8 * DAY_S}, 600, None),
        ("FracGPUWebhookCertificateExpires", {WEBHOOK_LEFT: "NaN"}, 600, None),
        (
            "FracGPUWebhookCertificateExpires",
            {WEBHOOK_LEFT: -1},
            11,
            {"instance": "w", "severity": "critical"},
        ),
        ("FracGPURebalancerBlind", {BLIND % ("r", "slow"): 0}, 600, None),
        ("FracGPURebalancerBlind", {BLIND % ("r", "slow"): 1}, 14, None),
        (
            "FracGPURebalancerBlind",
            {BLIND % ("standby", "slow"): 0, BLIND % ("r", "slow"): 1, BLIND % ("r", "tls"): 0},
            16,
            {"reason": "slow", "severity": "warning"},
        ),
        ("FracGPURebalancerLostPod", {LOST: 3}, 90, None),  # lost before, or long ago
        (
            "FracGPURebalancerLostPod",
            {LOST: "0+0x50 1"},
            52,
            {"instance": "r", "severity": "critical"},
        ),
        ("FracGPURebalancerConfigRefused", {VALID % "a": 1, VALID % "b": 1}, 60, None),
        (
            "FracGPURebalancerConfigRefused",
            {VALID % "a": 0, VALID % "b": 1},
            6,
            {"severity": "warning"},
        ),
        ("FracGPURebalancerLeader", {LEADER % "a": 1, LEADER % "b": 0}, 60, None),
        ("FracGPURebalancerLeader", {LEADER % "a": 0, LEADER % "b": 0}, 4, None),
        (
            "FracGPURebalancerLeader",
            {LEADER % "a": 0, LEADER % "b": 0},
            6,
            {"severity": "warning"},
        ),
        (
            "FracGPURebalancerLeader",
            {LEADER % "a": 1, LEADER % "b": 1},
            6,
            {"severity": "warning"},
        ),
        ("FracGPURebalancerBreakerOpen", {BREAKER % "blind": 0}, 60, None),
        (
            "FracGPURebalancerBreakerOpen",
            {BREAKER % "blind": 0, BREAKER % "lost_pod": 1},
            1,
            {"name": "lost_pod", "severity": "warning"},
        ),
        ("FracGPUHotCardsStay", {HOT % "false": 3, HOT % "true": 0}, 600, None),
        ("FracGPUHotCardsStay", {HOT % "true": 1}, 121, {"severity": "warning"}),
        ("FracGPURestartsAwaited", {AWAITED: 0}, 600, None),
        ("FracGPURestartsAwaited", {AWAITED: 2}, 59, None),
        ("FracGPURestartsAwaited", {AWAITED: 2}, 61, {"instance": "c", "severity": "warning"}),
    ],
)
def test_an_alert_fires_when_it_should_and_not_before(
    tmp_path: Path,
    alert: str,
    series: dict[str, float | str],
    minutes: int,
    labels: dict[str, str] | None,
) -> None:
    given = [
        {
            "series": name,
            "values": value
            if isinstance(value, str) and "x" in value
            else _constant(value, minutes),
        }
        for name, value in series.items()
    ]
    # Only labels are compared: promtool compares all annotations if any is given.
    firing = f'ALERTS{{alertname="{alert}",alertstate="firing"}}'
    asked = {"expr": f"count by ({', '.join(labels or ['alertname'])}) ({firing})"}
    found = "{" + ", ".join(f'{key}="{value}"' for key, value in (labels or {}).items()) + "}"
    wanted = [{"labels": found, "value": 1}] if labels else []
    judged = {"eval_time": f"{minutes}m", "exp_samples": wanted, **asked}
    test = {"interval": "1m", "input_series": given, "promql_expr_test": [judged]}
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": [test]}))

    done = promtool("test", "rules", str(file))

    assert done.returncode == 0, done.stdout + done.stderr


def _constant(value: float | str, minutes: int) -> str:
    return f"{value} " * (minutes + 1)
