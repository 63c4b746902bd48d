"""What the API server promises about Moves, whose definition is that of deploy/."""

import json
from typing import Any

import pytest

from fracgpu.state.move_object import MovePhase, MoveStatus, decode_move
from kube.client import KubeClient, PatchType
from kube.errors import Conflict, Invalid, KubeError
from kube.kinds import MOVES
from simulator.demo.definitions import install_definitions
from tests.support.moves import move_body, move_of, status_body

A_BENEFICIARY = {
    "namespace": "team-a",
    "name": "large",
    "uid": "uid-large",
    "cards": ["GPU-source"],
    "heldUntil": "2026-01-01T12:10:00Z",
}


@pytest.fixture
async def name(client: KubeClient, namespace: str) -> str:
    """Return a name of the test's own, on a server that serves Moves."""
    await install_definitions(client)
    return f"move-of-{namespace}"


async def created(client: KubeClient, name: str) -> dict[str, Any]:
    return await client.create(MOVES, move_body(move_of(name)))


async def test_a_move_is_stored_as_it_was_written(client: KubeClient, name: str) -> None:
    move = move_of(name)

    await client.create(MOVES, move_body(move))

    found = decode_move(await client.get(MOVES, name))
    assert found.spec == move.spec
    assert found.status == MoveStatus()
    assert found.metadata.uid
    assert [decode_move(item).spec for item in (await client.list(MOVES)).items
            if decode_move(item).name == name] == [move.spec]  # fmt: skip


async def test_the_items_of_a_list_of_moves_name_their_kind(client: KubeClient, name: str) -> None:
    await created(client, name)

    items = [json.loads(bytes(item)) for item in (await client.list(MOVES)).items]

    assert {(item["apiVersion"], item["kind"]) for item in items} == {(MOVES.group_version, "Move")}


async def test_the_status_of_a_new_move_is_dropped(client: KubeClient, name: str) -> None:
    body = move_body(move_of(name)) | {"status": {"phase": "Done"}}

    assert "status" not in await client.create(MOVES, body)


async def test_the_status_is_written_by_its_subresource_alone(
    client: KubeClient, name: str
) -> None:
    await created(client, name)
    both = {"metadata": {"labels": {"x": "1"}}, "status": {"phase": "Reserved"}}

    by_the_front = await client.patch(MOVES, name, both)
    by_its_own = await client.patch(
        MOVES,
        name,
        {
            "metadata": {"labels": {"x": "2"}},
            "spec": {"method": "other"},
            "status": {"phase": "Reserved"},
        },
        subresource="status",
    )

    assert "status" not in by_the_front
    assert by_its_own["status"] == {"phase": "Reserved"}
    assert by_its_own["metadata"]["labels"] == {"x": "1"}
    assert by_its_own["spec"]["method"] == "hot-card"


async def test_a_replaced_status_may_be_left_out(client: KubeClient, name: str) -> None:
    first = await created(client, name)
    second = await client.replace(
        MOVES, first | {"status": {"phase": "Planned"}}, subresource="status"
    )
    del second["status"]

    third = await client.replace(MOVES, second, subresource="status")

    assert "status" not in third


async def test_the_spec_of_a_move_never_changes(client: KubeClient, name: str) -> None:
    first = await created(client, name)

    with pytest.raises(Invalid) as caught:
        await client.patch(MOVES, name, {"spec": {"method": "other"}})

    assert [(cause.field, cause.message) for cause in caught.value.causes] == [
        ("spec", "Invalid value: the spec of a Move never changes")
    ]
    labelled = await client.replace(
        MOVES, first | {"metadata": first["metadata"] | {"labels": {"x": "1"}}}
    )
    assert labelled["metadata"]["generation"] == 1
    assert labelled["spec"] == first["spec"]


async def test_a_stale_status_conflicts(client: KubeClient, name: str) -> None:
    first = await created(client, name)
    await client.patch(MOVES, name, {"status": {"phase": "Reserved"}}, subresource="status")

    for write in (
        client.replace(MOVES, first | {"status": {"phase": "Done"}}, subresource="status"),
        client.patch(
            MOVES,
            name,
            {
                "metadata": {"resourceVersion": first["metadata"]["resourceVersion"]},
                "status": {"phase": "Done"},
            },
            subresource="status",
        ),
    ):
        with pytest.raises(Conflict):
            await write

    assert decode_move(await client.get(MOVES, name)).status.phase is MovePhase.RESERVED


async def test_a_replacement_without_a_version_is_invalid(client: KubeClient, name: str) -> None:
    body = await created(client, name)
    del body["metadata"]["resourceVersion"]

    with pytest.raises(Invalid) as caught:
        await client.replace(MOVES, body)

    assert [cause.field for cause in caught.value.causes] == ["metadata.resourceVersion"]


async def test_a_patch_that_depends_on_the_version_changes_the_status_once(
    client: KubeClient, name: str
) -> None:
    first = await created(client, name)
    patch = [
        {
            "op": "test",
            "path": "/metadata/resourceVersion",
            "value": first["metadata"]["resourceVersion"],
        },
        {"op": "add", "path": "/status", "value": {"phase": "Reserved"}},
    ]

    await client.patch(MOVES, name, patch, subresource="status", how=PatchType.JSON)

    with pytest.raises(Invalid):
        await client.patch(MOVES, name, patch, subresource="status", how=PatchType.JSON)


async def test_a_strategic_patch_is_not_understood(client: KubeClient, name: str) -> None:
    await created(client, name)

    with pytest.raises(KubeError) as caught:
        await client.patch(MOVES, name, {"metadata": {}}, how=PatchType.STRATEGIC)

    assert caught.value.status == 415


async def test_unknown_fields_are_dropped(client: KubeClient, name: str) -> None:
    body = move_body(move_of(name))
    body["spec"]["colour"] = "red"
    body["spec"]["pod"]["colour"] = "red"
    body["colour"] = "red"

    made = await client.create(MOVES, body)

    assert "colour" not in made | made["spec"] | made["spec"]["pod"]


@pytest.mark.parametrize(
    ("path", "value", "field", "reason"),
    [
        ("mode", "Magic", "spec.mode", "FieldValueNotSupported"),
        ("mode", None, "spec.mode", "FieldValueRequired"),
        ("request.mib", -1, "spec.request.mib", "FieldValueInvalid"),
        ("request.mib", 1.5, "spec.request.mib", "FieldValueTypeInvalid"),
        ("request.mib", "8Gi", "spec.request.mib", "FieldValueTypeInvalid"),
        ("request.mib", True, "spec.request.mib", "FieldValueTypeInvalid"),
        ("request.mib", 16 * 1024 * 1024 + 1, "spec.request.mib", "FieldValueInvalid"),
        ("request.cores", 101, "spec.request.cores", "FieldValueInvalid"),
        ("pod.name", "", "spec.pod.name", "FieldValueInvalid"),
        ("target.node", "n" * 254, "spec.target.node", "FieldValueTooLong"),
        ("reservedUntil", "tomorrow", "spec.reservedUntil", "FieldValueTypeInvalid"),
        ("pod", "web-1", "spec.pod", "FieldValueTypeInvalid"),
        (
            "beneficiary",
            A_BENEFICIARY | {"cards": []},
            "spec.beneficiary.cards",
            "FieldValueInvalid",
        ),
        (
            "beneficiary",
            A_BENEFICIARY | {"cards": ["GPU-a", ""]},
            "spec.beneficiary.cards[1]",
            "FieldValueInvalid",
        ),
    ],
)
async def test_a_move_that_is_none_is_invalid_and_the_field_is_named(
    client: KubeClient, name: str, path: str, value: object, field: str, reason: str
) -> None:
    body = move_body(move_of(name))
    *parents, last = path.split(".")
    holder = body["spec"]
    for parent in parents:
        holder = holder[parent]
    if value is None:
        del holder[last]
    else:
        holder[last] = value

    with pytest.raises(Invalid) as caught:
        await client.create(MOVES, body)

    # Of the real server's causes one says that rules were not evaluated; its field is "<nil>".
    named = [(cause.field, cause.type) for cause in caught.value.causes if cause.field != "<nil>"]
    assert named == [(field, reason)]


async def test_a_phase_that_does_not_exist_is_invalid(client: KubeClient, name: str) -> None:
    await created(client, name)

    with pytest.raises(Invalid) as caught:
        await client.patch(MOVES, name, {"status": {"phase": "Lost"}}, subresource="status")

    assert caught.value.causes[0].field == "status.phase"


async def test_every_phase_can_be_written(client: KubeClient, name: str) -> None:
    await created(client, name)

    for phase in MovePhase:
        written = status_body(MoveStatus(phase=phase)) | {"metadata": {}}
        written["status"]["phase"] = phase.value
        await client.patch(MOVES, name, written, subresource="status")
        assert decode_move(await client.get(MOVES, name)).status.phase is phase
