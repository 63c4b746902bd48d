"""A Move's shape is its schema's, and nothing else decodes."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fracgpu.errors import WireError
from fracgpu.state import move_object
from fracgpu.state.move_object import MoveMode, MovePhase, decode_move
from kube.kinds import MOVES
from tests.support.moves import a_beneficiary, move_of
from tests.support.yaml_files import read_yaml

_CRD = Path(__file__).parents[3] / "deploy" / "crds" / "moves.yaml"


def _schema() -> dict[str, Any]:
    crd = read_yaml(_CRD.read_text())
    (version,) = crd["spec"]["versions"]
    assert f"{crd['spec']['group']}/{version['name']}" == MOVES.group_version
    assert crd["spec"]["names"]["plural"] == MOVES.plural
    assert crd["spec"]["names"]["kind"] == MOVES.kind == move_object.KIND
    properties: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]
    return properties


def _agree(shape: type[msgspec.Struct], schema: dict[str, Any], where: str) -> None:
    fields = {field.encode_name: field for field in msgspec.structs.fields(shape)}
    assert fields.keys() == schema["properties"].keys(), where
    required = {name for name, field in fields.items() if field.required}
    assert required == set(schema.get("required", ())), where
    for name, field in fields.items():
        inner = field.type
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            _agree(inner, schema["properties"][name], f"{where}.{name}")


def test_the_schema_and_the_decoder_have_the_same_fields() -> None:
    properties = _schema()
    _agree(move_object.MoveSpec, properties["spec"], "spec")
    _agree(move_object.MoveStatus, properties["status"], "status")
    beneficiary = properties["spec"]["properties"]["beneficiary"]
    _agree(move_object.Beneficiary, beneficiary, "spec.beneficiary")
    status = properties["status"]["properties"]
    _agree(move_object.Replacement, status["replacement"], "status.replacement")
    _agree(move_object.Transition, status["transitions"]["items"], "status.transitions")


def test_the_schema_lists_every_phase_and_mode() -> None:
    properties = _schema()
    phases = properties["status"]["properties"]["phase"]["enum"]
    assert phases == [phase.value for phase in MovePhase]
    modes = properties["spec"]["properties"]["mode"]["enum"]
    assert modes == [mode.value for mode in MoveMode]


def test_a_move_is_read_back_as_it_was_written() -> None:
    move = move_of(phase=MovePhase.SURGING)
    assert decode_move(msgspec.json.encode(move)) == move


def test_a_move_that_makes_room_says_for_which_pod_and_on_which_cards() -> None:
    move = move_of(beneficiary=a_beneficiary())
    assert decode_move(msgspec.json.encode(move)) == move
    assert "beneficiary" not in msgspec.to_builtins(move_of())["spec"]


def test_a_new_move_without_status_is_planned() -> None:
    body = msgspec.to_builtins(move_of())
    body.pop("status", None)
    assert decode_move(msgspec.json.encode(body)).status.phase is MovePhase.PLANNED


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mode", "Teleport"),
        ("reservedUntil", "soon"),
        ("pod", None),
        ("graceS", 1e300),
        ("startupS", -1),
    ],
)
def test_what_is_no_move_is_refused_by_the_field(field: str, value: object) -> None:
    body = msgspec.to_builtins(move_of())
    body["spec"][field] = value
    with pytest.raises(WireError, match=rf"spec\.{field}"):
        decode_move(msgspec.json.encode(body))


@pytest.mark.parametrize("at", ["9999-12-31T23:59:59Z", "0001-01-01T00:00:00"])
def test_a_time_of_people_can_be_added_to(at: str) -> None:
    body = msgspec.to_builtins(move_of())
    body["status"] = {"phase": "Verifying", "phaseSince": at}

    since = decode_move(msgspec.json.encode(body)).status.phase_since

    assert since is not None
    assert since - timedelta(days=365) < since < since + timedelta(days=365)
