"""``fracgpu plan``: what the rebalancer would do now, and for each hot card why not more.

It reads the cluster and Prometheus with the rebalancer's own code and changes nothing. Exit code 0:
done; 1: Prometheus or the API server gave no usable answer, or the ConfigMap has a mistake; 2:
wrong arguments.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cli.cluster import list_device_claims, with_cluster
from cli.flags import (
    LISTS,
    Output,
    Parser,
    add_cluster_flags,
    add_pod_namespace_flags,
    add_system_namespace_flag,
    encode,
)
from cli.main import DONE, complain
from cli.plan_report import PlanReport, report_json, report_on
from cli.printers.live import open_console, show_lines
from cli.printers.plan_lines import plan_lines
from cli.prometheus_access import reach_prometheus
from cli.rebalancing import (
    ClusterSettings,
    ReadingFailed,
    add_prometheus_flags,
    read_cluster,
    read_policy_file,
    read_settings,
)
from component.wiring import Wiring
from fracgpu import names
from fracgpu.disruption.brakes import open_breakers
from kube.client import KubeClient
from process import logs
from rebalancer.moves.store import MoveStore, MovesUnreadable
from rebalancer.usage.measured import LoadRecorder, Querier
from rebalancer.usage.past import look_back, server_time
from rebalancer.usage.prometheus import QueryFailed

_LONG_LEADING: Final = timedelta(days=1)


def main(argv: Sequence[str]) -> int:
    """Show the plan; return the exit code."""
    options = arguments().parse_args(argv)
    return with_cluster("plan", options, lambda client: _plan(client, options))


async def _plan(client: KubeClient, options: argparse.Namespace) -> int:
    logs.configure(level="error", json=False)
    try:
        settings = await read_settings(client, namespace=options.system_namespace)
        if options.config is not None:
            policy = read_policy_file(options.config)
            settings = replace(settings, policy=policy, source=str(options.config))
        async with reach_prometheus(client, options) as prometheus:
            report = await read_report(
                client,
                prometheus,
                settings,
                scheduler_name=options.scheduler_name,
            )
    except (ReadingFailed, QueryFailed, MovesUnreadable) as error:
        return complain("plan", str(error))
    if options.namespace is not None:
        report = report.of_namespace(options.namespace)
    if options.output.structured:
        print(encode(report_json(report), options.output))
    elif options.output is Output.NAME:
        for move in report.would_move:
            print(f"pod/{move.pod.key}")
    else:
        show_lines(open_console(), plan_lines(report))
    return DONE


async def read_report(
    client: KubeClient,
    prometheus: Querier,
    settings: ClusterSettings,
    *,
    scheduler_name: str,
) -> PlanReport:
    """Read everything once and return what the rebalancer would do.

    Raises:
        ReadingFailed: the cluster could not be listed.
        QueryFailed: Prometheus gave no answer that can be used.
        MovesUnreadable: what past moves there were is unknown.
    """
    policy = settings.policy
    wirings = settings.wirings
    if wirings.serves(Wiring.CLAIMS) and await list_device_claims(client, ()) is None:
        raise ReadingFailed("may not list resourceclaims, by which pods hold cards here")
    cache = await read_cluster(client, wirings)
    store = MoveStore(client)
    await store.load()
    past = store.moves
    now = await server_time(prometheus)
    measured, heat = await look_back(
        prometheus, cache.cards(), _looks(policy.hold_cycles, policy.tick_s, now), past=past,
        policy=policy,
    )  # fmt: skip
    if measured.trouble:
        raise ReadingFailed(f"Prometheus: {measured.trouble}")
    state = cache.disruption_state(
        usage=measured.usage,
        heat=heat,
        past=past,
        strategy=settings.strategy,
        scheduler_name=scheduler_name,
        leading_since=now - _LONG_LEADING,
        now=now,
    )
    recorder = LoadRecorder(prometheus)
    await recorder.read_all(policy, at_s=now.timestamp())
    state = replace(state, history=recorder.history(past))
    state.learn()
    breakers = open_breakers(past, policy=policy, now=now)
    return report_on(state, policy=policy, breakers=breakers, now=now)


def _looks(hold_cycles: int, tick_s: float, now: datetime) -> list[datetime]:
    """Return as many cycles as a card needs to become hot, the last one now."""
    count = hold_cycles + 3
    return [now - timedelta(seconds=tick_s * ago) for ago in reversed(range(count))]


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = Parser(
        prog="fracgpu plan",
        description="What the rebalancer would do now: for each hot card the move, and for every "
        "other pod its score or the first rule that holds it back. Changes nothing.",
    )
    add_prometheus_flags(parser)
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="a candidate for the ConfigMap's key rebalancer, to be used instead",
    )
    parser.add_argument(
        "--scheduler-name", default=names.SCHEDULER_NAME, help="the scheduler whose pods may move"
    )
    add_pod_namespace_flags(parser)
    add_system_namespace_flag(parser)
    add_cluster_flags(parser, formats=LISTS)
    return parser
