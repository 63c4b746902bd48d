"""The agent's settings."""

from pathlib import Path

import pytest

from deviceplugin.settings import DevicePluginSettings
from process.settings import SettingsError, load


def test_only_the_node_name_must_be_given() -> None:
    settings = load(DevicePluginSettings, ["--node-name", "gpu-1"], {}, program="deviceplugin")

    assert settings.cards == "auto"
    assert settings.slots_per_card == 32
    assert settings.device_plugins_dir == Path("/var/lib/kubelet/device-plugins")
    assert settings.pod_resources_socket == Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    assert settings.cdi_dir == Path("/var/run/cdi")
    assert settings.standstill_s(period_s=settings.survey_period_s) == 90


def test_a_variable_gives_the_node_name_as_the_daemonset_does() -> None:
    environ = {"FRACGPU_DEVICEPLUGIN_NODE_NAME": "gpu-1"}

    assert load(DevicePluginSettings, [], environ, program="deviceplugin").node_name == "gpu-1"


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        load(DevicePluginSettings, ["--slots-per-card", "0"], {}, program="deviceplugin")

    text = str(caught.value)
    assert "--node-name" in text
    assert "--slots-per-card is '0'; want a whole number from 1 to 1024" in text
