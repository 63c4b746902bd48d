"""The wiring, which each role reads once."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest

from component.wiring import Wiring, parse_wiring, read_wiring
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


async def wiring_of(api: ConfigMapApi) -> Wiring:
    return await read_wiring(KubeClient(api), namespace="fracgpu-system", clock=VirtualClock())


@pytest.mark.parametrize(
    ("data", "wiring"),
    [
        (None, Wiring.DEVICE_PLUGIN),
        ({"pools": "[]"}, Wiring.DEVICE_PLUGIN),
        ({"wiring": "devicePlugin"}, Wiring.DEVICE_PLUGIN),
        ({"wiring": "claims"}, Wiring.CLAIMS),
        ({"wiring": "claims\n"}, Wiring.CLAIMS),
    ],
)
async def test_the_key_says_the_wiring_and_without_it_the_device_plugin_holds(
    data: Mapping[str, str] | None, wiring: Wiring
) -> None:
    api = ConfigMapApi(data)
    assert await wiring_of(api) is wiring
    assert api.requests == [
        ("/api/v1/namespaces/fracgpu-system/configmaps", "metadata.name=fracgpu-config")
    ]


@pytest.mark.parametrize("text", ["", "Claims", "claim", "dra"])
async def test_a_role_ends_on_a_wiring_that_it_does_not_know(text: str) -> None:
    with pytest.raises(EndProcess) as ended:
        await wiring_of(ConfigMapApi({"wiring": text}))
    assert str(ended.value) == (
        f"ConfigMap fracgpu-system/fracgpu-config: wiring is {text!r}; want devicePlugin or claims"
    )


def test_a_long_value_is_quoted_in_part() -> None:
    with pytest.raises(ValueError, match="wiring is 'xxx") as refused:
        parse_wiring("x" * 10_000)
    assert len(str(refused.value)) < 200


async def test_a_role_waits_for_the_api_server() -> None:
    clock, api = VirtualClock(), ConfigMapApi({"wiring": "claims"}, failures=3)
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(
            read_wiring(KubeClient(api), namespace="fracgpu-system", clock=clock)
        )
        await clock.advance(2)
        assert not reading.done()
        await clock.advance(1)
    assert reading.result() is Wiring.CLAIMS
    assert len(api.requests) == 4
