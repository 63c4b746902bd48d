import pytest

from process.settings import SettingsError, load
from tests.webhook.builders import AGENT, REBALANCER
from webhook.settings import WebhookSettings


def test_the_webhook_starts_without_a_single_flag() -> None:
    settings = load(WebhookSettings, [], {}, program="webhook")

    assert (settings.listen_port, settings.tls_secret) == (8443, "fracgpu-webhook-tls")
    assert (settings.namespace, settings.scheduler_name) == ("fracgpu-system", "fracgpu-scheduler")
    assert settings.agent_users == (AGENT,)
    assert settings.rebalancer_users == (REBALANCER,)


def test_an_empty_scheduler_name_is_a_choice() -> None:
    environ = {"FRACGPU_WEBHOOK_SCHEDULER_NAME": ""}

    assert load(WebhookSettings, [], environ, program="webhook").scheduler_name == ""


def test_a_body_limit_of_nothing_is_refused() -> None:
    with pytest.raises(SettingsError, match="--body-limit-mib is '0'"):
        load(WebhookSettings, ["--body-limit-mib", "0"], {}, program="webhook")


def test_names_of_clients_without_their_authority_are_refused() -> None:
    """Without this check the webhook started, and answered 403 to every client."""
    with pytest.raises(SettingsError, match="kube-apiserver without client_ca_file"):
        load(WebhookSettings, ["--client-names", "kube-apiserver"], {}, program="webhook")
