from __future__ import annotations

from simulator.apiserver.apimachinery.resources import ALL, PODS, find, is_served


def test_no_path_is_served_twice() -> None:
    paths = [(resource.group, resource.version, resource.plural) for resource in ALL]

    assert len(set(paths)) == len(paths)
    assert all(find(*path) is resource for path, resource in zip(paths, ALL, strict=True))


def test_what_is_not_in_the_table_is_not_served() -> None:
    assert find("", "v1", "things") is None
    assert find("apps", "v1", "pods") is None
    assert not is_served("example.org", "v1")
    assert not is_served("apps", "v1beta1")
    assert PODS.has_status
