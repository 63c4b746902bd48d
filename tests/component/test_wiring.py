"""The wiring, which each role reads once."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest

from component.wiring import Wiring, Wirings, parse_wirings, read_wirings
from kube.client import KubeClient
from kube.errors import KubeError
from process.lifecycle import EndProcess
from tests.fakes.clock import VirtualClock


class ConfigMapApi:
    """A transport to an API server that does not answer its first requests."""

    def __init__(self, data: Mapping[str, str] | None, *, failures: int = 0) -> None:
        self._data, self._failures = data, failures
        self.requests: list[tuple[str, str]] = []

    async def request(
        self, verb: str, path: str, *, query: Mapping[str, str] | None = None, **_: Any
    ) -> bytes:
        self.requests.append((path, (query or {})["fieldSelector"]))
        if len(self.requests) <= self._failures:
            raise KubeError(verb=verb, path=path, status=None, reason="Refused", message="refused")
        found = {"metadata": {"name": "fracgpu-config"}, "data": self._data}
        listing = {
            "metadata": {"resourceVersion": "1"},
            "items": [] if self._data is None else [found],
        }
        return json.dumps(listing).encode()

    def stream_lines(
        self, path: str, *, query: Mapping[str, str], inactivity_s: float
    ) -> AsyncGenerator[bytes, None]:
        raise AssertionError("the wiring is not watched")


async def wirings_of(api: ConfigMapApi) -> Wirings:
    return await read_wirings(KubeClient(api), namespace="fracgpu-system", clock=VirtualClock())


BOTH_BY_CLAIMS = Wirings(default=Wiring.CLAIMS, both=True)


@pytest.mark.parametrize(
    ("data", "wirings"),
    [
        (None, Wirings()),
        ({"pools": "[]"}, Wirings()),
        ({"wiring": "devicePlugin"}, Wirings()),
        ({"wiring": "claims"}, Wirings(default=Wiring.CLAIMS)),
        ({"wiring": "claims\n"}, Wirings(default=Wiring.CLAIMS)),
        ({"wiring": "devicePlugin+claims"}, Wirings(both=True)),
        ({"wiring": "claims+devicePlugin"}, BOTH_BY_CLAIMS),
    ],
)
async def test_the_key_says_the_wirings_and_without_it_there_is_the_device_plugin_alone(
    data: Mapping[str, str] | None, wirings: Wirings
) -> None:
    api = ConfigMapApi(data)
    assert await wirings_of(api) == wirings
    assert api.requests == [
        ("/api/v1/namespaces/fracgpu-system/configmaps", "metadata.name=fracgpu-config")
    ]


async def test_the_configmap_may_have_another_name() -> None:
    api = ConfigMapApi({"wiring": "claims"})
    await read_wirings(KubeClient(api), namespace="ns", clock=VirtualClock(), name="mine")
    assert api.requests == [("/api/v1/namespaces/ns/configmaps", "metadata.name=mine")]


@pytest.mark.parametrize("text", ["", "Claims", "claim", "dra", "claims+claims", "claims+"])
async def test_a_role_ends_on_a_wiring_that_it_does_not_know(text: str) -> None:
    with pytest.raises(EndProcess) as ended:
        await wirings_of(ConfigMapApi({"wiring": text}))
    assert str(ended.value) == (
        f"ConfigMap fracgpu-system/fracgpu-config: wiring is {text!r}; want devicePlugin or claims "
        "or devicePlugin+claims or claims+devicePlugin"
    )


def test_a_long_value_is_quoted_in_part() -> None:
    with pytest.raises(ValueError, match="wiring is 'xxx") as refused:
        parse_wirings("x" * 10_000)
    assert len(str(refused.value)) < 200


async def test_a_role_waits_for_the_api_server() -> None:
    clock, api = VirtualClock(), ConfigMapApi({"wiring": "claims"}, failures=3)
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(
            read_wirings(KubeClient(api), namespace="fracgpu-system", clock=clock)
        )
        await clock.advance(2)
        assert not reading.done()
        await clock.advance(1)
    assert reading.result() == Wirings(default=Wiring.CLAIMS)
    assert len(api.requests) == 4


def test_a_label_names_a_wiring_that_the_cluster_has() -> None:
    label = "fracgpu.io/wiring"
    assert BOTH_BY_CLAIMS.of({}) is Wiring.CLAIMS
    assert BOTH_BY_CLAIMS.of({label: "devicePlugin"}) is Wiring.DEVICE_PLUGIN
    assert Wirings().of({label: "devicePlugin"}) is Wiring.DEVICE_PLUGIN
    with pytest.raises(ValueError, match="is 'claims'; want devicePlugin, as the key wiring"):
        Wirings().of({label: "claims"})
    with pytest.raises(ValueError, match="is ''; want devicePlugin or claims, as"):
        BOTH_BY_CLAIMS.of({label: ""})
