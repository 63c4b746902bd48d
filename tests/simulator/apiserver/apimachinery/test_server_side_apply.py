"""Who owns which field, and what an apply changes."""

from collections.abc import Mapping
from typing import Any

import pytest

from simulator.apiserver.apimachinery.server_side_apply import (
    Applied,
    ApplyConflictError,
    FieldOwners,
    Fields,
    apply,
    fields_of,
    shown,
)

Json = dict[str, Any]
NOBODY: Mapping[str, Fields] = {}


def an_object(**spec: Any) -> Json:
    return {"apiVersion": "v1", "kind": "X", "metadata": {"name": "x"}, "spec": spec}


def containers(**images: str) -> list[Json]:
    return [{"name": name, "image": image} for name, image in images.items()]


def by(
    manager: str,
    live: Json,
    wanted: Json,
    owners: Mapping[str, Fields] = NOBODY,
    *,
    force: bool = False,
) -> Applied:
    return apply(live, wanted, owners, manager=manager, force=force)


def test_fields_are_told_as_in_messages_and_the_name_is_nobodys() -> None:
    wanted = an_object(replicas=2, containers=containers(a="i"), command=["x", "y"])

    assert sorted(map(shown, fields_of(wanted))) == [
        ".spec.command",
        '.spec.containers[name="a"]',
        '.spec.containers[name="a"].image',
        '.spec.containers[name="a"].name',
        ".spec.replicas",
    ]


def test_what_is_not_named_stays_and_items_merge_by_their_key() -> None:
    live = an_object(replicas=3, paused=True, containers=containers(a="i", b="j"))

    done = by("me", live, an_object(replicas=5, containers=containers(b="k", c="l")))

    spec = done.value["spec"]
    assert (spec["replicas"], spec["paused"]) == (5, True)
    assert spec["containers"] == containers(a="i", b="k", c="l")
    assert live["spec"]["replicas"] == 3, "the stored object must not change"


def test_what_the_manager_no_longer_wants_goes_unless_another_wants_it() -> None:
    both = an_object(replicas=2, paused=True, containers=containers(a="i", b="j"))
    first = by("me", an_object(), both)
    second = by("other", first.value, an_object(paused=True), first.owners)

    third = by("me", second.value, an_object(containers=containers(a="i")), second.owners)

    assert third.value["spec"] == {"paused": True, "containers": containers(a="i")}


def test_another_managers_value_is_a_conflict_and_the_same_value_is_shared() -> None:
    first = by("me", an_object(), an_object(replicas=2))
    by("other", first.value, an_object(replicas=2), first.owners)

    with pytest.raises(ApplyConflictError) as refused:
        by("other", first.value, an_object(replicas=3), first.owners)

    assert refused.value.conflicts == {("spec", "replicas"): "me"}


def test_force_takes_the_field_over() -> None:
    first = by("me", an_object(), an_object(replicas=2, paused=True))

    forced = by("other", first.value, an_object(replicas=3), first.owners, force=True)
    after = by("me", forced.value, an_object(paused=True), forced.owners)

    assert forced.value["spec"] == {"replicas": 3, "paused": True}
    assert after.value["spec"]["replicas"] == 3, "it is no longer ours to remove"


def test_applying_the_same_again_changes_nothing() -> None:
    wanted = an_object(replicas=2, containers=containers(a="i"), tolerations=[{"key": "k"}])
    first = by("me", an_object(), wanted)

    assert by("me", first.value, wanted, first.owners) == first


def test_the_oldest_owners_are_dropped() -> None:
    owners = FieldOwners(most=2)
    for uid in ("1", "2", "1", "3"):
        owners.keep(uid, {uid: frozenset()})

    assert [bool(owners.of(uid)) for uid in ("1", "2", "3")] == [True, False, True]
