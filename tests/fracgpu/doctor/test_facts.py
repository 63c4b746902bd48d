"""Facts that are read, and those that are not."""

from datetime import UTC, datetime

import pytest

from fracgpu.doctor.facts import NotKnownError, Unread, is_ready, known, time_of


def test_an_unread_fact_is_not_known() -> None:
    assert known(("a",)) == ("a",)
    with pytest.raises(NotKnownError, match="may not list nodes"):
        known(Unread("may not list nodes"))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2026-11-20T12:00:00Z", datetime(2026, 11, 20, 12, tzinfo=UTC)),
        ("2026-11-20T12:00:00.250000Z", datetime(2026, 11, 20, 12, 0, 0, 250_000, tzinfo=UTC)),
        ("2026-11-20T12:00:00", None),
        ("soon", None),
        (None, None),
    ],
)
def test_a_time_is_read_as_the_api_server_writes_it(text: object, wanted: datetime | None) -> None:
    assert time_of(text) == wanted


def test_a_pod_without_conditions_is_not_ready() -> None:
    assert not is_ready({"status": {}})
    assert is_ready({"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
