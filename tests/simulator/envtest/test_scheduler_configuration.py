"""The configuration with which a real kube-scheduler calls our extender."""

from pathlib import Path

import yaml

from simulator.envtest.scheduler_configuration import ExtenderTls, scheduler_configuration

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"


def test_the_scheduler_profile_is_the_one_the_real_kube_scheduler_was_tried_with() -> None:
    shipped = yaml.safe_load((DEPLOY / "scheduler-profile.yaml").read_text())
    proven = scheduler_configuration(
        extender_url="https://fracgpu-scheduler-leader.fracgpu-system.svc:9404",
        kubeconfig=Path("/nowhere"),
        tls=ExtenderTls(
            ca_file="/etc/fracgpu-client/ca.crt",
            cert_file="/etc/fracgpu-client/tls.crt",
            key_file="/etc/fracgpu-client/tls.key",
            server_name="fracgpu-scheduler.fracgpu-system.svc",
        ),
    )

    # In a pod it has the pod's credentials, and elects a leader.
    del proven["clientConnection"], proven["leaderElection"], shipped["leaderElection"]
    assert shipped == proven
