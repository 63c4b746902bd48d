"""Which XID errors make a card unhealthy, code by code."""

import pytest

from deviceplugin.cards.xid import XIDS, Severity, severity, xid_meaning, xid_text

# What NVIDIA's own device plugin passes over as errors of programs (internal/rm/health.go).
PASSED_OVER_BY_NVIDIA = (13, 31, 43, 45, 68, 109)


@pytest.mark.parametrize("code", [*PASSED_OVER_BY_NVIDIA, 8, 11, 25, 32, 39, 69, 80, 94, 126, 139])
def test_what_a_tenant_can_cause_closes_no_card(code: int) -> None:
    assert severity(code) is Severity.PROGRAM


@pytest.mark.parametrize("code", [37, 44, 63, 92, 93, 106, 121, 137, 141, 160])
def test_what_the_catalog_has_ignored_closes_no_card(code: int) -> None:
    assert severity(code) is Severity.NOTICE


@pytest.mark.parametrize("code", [46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 145])
def test_what_the_catalog_wants_a_reset_or_an_inquiry_for_closes_the_card(code: int) -> None:
    assert severity(code) is Severity.CARD


@pytest.mark.parametrize("code", [1, 9, 47, 157, 171, 999])
def test_what_is_not_known_or_failed_to_be_repaired_closes_the_card(code: int) -> None:
    assert severity(code) is Severity.CARD


def test_a_code_has_the_same_name_in_events_and_in_metrics() -> None:
    for code, xid in XIDS.items():
        assert xid_text(code) == f"XID {code} ({xid.name})"
        assert xid_meaning(code) == xid.name
    assert (xid_text(999), xid_meaning(999)) == ("XID 999", "unknown error")
    assert xid_meaning(0) == "no error"
