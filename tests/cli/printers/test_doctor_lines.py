"""A check-up for people and for programs."""

from datetime import timedelta

from cli.printers.doctor_lines import doctor_lines
from cli.printers.text import Tone
from fracgpu.doctor.checkup import examine
from fracgpu.doctor.facts import CertificateFact, CertificatesFact, Unread
from tests.support.examined import NOON, healthy

SOON = CertificateFact(secret="tls", not_after=NOON + timedelta(days=3))
RESULTS = examine(
    healthy(
        mutating_webhooks=(),
        certificates=CertificatesFact(certificates=(SOON,)),
        prometheus=Unread("may not"),
    )
)


def test_errors_come_first_each_with_its_cure_and_then_what_was_not_checked() -> None:
    lines = list(doctor_lines(RESULTS))

    assert [line.text.partition(":")[0] for line in lines[:5]] == [
        "error", "  cure", "warning", "  cure", "not checked"
    ]  # fmt: skip
    assert lines[0].tone is Tone.BAD
    assert lines[0].text.endswith("[webhook-registered]")
    assert lines[4].text == "not checked: Prometheus has every series: may not  [prometheus]"
    assert lines[5].text == (
        f"{len(RESULTS)} checks: {len(RESULTS) - 3} ok, 1 not checked or only in part; "
        "1 error, 1 warning"
    )
    assert len(lines) == 6


def test_what_is_fine_is_listed_where_that_was_asked_for() -> None:
    lines = [line.text for line in doctor_lines(RESULTS, wide=True)]

    assert "ok: Clocks agree with the API server's  [clocks]" in lines
    assert sum(line.startswith("ok: ") for line in lines) == len(RESULTS) - 3
