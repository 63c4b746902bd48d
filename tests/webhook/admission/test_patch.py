from hypothesis import given
from hypothesis import strategies as st

from simulator.apiserver.apimachinery.patches import json_patch
from webhook.admission.patch import HOLE, Edit, escape, read_patch, write_open_patch


@given(st.text())
def test_any_key_can_be_pointed_at(key: str) -> None:
    edit = Edit(path=f"/labels/{escape(key)}", value="x")

    patch = [{"op": edit.op, "path": edit.path, "value": edit.value}]
    assert json_patch({"labels": {}}, patch) == {"labels": {key: "x"}}


@given(st.text(), st.text())
def test_a_hole_is_filled_wherever_it_is_and_whatever_is_around_it(around: str, text: str) -> None:
    alone = Edit(path=f"/{escape(around)}", value=HOLE)
    within = Edit(path="/metadata", value={"annotations": {around: around, "last": HOLE}})
    other = Edit(path="/spec", value=around)

    filled = [
        read_patch(write_open_patch([other, edit, other]).filled(text)) for edit in (alone, within)
    ]

    assert filled[0] == (other, Edit(path=alone.path, value=text), other)
    annotations = {around: around, "last": text}
    assert filled[1] == (other, Edit(path="/metadata", value={"annotations": annotations}), other)
