"""The configuration with which a real kube-scheduler asks our extender."""

from pathlib import Path

import yaml

from simulator.scheduler_profile import ExtenderTls, scheduler_configuration

ROOT = Path(__file__).resolve().parents[2]


def test_it_is_the_configuration_that_we_install() -> None:
    installed = yaml.safe_load((ROOT / "deploy" / "scheduler-profile.yaml").read_text())

    ours = scheduler_configuration(
        extender_url="https://fracgpu-scheduler-leader.fracgpu-system.svc:9404",
        kubeconfig=Path("k"),
        tls=ExtenderTls(
            ca_file="/etc/fracgpu-client/ca.crt",
            cert_file="/etc/fracgpu-client/tls.crt",
            key_file="/etc/fracgpu-client/tls.key",
            server_name="fracgpu-scheduler.fracgpu-system.svc",
        ),
    )

    assert ours["profiles"] == installed["profiles"]
    assert ours["extenders"] == installed["extenders"]
