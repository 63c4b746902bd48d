"""Which requests the page answers."""

import pytest

from scheduler.page.requests import SECURITY_HEADERS, why_not_answered


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "localhost:9405"},
        {"Host": "LOCALHOST"},
        {"Host": "127.0.0.1:18080"},
        {"Host": "[::1]:9405"},
        {"Host": "localhost:1", "Origin": "http://localhost:1"},
        {"Host": "localhost:1", "Sec-Fetch-Site": "same-origin"},
        {"Host": "localhost:1", "Sec-Fetch-Site": "none"},
        {
            "Host": "localhost:1",
            "Sec-Fetch-Site": "cross-site",
            "Sec-Fetch-Mode": "navigate",
            "Sec-Fetch-Dest": "document",
        },
    ],
)
def test_the_page_itself_and_whoever_typed_its_address_are_answered(
    headers: dict[str, str],
) -> None:
    assert why_not_answered(headers) is None


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "localhost.evil.example:9405", "127.0.0.1.evil.example", "10.0.0.7:9405"],
)
def test_a_name_that_was_made_to_lead_here_is_refused(host: str) -> None:
    assert "forwarded port" in (why_not_answered({"Host": host}) or "")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "http://localhost:2"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    ],
)
def test_another_sites_page_is_refused(headers: dict[str, str]) -> None:
    assert "another site" in (why_not_answered({"Host": "localhost:1", **headers}) or "")


def test_the_browser_is_told_to_run_nothing_but_our_files() -> None:
    policy = SECURITY_HEADERS["Content-Security-Policy"].split("; ")

    assert policy[0] == "default-src 'none'"
    assert {"script-src 'self'", "frame-ancestors 'none'", "trusted-types 'none'"} <= set(policy)
    assert "unsafe" not in SECURITY_HEADERS["Content-Security-Policy"]
