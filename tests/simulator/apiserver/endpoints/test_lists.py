from __future__ import annotations

import pytest

from simulator.apiserver.apimachinery.errors import ApiError
from simulator.apiserver.apimachinery.resources import PODS
from simulator.apiserver.apimachinery.storage import Key, Store
from simulator.apiserver.endpoints.lists import Lister, ListOptions
from simulator.objects import Json, decode


def a_store(*names: str) -> Store:
    store = Store()
    for name in names:
        value: Json = {"metadata": {"name": name, "labels": {"name": name}}}
        store.write(Key("pods", "default", name), value, expected=0)
    return store


def page(lister: Lister, **options: object) -> Json:
    found: Json = decode(lister.page(PODS, ListOptions(**options)))  # type: ignore[arg-type]
    return found


def names(listed: Json) -> list[str]:
    return [item["metadata"]["name"] for item in listed["items"]]


def test_a_forgotten_page_is_gone_and_a_broken_token_is_told() -> None:
    lister = Lister(a_store("a", "b"))
    token = page(lister, limit=1)["metadata"]["continue"]
    lister.forget()

    with pytest.raises(ApiError) as gone:
        page(lister, token=token)
    assert (gone.value.code, gone.value.reason) == (410, "Expired")
    for broken in ("abc", "eyJ9", "bnVsbA=="):
        with pytest.raises(ApiError, match="continue key is not valid"):
            page(lister, token=broken)


def test_only_so_many_paged_lists_are_remembered() -> None:
    lister = Lister(a_store("a", "b"))
    tokens = [page(lister, limit=1)["metadata"]["continue"] for _ in range(101)]

    with pytest.raises(ApiError, match="too old"):
        page(lister, token=tokens[0])
    assert names(page(lister, token=tokens[1])) == ["b"]
