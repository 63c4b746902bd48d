import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from certs.authority import CertificateInfo
from certs.service import build
from certs.settings import CertsSettings
from certs.status import BundleStatus, CertificateRole, CertificateStatus, Report, TrustState
from cli.commands.certs import as_json, as_text, duration, main
from cli.main import main as fracgpu
from kube.client import KubeClient
from kube.kinds import MUTATING_WEBHOOKS, NAMESPACES
from simulator.apiserver.server import ApiServer
from tests.certs.webhooks import a_webhook, apply
from tests.cli.live_cluster import Cli
from tests.support.running_service import running_service
from tests.support.waiting import until

NOON = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
FACTS = CertificateInfo(
    not_before=NOON,
    not_after=NOON + timedelta(days=30),
    names=frozenset({"hook.ns.svc", "hook", "127.0.0.1"}),
    fingerprint="ab12",
    key_id="k",
    issuer_key_id="c",
    is_ca=False,
)
REPORT = Report(
    rows=[
        CertificateStatus(
            secret="hook-tls",
            role=CertificateRole.SERVER,
            facts=FACTS,
            signed_by="older",
            problem=None,
        ),
        CertificateStatus(
            secret="caller-client",
            role=CertificateRole.CLIENT,
            facts=None,
            signed_by="-",
            problem="there is none",
        ),
    ],
    bundles=[
        BundleStatus(
            configuration="MutatingWebhookConfiguration/h", webhook="w", trust=TrustState.EMPTY
        )
    ],
    authorities=2,
    foreign_maker=False,
    now=NOON + timedelta(days=1),
)


def test_people_read_two_tables_and_what_is_wrong() -> None:
    assert as_text(REPORT) == (
        "made by FracGPU; 2 trusted authorities\n"
        "\n"
        "CERTIFICATE    FOR     NAMES                   SIGNED BY  NOT BEFORE            NOT AFTER"
        "             LEFT\n"
        "hook-tls       server  hook.ns.svc and 2 more  older      2026-01-05T12:00:00Z  "
        "2026-02-04T12:00:00Z  2505600 s (29 d)\n"
        "caller-client  client  -                       -          -                     -"
        "                     -\n"
        "\n"
        "WEBHOOK CONFIGURATION           WEBHOOK  BUNDLE\n"
        "MutatingWebhookConfiguration/h  w        has no bundle\n"
        "\n"
        "problem: Secret caller-client: there is none\n"
        "problem: MutatingWebhookConfiguration/h, webhook w: has no bundle"
    )


def test_programs_read_the_same_as_json() -> None:
    said = json.loads(json.dumps(as_json(REPORT)))

    assert said["certificates"][0] == {
        "secret": "hook-tls",
        "for": "server",
        "signedBy": "older",
        "problem": None,
        "names": ["127.0.0.1", "hook", "hook.ns.svc"],
        "notBefore": "2026-01-05T12:00:00Z",
        "notAfter": "2026-02-04T12:00:00Z",
        "leftS": 2_505_600,
        "sha256": "ab12",
    }
    assert said["problems"] == REPORT.problems


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (5, "5 s"),
        (61, "61 s (1 min)"),
        (7200, "7200 s (2 h)"),
        (2_591_999, "2591999 s (29 d)"),
        (-90_000, "-90000 s (-1 d)"),
    ],
)
def test_time_left_is_in_seconds_with_a_rough_figure_beside(seconds: int, text: str) -> None:
    assert duration(seconds) == text


@pytest.fixture
async def flags(api: ApiServer, kube: KubeClient, tmp_path: Path) -> AsyncIterator[list[str]]:
    """Run the role on an embedded API server; yield the flags to reach it."""
    await kube.create(NAMESPACES, {"metadata": {"name": "fracgpu-system"}})
    await apply(kube, MUTATING_WEBHOOKS, a_webhook("a.example.org"))
    kubeconfig = str(api.kubeconfig(tmp_path / "kubeconfig"))
    settings = CertsSettings(
        kubeconfig=kubeconfig, telemetry_host="127.0.0.1", telemetry_port=0, overlap_s=0.2
    )
    async with running_service(build(settings)):
        yield ["--kubeconfig", kubeconfig]


async def run(*argv: str) -> int:
    return await asyncio.to_thread(main, argv)


async def all_is_well(flags: Sequence[str]) -> bool:
    return await run("status", *flags) == 0


async def test_status_ends_with_zero_once_all_is_well_and_prints_no_key(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    await until(lambda: all_is_well(flags), what="status 0")
    capsys.readouterr()

    assert await run("status", "--json", *flags) == 0
    as_read = capsys.readouterr().out
    assert await run("status", *flags) == 0

    said = json.loads(as_read)
    assert (said["problems"], len(said["certificates"])) == ([], 4)
    printed = as_read + capsys.readouterr().out
    assert "PRIVATE" not in printed
    assert re.search(r"fracgpu-webhook-tls +server +\S+ and \d more +current", printed)


async def test_rotate_reports_what_it_waits_for_and_ends_with_the_new_state(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    await until(lambda: all_is_well(flags), what="status 0")
    capsys.readouterr()

    assert await run("rotate", "--ca", "--timeout-s", "20", *flags) == 0

    output = capsys.readouterr()
    assert output.err.startswith("asked to replace fracgpu-ca\n")
    assert "2 trusted authorities" in output.out


async def test_status_of_an_empty_cluster_is_one_and_names_what_is_missing(cli: Cli) -> None:
    kubeconfig = ["--kubeconfig", str(cli.api.kubeconfig(cli.folder / "kubeconfig"))]

    assert await run("status", *kubeconfig) == 1
    assert await run("rotate", *kubeconfig) == 1

    output = cli.read()
    assert "problem: Secret fracgpu-ca: there is none" in output.out
    assert "fracgpu certs: there is no certificate to replace" in output.err


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        ((), 2),
        (("renew",), 2),
        (("status", "--nonsense"), 2),
        (("status", "--services", "no_name"), 2),
        (("status", "--kubeconfig", "/nowhere/at/all"), 1),
        (("--help",), 0),
        (("rotate", "--help"), 0),
    ],
)
def test_the_exit_code_tells_whether_it_was_called_right(
    argv: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fracgpu(["certs", *argv]) == code
    output = capsys.readouterr()
    assert output.out + output.err
