"""``fracgpu doctor``: what is wrong with the installation, and the cure of each finding.

Exit code 0: everything was checked and nothing found; 1: something was found; 2: wrong arguments;
3: nothing was found, but not everything could be checked, or the API server does not answer.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from cli.cluster import NOT_INSTALLED, is_installed, namespace_of, with_cluster
from cli.doctor.gathering import Gatherer
from cli.doctor.prometheus_probe import ask_directly, ask_through_proxy
from cli.flags import LISTS, Output, Parser, add_cluster_flags, add_system_namespace_flag, encode
from cli.main import DONE, FAILED, UNKNOWN, version
from cli.printers.doctor_lines import doctor_json, doctor_lines
from cli.printers.live import open_console, show_lines
from cli.rebalancing import add_prometheus_flags, open_prometheus
from fracgpu.doctor.checkup import CHECKS, examine
from fracgpu.doctor.facts import PrometheusFact, Unread
from fracgpu.doctor.finding import Result
from kube.client import KubeClient
from process import logs
from process.clock import Clock, SystemClock

_NAMES: Final = tuple(check.name for check in CHECKS)
# The webhook is never asked about pods of these; there a dry run would say nothing.
_EXCLUDED: Final = ("kube-system", "fracgpu-system")


def main(argv: Sequence[str], *, clock: Clock | None = None) -> int:
    """Examine the cluster; return the exit code.

    Args:
        argv: the arguments.
        clock: of this machine; None means its own.
    """
    options = arguments().parse_args(argv)
    return with_cluster(
        "doctor",
        options,
        lambda client: _examine(client, options, clock or SystemClock()),
        unanswered=UNKNOWN,
    )


async def _examine(client: KubeClient, options: argparse.Namespace, clock: Clock) -> int:
    logs.configure(level="error", json=False)
    gatherer = Gatherer(
        client,
        namespace=options.system_namespace,
        probe_namespace=None if options.no_probe else await _namespace(options),
        ask_prometheus=lambda asked: _ask_prometheus(asked, options),
        limit_s=options.request_timeout,
    )
    facts = await gatherer.gather(clock, own_version=version())
    results = examine(facts, only=options.check or ())
    if options.output.structured:
        print(encode(doctor_json(results), options.output))
    elif options.output is Output.NAME:
        for result in results:
            if result.findings:
                print(f"check/{result.check.name}")
    else:
        wide = options.output is Output.WIDE
        show_lines(open_console(), doctor_lines(results, wide=wide))
    if not await is_installed(client):
        print(f"fracgpu doctor: {NOT_INSTALLED}", file=sys.stderr)
    return exit_code(results)


def exit_code(results: Sequence[Result]) -> int:
    """Return 1 if something was found, else 3 if something is unknown, else 0."""
    if any(result.findings for result in results):
        return FAILED
    return UNKNOWN if any(result.unknown for result in results) else DONE


async def _namespace(options: argparse.Namespace) -> str:
    found = await namespace_of(options)
    excluded = options.namespace is None and found in (*_EXCLUDED, options.system_namespace)
    return "default" if excluded else found


async def _ask_prometheus(
    client: KubeClient, options: argparse.Namespace
) -> PrometheusFact | Unread:
    if options.prometheus_url is None:
        return await ask_through_proxy(client, namespace=options.system_namespace)
    async with open_prometheus(options, url=options.prometheus_url) as prometheus:
        return await ask_directly(options.prometheus_url, prometheus)


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = Parser(
        prog="fracgpu doctor",
        description="Check the installation from the webhook to Prometheus; each finding has its "
        "cure. Changes nothing; an account that may only read is enough. What it may not read is "
        "reported as not checked.",
    )
    parser.add_argument(
        "--check",
        action="append",
        choices=_NAMES,
        metavar="NAME",
        help=f"only this one; may be repeated: {', '.join(_NAMES)}",
    )
    parser.add_argument(
        "-n",
        "--namespace",
        metavar="NAME",
        help="where a pod is sent, as a dry run, that the webhook must refuse (default: that of "
        "the context)",
    )
    parser.add_argument("--no-probe", action="store_true", help="send no dry run of a pod")
    add_prometheus_flags(parser)
    add_system_namespace_flag(parser)
    add_cluster_flags(parser, formats=LISTS)
    return parser
