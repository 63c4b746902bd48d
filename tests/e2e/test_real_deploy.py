"""deploy/ on a real control plane: all accepted, with enough permissions for every role."""

import os
import tempfile
from pathlib import Path
from typing import Final

import pytest

from component.wiring import Wiring
from process.clock import SystemClock
from simulator.demo.promises import judge
from simulator.demo.rig import RigSettings, open_rig
from simulator.demo.script import Progress, Script, play_within
from simulator.envtest.control_plane import ASSETS_ENV, find_assets
from tests.support.permissions import (
    Permission,
    audit_flags,
    calls,
    missing,
    permissions,
    spare,
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

HERE: Final = Path(__file__).parent


# What the loop does not use, and the test in which it is used.
ELSEWHERE: Final = {
    "certs: get deployments.apps fracgpu-scheduler": "test_real_scheduler_rollout",
    "certs: patch deployments.apps fracgpu-scheduler": "test_real_scheduler_rollout",
    "certs: list endpointslices.discovery.k8s.io": "test_real_rotation",
    "certs: update secrets fracgpu-ca": "test_real_rotation",
    "certs: update secrets fracgpu-scheduler-client": "test_real_rotation",
    "certs: update secrets fracgpu-scheduler-tls": "test_real_rotation",
    "certs: update secrets fracgpu-webhook-tls": "test_real_rotation",
    "deviceplugin: create events": "test_real_lifecycle",
    "deviceplugin: delete pods": "test_real_pod_deletions",
    "deviceplugin: delete resourceslices.resource.k8s.io": "test_real_claims_node",
    "rebalancer: delete moves.fracgpu.io": "test_real_policies_moves",
    "rebalancer: get jobs.batch": "test_real_policies_moves",
    "rebalancer: get replicationcontrollers": "test_real_policies_moves",
    "rebalancer: get statefulsets.apps": "test_real_policies_moves",
    "rebalancer: patch events": "test_real_policies_moves",
    "scheduler: create endpointslices.discovery.k8s.io": "test_real_scheduler_rollout",
    "scheduler: create events": "test_real_config",
    "scheduler: create pods/eviction": "test_real_claims_preemption",
    "scheduler: delete endpointslices.discovery.k8s.io fracgpu-scheduler-leader": (
        "test_real_scheduler_rollout"
    ),
    "scheduler: get endpointslices.discovery.k8s.io fracgpu-scheduler-leader": (
        "test_real_scheduler_rollout"
    ),
    "scheduler: update endpointslices.discovery.k8s.io fracgpu-scheduler-leader": (
        "test_real_scheduler_rollout"
    ),
    "scheduler: delete resourceclaims.resource.k8s.io": "test_real_policies_claims",
    "scheduler: get pods": "test_real_fence",
    "scheduler: patch pods/status": "test_real_fence",
    "scheduler: list secrets fracgpu-scheduler-tls": "test_real_scheduler_rollout",
    "scheduler: watch secrets fracgpu-scheduler-tls": "test_real_scheduler_rollout",
    # kube-scheduler beside the extender, which the demo runs as an administrator.
    "scheduler: get leases.coordination.k8s.io fracgpu-scheduler": "test_real_scheduler_rollout",
    "scheduler: update leases.coordination.k8s.io fracgpu-scheduler": (
        "test_real_scheduler_rollout"
    ),
    "webhook: create events": "test_real_config",
    "webhook: get namespaces": "test_real_webhook",
}


# What agents of an earlier version prepare claims by, until the DaemonSet has replaced the last.
BEFORE: Final = frozenset({"deviceplugin: get pods"})


def excused(permission: Permission) -> bool:
    """Report whether another test uses it, or another version."""
    return str(permission) in BEFORE.union(ELSEWHERE)


def test_each_permission_that_the_loop_does_not_use_is_granted_and_has_a_test() -> None:
    granted = {str(each) for wiring in Wiring for each in permissions(wiring)}

    assert BEFORE.union(ELSEWHERE) <= granted
    assert [name for name in ELSEWHERE.values() if not (HERE / f"{name}.py").exists()] == []


@pytest.mark.parametrize("wiring", Wiring)
async def test_the_whole_loop_holds_with_the_accounts_rights_and_policies_of_deploy(
    wiring: Wiring,
) -> None:
    if not os.environ.get(ASSETS_ENV):
        pytest.skip(f"{ASSETS_ENV} is not set: no real kube-apiserver to test against")
    # Sockets are in it, so its path must be short.
    with tempfile.TemporaryDirectory(prefix="fg-", dir="/tmp") as folder:
        settings = RigSettings(
            assets=find_assets(os.environ[ASSETS_ENV]),
            api_flags=audit_flags(Path(folder)),
            wiring=wiring,
        )
        async with open_rig(settings, Path(folder), SystemClock()) as rig:
            progress = Progress()
            script = Script(rig, SystemClock(), progress)
            trouble = await play_within(script, 420)
            promises = judge(await script.facts())
            forbidden = [
                line
                for name in rig.supervisor.names()
                for line in rig.supervisor.log_file(name).read_text().splitlines()
                if "answered 403" in line
            ]
        made = calls(Path(folder))

    assert trouble == ""
    assert [promise for promise in promises if not promise.held] == []
    assert forbidden == []
    assert missing(made) == set(), "deploy/ lacks a permission"
    unused = {each for each in spare(permissions(wiring), made) if not excused(each)}
    assert "; ".join(sorted(map(str, unused))) == "", "deploy/ grants what no role uses"
