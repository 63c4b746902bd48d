"""``fracgpu certs status|rotate``: show the certificates, or have them renewed."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import Any, Final

from certs.rotate_request import RotationRefused, rotate
from certs.settings import CertsSettings
from certs.status import CertificateStatus, Report, collect_report
from cli.cluster import certs_settings, with_cluster
from cli.flags import LISTS, Output, Parser, add_cluster_flags, add_system_namespace_flag, encode
from cli.main import CALLED_WRONG, DONE, FAILED, complain
from cli.printers.text import Tone, table_lines
from kube.client import KubeClient
from process.clock import SystemClock

_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"
_NAMES_SHOWN: Final = 1


def main(argv: Sequence[str]) -> int:
    """Run the subcommand; return 0: valid or done, 1: not so, 2: wrong arguments."""
    options = arguments().parse_args(argv)
    try:
        given = _given(options)
    except ValueError as error:
        return complain("certs", str(error), code=CALLED_WRONG)
    work = _status if options.verb == "status" else _rotate

    async def run(client: KubeClient) -> int:
        namespace = options.system_namespace
        return await work(
            client, await certs_settings(client, namespace=namespace, **given), options
        )

    return with_cluster("certs", options, run)


async def _status(client: KubeClient, settings: CertsSettings, options: argparse.Namespace) -> int:
    report = await collect_report(client, settings, now=SystemClock().now())
    _print(report, options.output)
    return FAILED if report.problems else DONE


def _print(report: Report, output: Output) -> None:
    if output.structured:
        print(encode(as_json(report), output))
    elif output is Output.NAME:
        for row in report.rows:
            print(f"secret/{row.secret}")
    else:
        print(as_text(report))


async def _rotate(client: KubeClient, settings: CertsSettings, options: argparse.Namespace) -> int:
    try:
        report = await rotate(
            client,
            SystemClock(),
            settings,
            authority=options.ca,
            limit_s=options.timeout_s,
            on_progress=lambda line: print(line, file=sys.stderr, flush=True),
        )
    except RotationRefused as error:
        return complain("certs", str(error))
    except asyncio.CancelledError:  # Ctrl-C
        complain("certs", "stopped waiting; the rotation goes on in the cluster")
        raise
    if report is None:
        return complain(
            "certs", f"not done within {options.timeout_s:g} s; see `fracgpu certs status`"
        )
    _print(report, options.output)
    return FAILED if report.problems else DONE


def as_text(report: Report) -> str:
    """Return the report as text: two tables and the problems."""
    certificates = [
        ("CERTIFICATE", "FOR", "NAMES", "SIGNED BY", "NOT BEFORE", "NOT AFTER", "LEFT"),
        *(_cells(row, report) for row in report.rows),
    ]
    bundles = [
        ("WEBHOOK CONFIGURATION", "WEBHOOK", "BUNDLE"),
        *((row.configuration, row.webhook, row.trust.value) for row in report.bundles),
    ]
    maker = "cert-manager" if report.foreign_maker else "FracGPU"
    lines = [
        f"made by {maker}; {report.authorities} trusted "
        + ("authority" if report.authorities == 1 else "authorities"),
        "",
        *_texts(certificates),
        "",
        *_texts(bundles),
    ]
    problems = report.problems
    return "\n".join(
        [*lines, *([""] if problems else []), *(f"problem: {problem}" for problem in problems)]
    )


def as_json(report: Report) -> dict[str, Any]:
    """Return the report as JSON, without any key."""
    return {
        "maker": "cert-manager" if report.foreign_maker else "fracgpu",
        "trustedAuthorities": report.authorities,
        "certificates": [_row_json(row, report) for row in report.rows],
        "bundles": [
            {
                "configuration": bundle.configuration,
                "webhook": bundle.webhook,
                "state": bundle.trust.value,
            }
            for bundle in report.bundles
        ],
        "problems": report.problems,
    }


def _row_json(row: CertificateStatus, report: Report) -> dict[str, Any]:
    said: dict[str, Any] = {
        "secret": row.secret,
        "for": row.role.value,
        "signedBy": row.signed_by,
        "problem": row.problem,
    }
    if row.facts is not None:
        said |= {
            "names": sorted(row.facts.names),
            "notBefore": row.facts.not_before.strftime(_TIME),
            "notAfter": row.facts.not_after.strftime(_TIME),
            "leftS": _left_s(row, report),
            "sha256": row.facts.fingerprint,
        }
    return said


def _left_s(row: CertificateStatus, report: Report) -> int:
    return int((row.facts.not_after - report.now).total_seconds()) if row.facts is not None else 0


def _cells(row: CertificateStatus, report: Report) -> tuple[str, ...]:
    if row.facts is None:
        return (row.secret, row.role.value, "-", row.signed_by, "-", "-", "-")
    # The longest name first: it has the namespace and the cluster's domain.
    names = sorted(row.facts.names, key=lambda name: (-len(name), name))
    more = len(names) - _NAMES_SHOWN
    shown = ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return (
        row.secret,
        row.role.value,
        shown or "-",
        row.signed_by,
        row.facts.not_before.strftime(_TIME),
        row.facts.not_after.strftime(_TIME),
        duration(_left_s(row, report)),
    )


def duration(seconds: int) -> str:
    """Return seconds with a rounded value, such as ``2591999 s (29 d)``."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if abs(seconds) >= length:
            return f"{seconds} s ({int(seconds / length)} {unit})"
    return f"{seconds} s"


def _texts(rows: Sequence[tuple[str, ...]]) -> list[str]:
    return [line.text for line in table_lines(rows, [Tone.PLAIN] * len(rows))]


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """Return what the flags say instead of the role's own settings.

    Raises:
        ValueError: they are no names.
    """
    given: dict[str, Any] = {
        field: tuple(word for word in text.split(",") if word)
        for field in ("services", "clients", "webhook_configurations")
        if (text := getattr(options, field)) is not None
    }
    CertsSettings(**given)
    return given


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    common = Parser(add_help=False)
    add_cluster_flags(common, formats=LISTS)
    add_system_namespace_flag(common, "--namespace", "-n")
    for flag, what in (
        ("--services", "Services with a serving certificate"),
        ("--clients", "callers with a client certificate"),
        ("--webhook-configurations", "webhook configurations that trust the authority"),
    ):
        common.add_argument(flag, help=f"{what}, separated by commas (default: as the role certs)")
    parser = Parser(
        prog="fracgpu certs", description="The certificates of FracGPU: their state, or new ones."
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser(
        "status",
        parents=[common],
        help="each certificate, and who trusts it; exit code 1 if one is invalid",
    )
    again = verbs.add_parser(
        "rotate", parents=[common], help="have new certificates made, and wait for them"
    )
    again.add_argument(
        "--ca", action="store_true", help="the authority too, and so everything it signed"
    )
    again.add_argument(
        "--timeout-s", type=float, default=300.0, help="longest wait, in seconds; default 300"
    )
    return parser
