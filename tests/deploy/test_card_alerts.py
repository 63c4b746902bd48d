"""Alerts on cards, their exporters and moves: when each fires, and when it must not."""

from pathlib import Path
from typing import Final

import pytest

from tests.deploy.test_alerts import OLDER, alerts
from tests.support.promtool import assert_alert, assert_recorded

Series = dict[str, float | str]
Labels = dict[str, str] | None

CARD: Final = 'UUID="GPU-a",gpu="0",modelName="A100",node="n1"'
IS: Final = {"UUID": "GPU-a", "gpu": "0", "node": "n1"}
POD: Final = 'UUID="GPU-a",container="c",instance="e",namespace="ml",node="n1",pod="p",pod_uid="u"'
INFO: Final = f"fracgpu_card_memory_shareable_mib{{{CARD}}}"
BUSY: Final = f"fracgpu_card_util{{{CARD}}}"
USED: Final = f"fracgpu_card_memory_used_mib{{{CARD}}}"
FREE: Final = f"fracgpu_card_memory_free_mib{{{CARD}}}"
POD_BUSY: Final = f"fracgpu_pod_sm_util{{{POD}}}"
POD_USED: Final = f"fracgpu_pod_gpu_memory_used_mib{{{POD}}}"
POD_LIMIT: Final = f"fracgpu_pod_gpu_memory_limit_mib{{{POD}}}"
XIDS: Final = f'DCGM_EXP_XID_ERRORS_TOTAL{{{CARD},xid="%s"}}'
REMAP: Final = f"DCGM_FI_DEV_ROW_REMAP_FAILURE{{{CARD}}}"
THERMAL: Final = f"DCGM_FI_DEV_THERMAL_VIOLATION{{{CARD}}}"
READ_AT: Final = 'fracgpu_collect_timestamp_seconds{instance="e"}'
COLLECTED: Final = 'fracgpu_last_collect_success{instance="e"}'
SURVEYED: Final = 'fracgpu_deviceplugin_last_card_list_success{instance="e"}'
UNPROVEN: Final = 'fracgpu_enforcement_unproven{instance="e"}'
AUDITED: Final = 'fracgpu_deviceplugin_disagreements_now{instance="e",kind="cdi_spec_differs"}'
R: Final = "fracgpu_rebalancer_"
LEADER: Final = f'{R}leader{{instance="r"}}'
STANDBY: Final = f'{R}leader{{instance="s"}}'
COVERAGE: Final = f'{R}coverage_ratio{{instance="r"}}'
CYCLES: Final = f'{R}cycle_seconds_count{{instance="r"}}'
PING_PONGS: Final = f'{R}ping_pongs_total{{instance="r"}}'
USELESS: Final = f'{R}ineffective_moves_total{{instance="r"}}'
MOVES: Final = f'{R}moves_total{{instance="r",mode="%s",reason="relieved",result="%s"}}'
EVICTIONS: Final = f'{R}evictions_total{{code="%s",instance="r"}}'
HOT: Final = f'{R}hot_cards{{instance="r",relievable="%s"}}'
# Another cluster, in which all is well.
ELSEWHERE: Final[Series] = {
    f'{R}{figure}{{cluster="two",instance="t"{label}}}': values
    for figure, label, values in (
        ("leader", "", 1),
        ("cycle_seconds_count", "", "0+4x90"),
        ("evictions_total", ',code="allowed"', "0+1x90"),
        ("coverage_ratio", "", 1),
    )
}
WEBHOOK: Final = 'fracgpu_webhook_config_valid{instance="w"}'
SCHEDULER: Final = 'fracgpu_scheduler_leader{instance="x"}'
CERTS: Final = 'fracgpu_certs_trusted_authorities{instance="c"}'

WARNING: Final = {"severity": "warning"}
CRITICAL: Final = {"severity": "critical"}
NOTICE: Final = {"severity": "info"}
AT: Final = {"instance": "e"}

OVERBOOKED: Final = 'fracgpu_scheduler_overbooked_cards{instance="x"}'
DRIFT: Final = 'fracgpu_scheduler_ledger_drift{instance="x"}'
UNREADABLE: Final = 'fracgpu_scheduler_unreadable_objects{annotation="a",instance="x"}'
MOVE_UNREADABLE: Final = 'fracgpu_scheduler_reservations{instance="x",state="%s"}'

PAUSE: Final = 'fracgpu_scheduler_event_loop_longest_pause_seconds{instance="x"}'
NOT_LEADING: Final = (
    'fracgpu_scheduler_requests_total{instance="x",outcome="not_leading",verb="filter"}'
)
COMPILED: Final = 'fracgpu_scheduler_fill_compiled{instance="x"}'

# Alert, series, minutes, labels with which it fires then; None if it does not.
CASES: Final[tuple[tuple[str, Series, int, Labels], ...]] = (
    ("FracGPUCardOverbooked", {OVERBOOKED: 0}, 60, None),
    ("FracGPUCardOverbooked", {OVERBOOKED: 1}, 1, {"instance": "x", **CRITICAL}),
    ("FracGPULedgerDrift", {DRIFT: 0}, 60, None),
    ("FracGPULedgerDrift", {DRIFT: 1}, 1, {"instance": "x", **CRITICAL}),
    ("FracGPUAnnotationUnreadable", {UNREADABLE: 0}, 60, None),
    ("FracGPUAnnotationUnreadable", {UNREADABLE: 1}, 1, None),
    ("FracGPUAnnotationUnreadable", {UNREADABLE: 1}, 3, {"annotation": "a", **WARNING}),
    ("FracGPUMoveUnreadable", {MOVE_UNREADABLE % "held": 1}, 60, None),
    ("FracGPUMoveUnreadable", {MOVE_UNREADABLE % "unreadable": 1}, 3, WARNING),
    ("FracGPUSchedulerStandsStill", {PAUSE: 0.9}, 60, None),
    ("FracGPUSchedulerStandsStill", {PAUSE: 1.2}, 4, None),
    ("FracGPUSchedulerStandsStill", {PAUSE: 1.2}, 6, {"instance": "x", **WARNING}),
    ("FracGPUSchedulerStandbyAsked", {NOT_LEADING: "0x10 40x50"}, 30, None),
    ("FracGPUSchedulerStandbyAsked", {NOT_LEADING: "0+3x60"}, 9, None),
    ("FracGPUSchedulerStandbyAsked", {NOT_LEADING: "0+3x60"}, 13, {"instance": "x", **WARNING}),
    ("FracGPUSchedulerNotCompiled", {COMPILED: 1}, 60, None),
    ("FracGPUSchedulerNotCompiled", {COMPILED: 0}, 14, None),
    ("FracGPUSchedulerNotCompiled", {COMPILED: 0}, 16, {"instance": "x", **NOTICE}),
    # Scraped, but the figures are frozen; read at minute 0, which is 0 s since the epoch.
    ("FracGPUExporterStale", {READ_AT: "0+60x60"}, 60, None),
    ("FracGPUExporterStale", {READ_AT: "0+60x10 600x20"}, 13, None),
    ("FracGPUExporterStale", {READ_AT: "0+60x10 600x20"}, 16, {**AT, **WARNING}),
    # Gone, with its node, as autoscalers do: what is absent is not stale.
    ("FracGPUExporterStale", {READ_AT: "0+60x10 stale"}, 60, None),
    ("FracGPUCardsUnreadable", {COLLECTED: 1, SURVEYED: 1}, 60, None),
    ("FracGPUCardsUnreadable", {COLLECTED: 0, SURVEYED: 1}, 9, None),
    ("FracGPUCardsUnreadable", {COLLECTED: 0, SURVEYED: 1}, 11, {**AT, **WARNING}),
    ("FracGPUCardsUnreadable", {COLLECTED: 1, SURVEYED: 0}, 11, {**AT, **WARNING}),
    # An agent that was never scraped has no series; the rebalancer knows its cards from the node.
    ("FracGPUCardsUnmeasured", {LEADER: 1, COVERAGE: 1}, 90, None),
    ("FracGPUCardsUnmeasured", {LEADER: 1, COVERAGE: 0}, 29, None),
    ("FracGPUCardsUnmeasured", {LEADER: 1, COVERAGE: 0}, 31, WARNING),
    ("FracGPUCardsUnmeasured", {LEADER: 1, COVERAGE: "1x10 0.75x40"}, 50, WARNING),
    # Without a leader nobody compares, which is another alert.
    ("FracGPUCardsUnmeasured", {LEADER: 0, COVERAGE: 0}, 90, None),
    ("FracGPUCardsUnmeasured", {}, 90, None),
    # Series that never existed, and ones that end.
    ("FracGPURoleNotScraped", {WEBHOOK: 1, SCHEDULER: 1, LEADER: 1, CERTS: 1}, 60, None),
    ("FracGPURoleNotScraped", {WEBHOOK: 1, SCHEDULER: 1, CERTS: 1}, 9, None),
    (
        "FracGPURoleNotScraped",
        {WEBHOOK: 1, SCHEDULER: 1, CERTS: 1},
        11,
        {"role": "rebalancer", **WARNING},
    ),
    (
        "FracGPURoleNotScraped",
        {SCHEDULER: 1, LEADER: 0, CERTS: 1},
        11,
        {"role": "webhook", **WARNING},
    ),
    (
        "FracGPURoleNotScraped",
        {WEBHOOK: 1, SCHEDULER: 1, LEADER: 1},
        11,
        {"role": "certs", **WARNING},
    ),
    (
        "FracGPURoleNotScraped",
        {WEBHOOK: 1, LEADER: 1, CERTS: 1, SCHEDULER: "1x10 stale"},
        30,
        {"role": "scheduler", **WARNING},
    ),
    ("FracGPULimitNotProved", {UNPROVEN: 0}, 60, None),
    ("FracGPULimitNotProved", {UNPROVEN: 1}, 2, None),
    ("FracGPULimitNotProved", {UNPROVEN: 1}, 4, {**AT, **CRITICAL}),
    ("FracGPUAuditDisagreement", {AUDITED: 0}, 60, None),
    ("FracGPUAuditDisagreement", {AUDITED: 1}, 4, None),
    ("FracGPUAuditDisagreement", {AUDITED: 1}, 6, {**AT, "kind": "cdi_spec_differs", **CRITICAL}),
    ("FracGPUCardMemoryNearlyFull", {USED: 96, FREE: 4}, 60, None),
    ("FracGPUCardMemoryNearlyFull", {USED: 98, FREE: 2}, 9, None),
    ("FracGPUCardMemoryNearlyFull", {USED: 98, FREE: 2}, 12, {**IS, **NOTICE}),
    ("FracGPUPodMemoryOverLimit", {POD_USED: 4000, POD_LIMIT: 4000}, 60, None),
    ("FracGPUPodMemoryOverLimit", {POD_USED: 4001, POD_LIMIT: 4000}, 4, None),
    (
        "FracGPUPodMemoryOverLimit",
        {POD_USED: 4001, POD_LIMIT: 4000},
        6,
        {"pod": "p", "namespace": "ml", "container": "c", **WARNING},
    ),
    # A pod whose memory the driver does not tell has no figure.
    ("FracGPUPodMemoryOverLimit", {POD_LIMIT: 4000}, 60, None),
    ("FracGPUAttributionDegraded", {BUSY: 80, POD_BUSY: 50}, 60, None),
    ("FracGPUAttributionDegraded", {BUSY: 40, POD_BUSY: 5}, 60, None),  # hardly busy
    ("FracGPUAttributionDegraded", {BUSY: 0, POD_BUSY: 0}, 60, None),
    ("FracGPUAttributionDegraded", {BUSY: 80, POD_BUSY: 40}, 14, None),
    ("FracGPUAttributionDegraded", {BUSY: 80, POD_BUSY: 40}, 17, {**IS, **NOTICE}),
    # Scraped twice it is still one pod.
    (
        "FracGPUAttributionDegraded",
        {BUSY: 80, POD_BUSY: 40, POD_BUSY.replace("}", ',job="j"}'): 40},
        17,
        {**IS, **NOTICE},
    ),
    # Nobody is on the card, and it is busy.
    ("FracGPUAttributionDegraded", {BUSY: 80}, 17, {**IS, **NOTICE}),
    # A code that occurs first after hours, once more, or long ago.
    ("FracGPUXidCritical", {XIDS % "31": "0 1 2 3"}, 3, None),
    ("FracGPUXidCritical", {XIDS % "79": "_x100 1x10"}, 102, {**IS, "xid": "79", **CRITICAL}),
    ("FracGPUXidCritical", {XIDS % "79": "1x100 2x10"}, 105, {**IS, "xid": "79", **CRITICAL}),
    ("FracGPUXidCritical", {XIDS % "79": "_x10 1x100"}, 100, None),
    ("FracGPUXidCritical", {XIDS % "79": "3x200"}, 200, None),
    ("FracGPUXidCritical", {XIDS % "94": "_x100 1x10"}, 102, None),
    ("FracGPUXidCritical", {XIDS % "999": "_x100 1x10"}, 102, {**IS, "xid": "999", **CRITICAL}),
    ("FracGPUXidContained", {XIDS % "94": "_x100 1x10"}, 102, {**IS, "xid": "94", **WARNING}),
    ("FracGPUXidContained", {XIDS % "94": "_x10 1x100"}, 100, None),
    ("FracGPUXidContained", {XIDS % "79": "_x100 1x10"}, 102, None),
    ("FracGPURowRemapFailure", {REMAP: 0}, 60, None),
    ("FracGPURowRemapFailure", {REMAP: 1}, 3, {**IS, **CRITICAL}),
    # Nanoseconds: 2 and 4 s of each minute.
    ("FracGPUThermalThrottle", {THERMAL: "0+2000000000x60"}, 60, None),
    ("FracGPUThermalThrottle", {THERMAL: "0+4000000000x60"}, 4, None),
    ("FracGPUThermalThrottle", {THERMAL: "0+4000000000x60"}, 12, {**IS, **WARNING}),
    ("FracGPUThermalThrottle", {THERMAL: "9e12x60"}, 60, None),  # slowed down in the past
    ("FracGPUHotCardsNotRelievable", {HOT % "false": 1, HOT % "true": 0}, 119, None),
    ("FracGPUHotCardsNotRelievable", {HOT % "false": 1, HOT % "true": 0}, 121, NOTICE),
    ("FracGPUHotCardsNotRelievable", {HOT % "false": 0, HOT % "true": 1}, 200, None),
    # The leader finishes no cycle; a standby finishes none either.
    ("FracGPURebalancerStuck", {LEADER: 1, CYCLES: "0+4x60"}, 60, None),
    ("FracGPURebalancerStuck", {LEADER: 1, CYCLES: "0+4x20 80x40"}, 35, None),
    ("FracGPURebalancerStuck", {LEADER: 1, CYCLES: "0+4x20 80x40"}, 45, WARNING),
    ("FracGPURebalancerStuck", {LEADER: 0, CYCLES: 0}, 60, None),
    ("FracGPURebalancerStuck", {LEADER: 1, CYCLES: "0+4x20 80x40", **ELSEWHERE}, 45, WARNING),
    ("FracGPURebalancerPingPong", {PING_PONGS: "0x50 1x10"}, 52, {"instance": "r", **CRITICAL}),
    ("FracGPURebalancerPingPong", {PING_PONGS: 1}, 90, None),
    # Four and six moves in six hours, of which three relieved nothing; three moves are too few.
    (
        "FracGPURebalancerIneffective",
        {MOVES % ("surge", "done"): "0x60 4x200", USELESS: "0x60 3x200"},
        120,
        WARNING,
    ),
    (
        "FracGPURebalancerIneffective",
        {MOVES % ("surge", "done"): "0x60 6x200", USELESS: "0x60 3x200"},
        120,
        None,
    ),
    (
        "FracGPURebalancerIneffective",
        {MOVES % ("surge", "done"): "0x60 3x200", USELESS: "0x60 3x200"},
        120,
        None,
    ),
    (
        "FracGPURebalancerIneffective",
        {MOVES % ("dryRun", "done"): "0x60 9x200", USELESS: "0x60 3x200"},
        120,
        None,
    ),
    # Refused again and again; once and then no more; refused for some and allowed for others.
    ("FracGPURebalancerEvictionBlocked", {EVICTIONS % "blocked": "0+1x90"}, 20, None),
    ("FracGPURebalancerEvictionBlocked", {EVICTIONS % "blocked": "0+1x90"}, 40, WARNING),
    ("FracGPURebalancerEvictionBlocked", {EVICTIONS % "blocked": "0x5 1x90"}, 90, None),
    (
        "FracGPURebalancerEvictionBlocked",
        {EVICTIONS % "blocked": "0+1x90", EVICTIONS % "allowed": "0x10 1x10 2x10 3x10 4x40"},
        45,
        None,
    ),
    (
        "FracGPURebalancerEvictionBlocked",
        {EVICTIONS % "blocked": "0+1x90", **ELSEWHERE},
        40,
        WARNING,
    ),
    ("FracGPUCardsUnmeasured", {LEADER: 1, COVERAGE: 0, **ELSEWHERE}, 31, WARNING),
)


@pytest.mark.parametrize(("alert", "series", "minutes", "labels"), [*CASES, *OLDER])
def test_an_alert_fires_when_it_should_and_not_before(
    tmp_path: Path, alert: str, series: Series, minutes: int, labels: Labels
) -> None:
    # One Prometheus may have several clusters, and tells them by this label.
    named = {
        name if "cluster=" in name else name.replace("}", ',cluster="one"}'): values
        for name, values in series.items()
    }
    if labels is not None and alert != "FracGPURoleNotScraped":  # what is absent has no labels
        labels = {"cluster": "one", **labels}
    assert_alert(tmp_path, alert, named, minutes, labels)


def test_without_any_series_only_what_is_not_scraped_is_told(tmp_path: Path) -> None:
    """No other alert fires before FracGPU is installed."""
    names = [rule["alert"] for rule in alerts() if rule["alert"] != "FracGPURoleNotScraped"]

    assert_alert(tmp_path, "|".join(names), {}, 150, None)


def test_every_alert_is_seen_to_fire_and_not_to_fire() -> None:
    judged = [(alert, bool(labels)) for alert, _, _, labels in (*CASES, *OLDER)]

    for rule in alerts():
        assert (rule["alert"], True) in judged
        assert (rule["alert"], False) in judged


def test_the_figures_of_a_card_are_recorded_by_one_name_each(tmp_path: Path) -> None:
    series: Series = {INFO: 1024, BUSY: 50, USED: 300, FREE: 700}

    for record, value in {
        "card:gpu:info": 1,
        "card:gpu_busy:percent": 50,
        "card:gpu_memory_used:mib": 300,
        "card:gpu_memory_free:mib": 700,
        "card:gpu_memory_used:ratio": 0.3,
    }.items():
        assert_recorded(tmp_path, record, series, {f"{{{CARD}}}": value})


@pytest.mark.parametrize("name", ["DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_ROW_REMAP_FAILED"])
def test_a_family_of_nvidias_is_recorded_however_it_is_spelled(tmp_path: Path, name: str) -> None:
    series: Series = {f"{name}{{{CARD}}}": 1}

    assert_recorded(tmp_path, "card:gpu_row_remap_failed:max", series, {f"{{{CARD}}}": 1})


def test_cards_of_several_clusters_stay_apart_and_an_agents_restart_adds_none(
    tmp_path: Path,
) -> None:
    def busy(cluster: str, instance: str) -> str:
        return f'fracgpu_card_util{{{CARD},cluster="{cluster}",instance="{instance}"}}'

    series: Series = {busy("a", "1"): 40, busy("a", "2"): 50, busy("b", "3"): 60}
    wanted = {f'{{{CARD},cluster="a"}}': 50.0, f'{{{CARD},cluster="b"}}': 60.0}

    assert_recorded(tmp_path, "card:gpu_busy:percent", series, wanted)
