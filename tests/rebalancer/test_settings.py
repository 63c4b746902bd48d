"""Settings of the rebalancer."""

import pytest

from process.settings import SettingsError, load
from rebalancer.settings import RebalancerSettings


def test_only_the_address_of_prometheus_is_required() -> None:
    settings = load(
        RebalancerSettings, ["--prometheus-url", "http://prom:9090"], {}, program="rebalancer"
    )

    assert settings.prometheus_url == "http://prom:9090"
    assert settings.namespace == "fracgpu-system"
    assert settings.scheduler_name == "fracgpu-scheduler"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "--prometheus-url (or FRACGPU_REBALANCER_PROMETHEUS_URL) is missing"),
        (["--prometheus-url", "prom:9090"], "want http://... or https://..."),
        (["--prometheus-url", "http://"], "want http://... or https://..."),
        (["--prometheus-url", "http://p:99999"], "cannot be read: Port out of range"),
        (["--prometheus-url", "http://p?x=1"], "without what begins with '?'"),
        (["--prometheus-url", "http://me@p"], "has credentials; want them in files"),
        (["--prometheus-url", "http://p", "--query-timeout-s", "0"], "from 0.1 to 60"),
    ],
)
def test_a_mistake_is_named(argv: list[str], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(RebalancerSettings, argv, {}, program="rebalancer")

    assert message in str(caught.value)


def test_a_password_in_the_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(SettingsError) as caught:
        load(
            RebalancerSettings,
            ["--prometheus-url", "https://me:hunter22@prom:9090"],
            {},
            program="rebalancer",
        )

    assert "has credentials; want them in files, see --prometheus-credentials-dir" in str(
        caught.value
    )
    assert "hunter22" not in str(caught.value)
