"""fracgpu-config on a real kube-apiserver: roles report bad edits with their own permissions."""

import urllib.request
from asyncio import to_thread
from pathlib import Path

import pytest

from fracgpu import names
from kube.access import connect
from kube.client import KubeClient
from kube.kinds import CONFIGMAPS, EVENTS
from kube.objects import decode_object
from simulator.demo.service_accounts import token_of
from simulator.envtest.control_plane import ControlPlane
from simulator.envtest.ports import free_ports
from simulator.kubeconfig import write_kubeconfig
from tests.support.kubectl import DEPLOY, Kubectl
from tests.support.real_apiserver import real_api_server
from tests.support.roles import Roles, running_roles
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

IN_USE = "is not in use, the last good one is"
REFUSALS = {
    "webhook": {
        f"key admission {IN_USE}: voidOther is not a key here; did you mean voidOthers?",
        "placment is not a key here; did you mean placement?; "
        "want only admission, placement, pools, rebalancer, wiring",
    },
    "scheduler": {
        f"key placement {IN_USE}: stategy is not a key here; did you mean strategy?; "
        "want only strategy, overcommit"
    },
    "rebalancer": {f"key rebalancer {IN_USE}: hotRatoi is not a key here; did you mean hotRatio?"},
}
BAD = {
    "admission": "voidOther: false",
    "placement": "stategy: spread",
    "placment": "strategy: spread",
    "rebalancer": "hotRatoi: 0.9",
}


async def account(api: ControlPlane, client: KubeClient, role: str, folder: Path) -> Path:
    """Write a kubeconfig of a role's service account; return its path."""
    return write_kubeconfig(
        folder / f"{role}.kubeconfig",
        server=api.url,
        token=await token_of(client, role),
        ca_file=api.ca_file,
    )


async def shows(roles: Roles, role: str, line: str) -> bool:
    def ask() -> bool:
        url = f"http://127.0.0.1:{roles.telemetry[role]}/metrics"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return line in answer.read().decode().splitlines()
        except OSError:
            return False

    return await to_thread(ask)


async def reported(client: KubeClient) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {role: set() for role in REFUSALS}
    for raw in (await client.list(EVENTS, namespace=names.SYSTEM_NAMESPACE)).items:
        event = decode_object(raw)
        if event["reason"] == "ConfigRefused":
            assert event["involvedObject"]["name"] == names.CONFIG_MAP
            role = event["source"]["component"].removeprefix("fracgpu-")
            found[role].add(event["message"])
    return found


async def test_every_bad_or_misspelt_key_in_fracgpu_config_makes_an_event_and_a_metric(
    tmp_path: Path,
) -> None:
    listen = free_ports(2)
    async with real_api_server(tmp_path) as api:
        admin = api.kubeconfig(tmp_path / "admin.kubeconfig")
        kubectl = Kubectl.find(admin)
        await kubectl("apply", "-k", str(DEPLOY))
        async with connect(admin) as client:
            accounts = {name: await account(api, client, name, tmp_path) for name in REFUSALS}
            flags = {
                "webhook": [f"--listen-port={listen[0]}"],
                "scheduler": [f"--listen-port={listen[1]}"],
                "rebalancer": ["--prometheus-url=http://127.0.0.1:9"],
            }
            async with running_roles(flags, kubeconfig=accounts, log_dir=tmp_path) as roles:

                async def all_valid() -> bool:
                    said = [
                        await shows(roles, role, f"fracgpu_{role}_config_valid 1.0")
                        for role in REFUSALS
                    ]
                    return all(said)

                await until(all_valid, what="each role uses what deploy/ says", limit_s=60)
                await client.patch(
                    CONFIGMAPS,
                    names.CONFIG_MAP,
                    {"data": BAD},
                    namespace=names.SYSTEM_NAMESPACE,
                )

                async def all_reported() -> bool:
                    return await reported(client) == REFUSALS

                await until(all_reported, what="every mistake is told in an Event", limit_s=60)
                for role in REFUSALS:
                    assert await shows(roles, role, f"fracgpu_{role}_config_valid 0.0"), role
