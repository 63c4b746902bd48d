"""The watcher of one key of a ConfigMap."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from component.config_watcher import ConfigWatcher, strict_mapping
from component.metrics import ConfigMetrics
from kube.client import KubeClient
from simulator.background import background
from tests.support.waiting import until_true


class OneConfigMap:
    """A transport to an API server that has at most one ConfigMap; it can be edited."""

    def __init__(self, data: Mapping[str, str] | None) -> None:
        self._version = 1
        self._data = data
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self.queries: list[Mapping[str, str]] = []

    def edit(self, data: Mapping[str, str]) -> None:
        what = "ADDED" if self._data is None else "MODIFIED"
        self._version += 1
        self._data = data
        self._lines.put_nowait(_line(what, self._object()))

    def delete(self) -> None:
        self._version += 1
        self._lines.put_nowait(_line("DELETED", self._object()))
        self._data = None

    async def request(
        self, verb: str, path: str, *, query: Mapping[str, str] | None = None, **_: Any
    ) -> bytes:
        self.queries.append(query or {})
        items = [] if self._data is None else [self._object()]
        listing = {"metadata": {"resourceVersion": str(self._version)}, "items": items}
        return json.dumps(listing).encode()

    async def stream_lines(
        self, path: str, *, query: Mapping[str, str], inactivity_s: float
    ) -> AsyncGenerator[bytes, None]:
        while True:
            yield await self._lines.get()

    def _object(self) -> dict[str, object]:
        metadata = {
            "name": "settings",
            "namespace": "here",
            "uid": "u1",
            "resourceVersion": str(self._version),
        }
        return {"metadata": metadata, "data": self._data}


def _line(what: str, found: object) -> bytes:
    return json.dumps({"type": what, "object": found}).encode()


def _integer(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{text!r} is no whole number")
    return int(text)


class Calls:
    """What the watcher reported to its owner."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self.refusals: list[str] = []
        self.registry = CollectorRegistry()

    def shown(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"fracgpu_scheduler_{name}")


@asynccontextmanager
async def following(
    api: OneConfigMap, calls: Calls | None = None
) -> AsyncIterator[ConfigWatcher[int]]:
    calls = calls or Calls()
    watcher = ConfigWatcher(
        KubeClient(api),
        name="settings",
        namespace="here",
        key="limit",
        parse=_integer,
        default=7,
        on_change=calls.values.append,
        on_refused=calls.refusals.append,
        metrics=ConfigMetrics("scheduler", calls.registry),
    )
    async with background(watcher.run()):
        await watcher.wait_synced()
        yield watcher


async def test_the_names_of_all_keys_can_be_followed_instead() -> None:
    calls: list[str] = []
    api = OneConfigMap({"limit": "9"})
    watcher: ConfigWatcher[list[str]] = ConfigWatcher(
        KubeClient(api),
        name="settings",
        namespace="here",
        key=None,
        parse=lambda names: names.splitlines(),
        default=[],
        on_change=lambda names: calls.append(",".join(names)),
    )
    async with background(watcher.run()):
        await until_true(lambda: watcher.value == ["limit"], what="the edit counts")
        api.edit({"limit": "9", "burst": "1"})
        await until_true(lambda: watcher.value == ["burst", "limit"], what="the edit counts")
        api.edit({"limit": "10", "burst": "1"})
        api.delete()
        await until_true(lambda: watcher.value == [], what="the edit counts")
    assert calls == ["limit", "burst,limit", ""]


async def test_without_a_config_map_the_default_holds() -> None:
    async with following(OneConfigMap(None)) as watcher:
        assert (watcher.value, watcher.problem, watcher.synced) == (7, "", True)


async def test_only_the_one_config_map_is_asked_for() -> None:
    api = OneConfigMap(None)
    async with following(api):
        assert api.queries[0]["fieldSelector"] == "metadata.name=settings"


async def test_what_is_written_already_holds_once_synced() -> None:
    async with following(OneConfigMap({"limit": "9"})) as watcher:
        assert watcher.value == 9


async def test_an_edit_is_followed_and_told() -> None:
    api, calls = OneConfigMap({"limit": "9"}), Calls()
    async with following(api, calls) as watcher:
        api.edit({"limit": "10"})
        await until_true(lambda: watcher.value == 10, what="the edit counts")
    assert calls.values == [9, 10]


async def test_a_bad_edit_keeps_the_last_good_value_and_says_so() -> None:
    api, calls = OneConfigMap({"limit": "9"}), Calls()
    async with following(api, calls) as watcher:
        api.edit({"limit": "many"})
        await until_true(lambda: watcher.problem != "", what="the edit counts")
        assert watcher.value == 9
        assert (calls.shown("config_valid"), calls.shown("config_refused_total")) == (0, 1)
    assert calls.refusals == ["'many' is no whole number"]
    assert calls.values == [9]


async def test_a_good_edit_ends_the_problem() -> None:
    api = OneConfigMap({"limit": "many"})
    async with following(api) as watcher:
        assert (watcher.value, watcher.problem) == (7, "'many' is no whole number")
        api.edit({"limit": "8"})
        await until_true(lambda: watcher.value == 8, what="the edit counts")
        assert watcher.problem == ""


async def test_an_edit_of_another_key_changes_nothing() -> None:
    api, calls = OneConfigMap({"limit": "many"}), Calls()
    async with following(api, calls) as watcher:
        api.edit({"limit": "many", "other": "x"})
        api.edit({"limit": "3", "other": "x"})
        await until_true(lambda: watcher.value == 3, what="the edit counts")
    assert len(calls.refusals) == 1


async def test_a_deleted_key_or_config_map_means_the_default_again() -> None:
    api = OneConfigMap({"limit": "9"})
    async with following(api) as watcher:
        api.edit({})
        await until_true(lambda: watcher.value == 7, what="the edit counts")
        api.edit({"limit": "11"})
        await until_true(lambda: watcher.value == 11, what="the edit counts")
        api.delete()
        await until_true(lambda: watcher.value == 7, what="the edit counts")


def test_a_mapping_is_read() -> None:
    assert strict_mapping("strategy: pack\nhotRatio: 0.9") == {"strategy": "pack", "hotRatio": 0.9}


def test_numbers_that_have_one_meaning_are_read() -> None:
    found = strict_mapping("a: 0\nb: -10\nc: 0x1f\nd: 0.50\ne: '010'\nf: 1_000")

    assert found == {"a": 0, "b": -10, "c": 31, "d": 0.5, "e": "010", "f": 1000}


def test_an_empty_text_is_an_empty_mapping() -> None:
    assert strict_mapping("# nothing yet\n") == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("strategy: pack\nstrategy: spread", "the key 'strategy' appears twice"),
        ("a: {b: 1, b: 2}", "the key 'b' appears twice"),
        ("- pack", "found list; want a mapping"),
        ("pack", "found str; want a mapping"),
        ("1: pack", "want a mapping"),
        ("strategy: [pack", "not YAML: while parsing a flow sequence in"),
        ("[a]: pack", "not YAML"),
        ("!!python/object/apply:os.getcwd []", "not YAML"),
        ("day: 2026-13-45", "month must be in 1..12"),
        ("on: !!bool maybe", "a value that is not what its tag (!!...) says"),
        ("limit: !!int ''", "a value that is not what its tag (!!...) says"),
        ("at: !!timestamp noon", "a value that is not what its tag (!!...) says"),
        ("limit: 010", "010 is no decimal number in YAML"),
        ("limit: -0_17", "-0_17 is no decimal number in YAML"),
        ("limit: 1:30", "1:30 is no decimal number in YAML"),
        ("limit: " + 65536 * "1", "has 65543 characters; want at most 65536"),
        ("a: &x [1]\nb: *x", "*x is an alias; want its value written out"),
        ("a: &x {limit: 1}\nb: {<<: *x}", "*x is an alias; want its value written out"),
    ],
)
def test_what_is_no_plain_mapping_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        strict_mapping(text)


def test_a_short_text_that_stands_for_a_billion_values_is_refused_at_once() -> None:
    doubled = "".join(f"a{n}: &a{n} [{', '.join(9 * [f'*a{n - 1}'])}]\n" for n in range(1, 12))

    with pytest.raises(ValueError, match="is an alias"):
        strict_mapping(f"a0: &a0 [x]\n{doubled}")


def test_a_bottomless_mapping_is_refused() -> None:
    with pytest.raises(ValueError, match="not YAML: maximum recursion depth"):
        strict_mapping("{a: " * 5000 + "}" * 5000)
