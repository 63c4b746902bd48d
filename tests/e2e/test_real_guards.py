"""What guards pods, as the rebalancer sees it with the rights of deploy/, on a real API server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from kube.access import connect_to
from kube.client import KubeClient
from kube.kinds import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, SERVICE_ACCOUNTS
from rebalancer.cluster_cache import ClusterCache
from simulator.demo.service_accounts import issue_token
from tests.support.real_apiserver import real_api_server
from tests.support.scheduling import Json
from tests.support.waiting import until_true

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]


def shipped_rules() -> list[Json]:
    """Return the rules of the ClusterRole that ships."""
    documents = yaml.safe_load_all((ROOT / "deploy" / "rebalancer.yaml").read_text())
    role = next(found for found in documents if found["kind"] == "ClusterRole")
    rules: list[Json] = role["rules"]
    return rules


@asynccontextmanager
async def a_cache(workdir: Path, rules: list[Json]) -> AsyncIterator[ClusterCache]:
    """Follow a real API server with the rights of *rules* and no others."""
    async with (
        real_api_server(workdir) as api,
        connect_to(api.url, token=api.token, ca_file=api.ca_file) as admin,
    ):
        token = await an_account(admin, rules)
        async with (
            connect_to(api.url, token=token, ca_file=api.ca_file) as client,
            asyncio.TaskGroup() as group,
        ):
            cache = ClusterCache(client)
            tasks = [group.create_task(run()) for run in cache.tasks().values()]
            await cache.wait_synced()
            yield cache
            for task in tasks:
                task.cancel()


async def an_account(admin: KubeClient, rules: list[Json]) -> str:
    name = {"metadata": {"name": "looker"}}
    await admin.create(SERVICE_ACCOUNTS, {"metadata": {"name": "looker", "namespace": "default"}})
    await admin.create(CLUSTER_ROLES, {**name, "rules": rules})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "looker"}
    subject = {"kind": "ServiceAccount", "name": "looker", "namespace": "default"}
    await admin.create(CLUSTER_ROLE_BINDINGS, {**name, "roleRef": reference, "subjects": [subject]})
    return await issue_token(admin, namespace="default", account="looker")


async def test_the_rights_that_ship_are_enough_to_know_everything(tmp_path: Path) -> None:
    async with a_cache(tmp_path, shipped_rules()) as cache:
        await until_true(lambda: not cache.unknown, what="every kind is listed")

        assert cache.workloads().unknown == ()
        assert "default" in cache.scheduling().namespaces


async def test_a_kind_that_may_not_be_listed_is_unknown_and_stops_nothing_else(
    tmp_path: Path,
) -> None:
    rules = [rule for rule in shipped_rules() if "policy" not in rule["apiGroups"]]
    assert len(rules) < len(shipped_rules())

    async with a_cache(tmp_path, rules) as cache:
        assert cache.synced
        assert cache.workloads().unknown == ("poddisruptionbudgets",)
