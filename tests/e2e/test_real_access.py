"""A role in a pod with a real kube-apiserver: a bound token that kubelet replaces."""

import shutil
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from kube.access import connect
from kube.client import KubeClient
from kube.credentials.in_cluster import in_cluster_server
from kube.kinds import SERVICE_ACCOUNTS, Kind
from kube.transport import open_transport
from simulator.demo.service_accounts import issue_token
from tests.support.real_apiserver import real_api_server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

_REVIEWS: Final = Kind(
    "authentication.k8s.io/v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False
)
_TOKEN_ID: Final = "authentication.kubernetes.io/credential-id"  # noqa: S105 - a key


async def seen(client: KubeClient) -> tuple[str, Any]:
    """Return as whom the API server sees the caller, and by which token."""
    user = (await client.create(_REVIEWS, {}))["status"]["userInfo"]
    return user["username"], user["extra"][_TOKEN_ID]


async def test_a_pod_presents_its_service_accounts_token_and_a_minute_later_its_successor(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    async with (
        real_api_server(tmp_path / "api") as api,
        connect(api.kubeconfig(tmp_path / "admin")) as admin,
    ):
        body = {"metadata": {"name": "role", "namespace": "default"}}
        await admin.create(SERVICE_ACCOUNTS, body)

        async def renew() -> None:
            token = await issue_token(admin, namespace="default", account="role")
            (folder / "token").write_text(token)

        await renew()
        shutil.copy(api.ca_file, folder / "ca.crt")
        address, now_s = urlsplit(api.url), 0.0
        server = in_cluster_server(
            user_agent="test",
            environment={
                "KUBERNETES_SERVICE_HOST": str(address.hostname),
                "KUBERNETES_SERVICE_PORT": str(address.port),
            },
            folder=folder,
            monotonic=lambda: now_s,
        )
        async with open_transport(server) as transport:
            client = KubeClient(transport)
            user, first = await seen(client)
            await renew()
            now_s = 59.0
            _, still = await seen(client)
            now_s = 61.0
            again, second = await seen(client)

    assert user == again == "system:serviceaccount:default:role"
    assert first == still
    assert first != second
