"""Whether the rebalancer sees and may act: its configuration, Prometheus and each series."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from fracgpu import names
from fracgpu.doctor.cures import change, install_again
from fracgpu.doctor.facts import Facts, Unread, known, named
from fracgpu.doctor.finding import Check, Finding, Severity, error, warning
from fracgpu.doctor.installation import AGENT, workload_of
from fracgpu.doctor.ranking import ALL_AGENTS, INSTALLED, SHARING_NODES, workload
from fracgpu.errors import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A metric that somebody needs.

    Attributes:
        effect: what happens without it.
    """

    name: str
    severity: Severity
    effect: str
    cure: str


_SCRAPE: Final = (
    "let Prometheus scrape the node agents, port 9400, with honor_labels: true (docs/prometheus.md)"
)

SERIES: Final = (
    Series(
        name=names.METRIC_BUSY,
        severity=Severity.ERROR,
        effect="the rebalancer does not know which card is hot or cool",
        cure=_SCRAPE,
    ),
    Series(
        name=names.METRIC_FREE,
        severity=Severity.ERROR,
        effect="no card counts as a target, so nothing is moved",
        cure=_SCRAPE,
    ),
    Series(
        name=names.METRIC_POD_BUSY,
        severity=Severity.WARNING,
        effect="what a pod uses of its card is unknown, so none is moved; that is as it should be "
        "while no pod runs on a card",
        cure=_SCRAPE,
    ),
    Series(
        name=names.METRIC_COLLECTED,
        severity=Severity.WARNING,
        effect="an agent that serves old readings is noticed only under load, and an idle card "
        "with pods is no target unless another card beside it is busy",
        cure=_SCRAPE,
    ),
    Series(
        name=names.METRIC_SHAREABLE,
        severity=Severity.WARNING,
        effect="fracgpu rebalance replay cannot be run",
        cure=_SCRAPE,
    ),
)

LONGEST_INTERVAL_S: Final = 150.0  # a quarter of the rebalancer's default short window
NOT_COMPILED: Final = "fracgpu_scheduler_fill_compiled"
"""Counted where it is 0: the extenders that cannot load the library of least-waste."""


def _prometheus(facts: Facts) -> Iterator[Finding]:
    answer = known(facts.prometheus)
    if answer.error:
        deployments = () if isinstance(facts.deployments, Unread) else facts.deployments
        yield error(
            f"Prometheus at {answer.url} does not answer: {answer.error}; the rebalancer has no "
            "usage to go by, and moves nothing",
            cure="docs/prometheus.md, if there is none yet; else set its address: "
            + change(
                workload_of(deployments, names.REBALANCER) or {},
                "--set prometheus.url=URL",
                otherwise="FRACGPU_REBALANCER_PROMETHEUS_URL of Deployment fracgpu-rebalancer (the "
                "chart's prometheus.url)",
            ),
        )
        return
    for series in SERIES:
        if not answer.series.get(series.name):
            yield Finding(
                severity=series.severity,
                observed=f"Prometheus at {answer.url} has no series {series.name}: {series.effect}",
                cure=series.cure,
                needs=(SHARING_NODES, ALL_AGENTS, workload(AGENT), INSTALLED),
            )
    longest_s = LONGEST_INTERVAL_S
    if answer.interval_s is not None and answer.interval_s > longest_s:
        yield error(
            f"cards are scraped every {answer.interval_s:.0f} s; expected is a scrape every "
            f"{longest_s:.0f} s at least, a quarter of the rebalancer's short window, so none is "
            "trusted",
            cure="set scrape_interval of the job, or interval of the PodMonitor, to 15 to 60 s",
        )
    if without := answer.series.get(NOT_COMPILED):
        yield warning(
            f"{counted(without, 'scheduler extender')} without the compiled code of least-waste, "
            "so pods of that strategy are placed as by pack",
            cure="docs/runbooks.md#fracgpuschedulernotcompiled",
        )


def _configuration(facts: Facts) -> Iterator[Finding]:
    mistakes = known(facts.config_mistakes)
    where = f"ConfigMap {facts.system_namespace}/{names.CONFIG_MAP}"
    if mistakes is None:
        yield warning(
            f"there is no {where}: every role uses its defaults",
            cure=install_again(facts),
            needs=[INSTALLED],
        )
        return
    configuration = named(known(facts.config_maps), names.CONFIG_MAP) or {}
    for key, text in mistakes.items():
        yield error(
            f"{where}, key {key}: {text}; what was valid before is still in use, or the "
            "defaults after a restart",
            cure=change(
                configuration,
                f"--set-json config.{key}.FIELD=VALUE",
                otherwise=f"kubectl -n {facts.system_namespace} edit configmap {names.CONFIG_MAP}",
            ),
        )
    if ignored := known(facts.ignored_keys):
        yield warning(
            f"{where}, key rebalancer: {', '.join(ignored)} set nothing any more",
            cure="remove them, and use aggressiveness; "
            "docs/rebalancer-settings.md#keys-of-earlier-versions",
        )
    # Until a mechanism of the node agents has ``keeps_guarantees``.
    if known(facts.overcommits):
        yield warning(
            f"{where}, key placement: overcommit has no effect: nothing is known to keep what is "
            "guaranteed while others have borrowed it",
            cure="remove it; docs/enforcement.md#burst",
        )


CHECKS: Final = (
    Check(name="configuration", title="The configuration is valid", find=_configuration),
    Check(name="prometheus", title="Prometheus has every series", find=_prometheus),
)
