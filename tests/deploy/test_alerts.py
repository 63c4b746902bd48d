"""deploy/alerts/: every rule uses a metric that exists, and fires when it should."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

from deviceplugin.cards.xid import XIDS, Severity
from tests.support.documented import documented
from tests.support.metric_names import exported, exposition
from tests.support.promtool import RULES, promtool
from tests.support.yaml_files import read_yaml

RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks.md"
FIGURE = re.compile(r"(?:\bfracgpu_|\bDCGM_|\bcard:)[\w:]+")
SELECTED = re.compile(r"\b(fracgpu_\w+){([^}]+)}")
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')


def rules() -> list[dict[str, Any]]:
    return [rule for group in read_yaml(RULES.read_text())["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def test_every_rule_asks_for_a_figure_that_there_is() -> None:
    there = exported()
    recorded: set[str] = set()

    assert len(rules()) > 40
    for rule in rules():
        asked = set(FIGURE.findall(rule["expr"]))
        assert asked, rule
        assert asked <= there | recorded, rule
        recorded |= {rule["record"]} if "record" in rule else set()


def test_every_rule_selects_by_labels_and_values_that_there_are() -> None:
    there = {
        (name, label, text)
        for name, labels in re.findall(r"^(\w+){(.*)} ", exposition(), re.MULTILINE)
        for label, text in re.findall(r'(\w+)="([^"]*)"', labels)
    }
    asked = {
        (name, label, text)
        for rule in rules()
        for name, selector in SELECTED.findall(rule["expr"])
        for label, how, text in MATCHER.findall(selector)
        if how in ("=", "!=")
    }

    assert len(asked) > 5
    assert asked <= there


def test_an_xid_error_is_critical_where_the_agent_takes_the_card_out_of_service() -> None:
    (rule,) = [rule for rule in alerts() if rule["alert"] == "FracGPUXidCritical"]
    (left_out,) = re.findall(r'xid!~"([\d|]+)"', rule["expr"])

    of_the_card = {code for code, xid in XIDS.items() if xid.severity is Severity.CARD}
    assert {int(code) for code in left_out.split("|")} == XIDS.keys() - of_the_card


def test_every_alert_says_what_it_means_and_what_to_do() -> None:
    for rule in alerts():
        assert rule["alert"].startswith("FracGPU")
        assert rule["labels"].keys() == {"severity"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{rule['alert'].lower()}"


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    parts = re.split(r"^## (\w+)$", RUNBOOKS.read_text(), flags=re.MULTILINE)
    books = dict(zip(parts[1::2], parts[2::2], strict=True))

    assert list(books) == sorted(rule["alert"] for rule in alerts())
    for alert, text in books.items():
        paragraphs = ("**Meaning.**", "**Diagnosis.**", "**Mitigation.**")
        assert [word for word in paragraphs if word not in text] == [], alert
        # It names what the alert looks at, so that one finds the figure in the dashboards.
        (rule,) = [rule for rule in alerts() if rule["alert"] == alert]
        assert f"severity {rule['labels']['severity']}" in text, alert


def test_promtool_reads_the_rules() -> None:
    done = promtool("check", "rules", str(RULES))

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules())} rules found" in done.stdout


DAY_S = 86_400
CERTS_LEFT = 'fracgpu_certs_expiry_seconds{certificate="fracgpu-ca",instance="%s"}'
WEBHOOK_LEFT = 'fracgpu_webhook_certificate_expiry_seconds{instance="w"}'
EXTENDER_LEFT = 'fracgpu_scheduler_certificate_expiry_seconds{instance="x"}'
BLIND = 'fracgpu_rebalancer_blind{instance="%s",reason="%s"}'
LOST = 'fracgpu_rebalancer_lost_pods_total{instance="r"}'
LEADER = 'fracgpu_rebalancer_leader{instance="%s"}'
VALID = 'fracgpu_rebalancer_config_valid{instance="%s"}'
TAKEN: Final[dict[str, float | str]] = {
    f'fracgpu_{role}_config_valid{{instance="{role}"}}': 1 for role in ("webhook", "scheduler")
}
BREAKER = 'fracgpu_rebalancer_breaker_open{instance="r",name="%s"}'
HOT = 'fracgpu_rebalancer_hot_cards{instance="r",relievable="%s"}'
AWAITED = 'fracgpu_certs_awaited_restarts{instance="c"}'
LEADS = 'fracgpu_scheduler_leader{cluster="%s",instance="%s"}'
WAIT = 'fracgpu_scheduler_longest_wait_seconds{cluster="one",instance="%s",reason="%s"}'
HOOK = 'name="pods.fracgpu.io",type="admit",cluster="one",instance="api"'
REJECTED = f"apiserver_admission_webhook_rejection_count{{{HOOK},error_type=%s}}" % '"%s"'
SKIPPED = f"apiserver_admission_webhook_fail_open_count{{{HOOK}}}"
REVIEWS = 'fracgpu_webhook_review_duration_seconds_%s{cluster="one",instance="w"}'
IN_TIME = (REVIEWS % "bucket").replace("}", ',le="5.0"}')
CONFIGURED = (
    'fracgpu_certs_webhook_configuration_valid{cluster="one",instance="%s",configuration="%s"}'
)


# Alert, series, minutes, labels with which it fires then; None if it does not.
OLDER: Final[tuple[tuple[str, dict[str, float | str], int, dict[str, str] | None], ...]] = (
    ("FracGPUCertificateExpires", {CERTS_LEFT % "a": 8 * DAY_S}, 60, None),
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
        60,
        None,
    ),
    ("FracGPUServedCertificateExpires", {WEBHOOK_LEFT: 8 * DAY_S}, 60, None),
    ("FracGPUServedCertificateExpires", {WEBHOOK_LEFT: "NaN"}, 60, None),
    (
        "FracGPUServedCertificateExpires",
        {WEBHOOK_LEFT: -1},
        11,
        {"instance": "w", "severity": "critical"},
    ),
    (
        "FracGPUServedCertificateExpires",
        {WEBHOOK_LEFT: 8 * DAY_S, EXTENDER_LEFT: 6 * DAY_S},
        11,
        {"instance": "x", "severity": "critical"},
    ),
    ("FracGPURebalancerBlind", {BLIND % ("r", "slow"): 0}, 60, None),
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
    ("FracGPUConfigRefused", {VALID % "a": 1, VALID % "b": 1, **TAKEN}, 60, None),
    ("FracGPUConfigRefused", {VALID % "a": 0, VALID % "b": 1}, 6, {"severity": "warning"}),
    *(
        ("FracGPUConfigRefused", {VALID % "a": 1, **TAKEN, role: 0}, 6, {"severity": "warning"})
        for role in TAKEN
    ),
    ("FracGPURebalancerLeader", {LEADER % "a": 1, LEADER % "b": 0}, 60, None),
    ("FracGPURebalancerLeader", {LEADER % 'a",cluster="two': 1, LEADER % "b": 1}, 60, None),
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
    ("FracGPURebalancerBreakerOpen", {BREAKER % "aborts": 0}, 60, None),
    (
        "FracGPURebalancerBreakerOpen",
        {BREAKER % "aborts": 0, BREAKER % "lost_pod": 1},
        1,
        {"name": "lost_pod", "severity": "warning"},
    ),
    ("FracGPUHotCardsStay", {HOT % "false": 3, HOT % "true": 0}, 130, None),
    ("FracGPUHotCardsStay", {HOT % "true": 1}, 121, {"severity": "warning"}),
    ("FracGPUSchedulerLeader", {LEADS % ("one", "a"): 1, LEADS % ("one", "b"): 0}, 60, None),
    ("FracGPUSchedulerLeader", {LEADS % ("one", "a"): "1x30 0x0 1x30"}, 60, None),
    (
        "FracGPUSchedulerLeader",
        {LEADS % ("one", "a"): 1, LEADS % ("two", "a"): 0, LEADS % ("two", "b"): 0},
        3,
        {"cluster": "two", "severity": "critical"},
    ),
    (
        "FracGPUSchedulerLeader",
        {LEADS % ("one", "a"): 1, LEADS % ("one", "b"): 1},
        3,
        {"cluster": "one", "severity": "critical"},
    ),
    (  # its pods are gone, and with them their series
        "FracGPUSchedulerLeader",
        {LEADS % ("one", "a"): "1x10 stale _x30", LEADS % ("two", "a"): 1},
        20,
        {"cluster": "one", "severity": "critical"},
    ),
    ("FracGPUSchedulerLeader", {LEADS % ("one", "a"): "1x10 stale _x90"}, 90, None),
    # Many wait, one after the other, and none of them long.
    ("FracGPUPodsWait", {WAIT % ("a", "memory"): 590, WAIT % ("b", "memory"): 0}, 60, None),
    (
        "FracGPUPodsWait",
        {WAIT % ("a", "memory"): 610, WAIT % ("b", "memory"): 0, WAIT % ("a", "not_cards"): 5},
        1,
        {"cluster": "one", "reason": "memory", "severity": "warning"},
    ),
    # Requests that the webhook refuses are as they should be, and a call or two fail in an update.
    ("FracGPUWebhookFails", {REJECTED % "no_error": "0+9x60"}, 60, None),
    ("FracGPUWebhookFails", {REJECTED % "calling_webhook_error": "0x30 3x30"}, 40, None),
    ("FracGPUWebhookFails", {REJECTED % "calling_webhook_error": "_x30 3x30"}, 40, None),
    ("FracGPUWebhookFails", {REJECTED % "calling_webhook_error": 99}, 60, None),
    (
        "FracGPUWebhookFails",
        {REJECTED % "calling_webhook_error": "0x30 5x30"},
        40,
        {"cluster": "one", "name": "pods.fracgpu.io", "severity": "critical"},
    ),
    (
        "FracGPUWebhookFails",
        {REJECTED % "apiserver_internal_error": "_x30 5x30"},
        40,
        {"cluster": "one", "name": "pods.fracgpu.io", "severity": "critical"},
    ),
    (
        "FracGPUWebhookFails",
        {SKIPPED: "0+1x60"},
        30,
        {"cluster": "one", "name": "pods.fracgpu.io", "severity": "critical"},
    ),
    # Its replicas answer 9 reviews a minute in time, and one too late.
    ("FracGPUWebhookFails", {REVIEWS % "count": "0+9x60", IN_TIME: "0+9x60"}, 60, None),
    (
        "FracGPUWebhookFails",
        {REVIEWS % "count": "0+10x60", IN_TIME: "0+9x60"},
        30,
        {"cluster": "one", "severity": "critical"},
    ),
    (
        "FracGPUWebhookConfigurationInvalid",
        {CONFIGURED % ("a", "M"): 1, CONFIGURED % ("a", "V"): "1x20 0x3 1x30"},
        60,
        None,
    ),
    (
        "FracGPUWebhookConfigurationInvalid",
        {CONFIGURED % ("a", "M"): 1, CONFIGURED % ("a", "V"): 0},
        6,
        {"cluster": "one", "configuration": "V", "severity": "critical"},
    ),
    ("FracGPURestartsAwaited", {AWAITED: 0}, 60, None),
    ("FracGPURestartsAwaited", {AWAITED: 2}, 59, None),
    ("FracGPURestartsAwaited", {AWAITED: 2}, 61, {"instance": "c", "severity": "warning"}),
)


def test_the_address_of_the_runbooks_is_set_in_the_file_as_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "deploy" / "alerts").mkdir(parents=True)
    copy = Path(shutil.copy(RULES, tmp_path / "deploy" / "alerts"))
    (command,) = documented("docs/metrics.md", "runbook-urls")

    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True, timeout=60)  # noqa: S603, S607

    addresses = [
        rule["annotations"]["runbook_url"]
        for group in read_yaml(copy.read_text())["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    base = "https://git.example.com/fracgpu/blob/v0.1.0/docs/runbooks.md#"
    assert addresses == [f"{base}{rule['alert'].lower()}" for rule in alerts()]
