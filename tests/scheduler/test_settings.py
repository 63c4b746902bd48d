"""Settings of the scheduler extender."""

import pytest

from process.settings import SettingsError, load
from scheduler.settings import SchedulerSettings


def test_by_default_only_the_same_pod_can_ask() -> None:
    settings = load(SchedulerSettings, [], {}, program="scheduler")

    assert (settings.listen_host, settings.listen_port) == ("127.0.0.1", 9404)
    assert settings.telemetry_port == 9403
    assert (settings.namespace, settings.config_map) == ("fracgpu-system", "fracgpu-config")


def test_the_waits_must_grow() -> None:
    order = r"bind_pause_s \+ 2 \* bind_timeout_s < assumption_check_s < assumption"
    too_late = ["--bind-timeout-s", "4.9", "--bind-pause-s", "1", "--assumption-check-s", "10.5"]
    for flags in (["--assumption-check-s", "70"], too_late):
        with pytest.raises(SettingsError, match=order):
            load(SchedulerSettings, flags, {}, program="scheduler")


def test_a_binding_ends_before_another_replica_may_take_over() -> None:
    flags = ["--lease-duration-s", "12"]

    with pytest.raises(SettingsError, match="want less than a third of lease_duration_s, 12"):
        load(SchedulerSettings, flags, {}, program="scheduler")
    flags += ["--bind-timeout-s", "3.9"]
    assert load(SchedulerSettings, flags, {}, program="scheduler").lease_duration_s == 12


def test_a_variable_tunes_as_well() -> None:
    environ = {"FRACGPU_SCHEDULER_IDENTITY": "pod-7"}

    assert load(SchedulerSettings, [], environ, program="scheduler").identity == "pod-7"


def test_beyond_loopback_it_listens_only_with_a_certificate() -> None:
    flags = ["--listen-host", "10.0.0.7"]

    with pytest.raises(SettingsError, match="could bind pods; want a tls_secret"):
        load(SchedulerSettings, flags, {}, program="scheduler")
    named = [*flags, "--tls-secret", "s"]
    assert load(SchedulerSettings, named, {}, program="scheduler").listen_host == "10.0.0.7"


@pytest.mark.parametrize("address", ["", "fracgpu-scheduler", "10.0.0"])
def test_to_be_announced_it_must_know_its_address(address: str) -> None:
    flags = ["--announce-service=s", f"--announce-address={address}"]

    with pytest.raises(SettingsError, match="want this replica's IP address, for announce_service"):
        load(SchedulerSettings, flags, {}, program="scheduler")


def test_an_address_of_either_family_will_do() -> None:
    flags = ["--announce-service=s", "--announce-address=2001:db8::1"]

    loaded = load(SchedulerSettings, flags, {}, program="scheduler")
    assert loaded.announce_address == "2001:db8::1"


def test_a_port_that_nobody_knows_beforehand_is_not_announced() -> None:
    flags = ["--announce-service=s", "--announce-address=10.0.0.7", "--listen-port=0"]

    with pytest.raises(SettingsError, match="want the port of the Service that announce_service"):
        load(SchedulerSettings, flags, {}, program="scheduler")
    assert load(SchedulerSettings, flags[2:], {}, program="scheduler").listen_port == 0


def test_by_default_there_is_no_page() -> None:
    assert load(SchedulerSettings, [], {}, program="scheduler").page_port == 0
