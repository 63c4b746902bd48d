from hypothesis import given
from hypothesis import strategies as st

from simulator.apiserver.apimachinery.patches import json_patch
from webhook.admission.pod_edits import Edit, escape


@given(st.text())
def test_any_key_can_be_pointed_at(key: str) -> None:
    edit = Edit(path=f"/labels/{escape(key)}", value="x")

    patch = [{"op": edit.op, "path": edit.path, "value": edit.value}]
    assert json_patch({"labels": {}}, patch) == {"labels": {key: "x"}}
