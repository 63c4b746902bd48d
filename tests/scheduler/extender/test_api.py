"""The scheduler extender's JSON, as a real kube-scheduler 1.36 sent it."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.placement.placement import MAX_SCORE
from fracgpu.state.pod_info import PodInfo
from scheduler.extender.api import (
    BindingArgs,
    ExtenderArgs,
    FilterResult,
    ProtocolError,
    read_args,
    read_binding_args,
    write_binding_result,
    write_filter_result,
    write_priorities,
)
from tests.support.core import a_need

RECORDED = Path(__file__).parents[2] / "contracts" / "kube_scheduler"


def recorded(name: str) -> bytes:
    return (RECORDED / f"{name}.json").read_bytes()


@pytest.mark.parametrize("verb", ["filter", "prioritize"])
def test_recorded_requests_with_names_are_read(verb: str) -> None:
    args = read_args(recorded(f"{verb}-names"))

    assert args.pod.record.key == "default/p4"
    assert args.pod.need is not None
    assert args.pod.need.containers == (a_need(8000, name="train", cards=2),)
    assert {"gpu-1", "gpu-2"} <= set(args.node_names)
    assert args.nodes is None


@pytest.mark.parametrize("verb", ["filter", "prioritize"])
def test_recorded_requests_with_whole_nodes_are_read(verb: str) -> None:
    args = read_args(recorded(f"{verb}-nodes"))

    assert {"gpu-1", "gpu-2"} <= set(args.node_names)
    assert args.nodes is not None
    assert tuple(args.nodes) == args.node_names
    assert json.loads(bytes(args.nodes["gpu-1"]))["metadata"]["name"] == "gpu-1"


def test_a_pod_that_the_informer_has_in_the_same_version_is_not_decoded_again() -> None:
    sent = read_args(recorded("filter-names")).pod
    same = replace(sent, priority=7)  # so that it can be told from what was sent
    asked: list[tuple[str, str]] = []

    def having(known: PodInfo | None) -> PodInfo:
        def find(namespace: str, name: str) -> PodInfo | None:
            asked.append((namespace, name))
            return known

        return read_args(recorded("filter-names"), find=find).pod

    assert having(same) is same
    assert asked == [("default", "p4")]
    for other in (
        None,
        replace(same, record=replace(same.record, uid="another")),
        replace(same, record=replace(same.record, resource_version="1")),
    ):
        assert having(other) == sent


def test_pods_without_a_version_are_never_taken_for_the_same() -> None:
    body = f'{{"Pod":{POD},"NodeNames":[]}}'.encode()
    known = replace(read_args(body).pod, priority=7)

    assert read_args(body, find=lambda *_: known).pod.priority == 0


def test_a_recorded_retry_is_read_with_its_condition() -> None:
    assert read_args(recorded("filter-retried")).pod.phase == "Pending"


def test_a_recorded_bind_request_is_read() -> None:
    sent = json.loads(recorded("bind"))

    assert read_binding_args(recorded("bind")) == BindingArgs(
        namespace="default", name="p4", uid=sent["PodUID"], node=sent["Node"]
    )


def answered(result: FilterResult, args: ExtenderArgs) -> dict[str, object]:
    found: dict[str, object] = json.loads(write_filter_result(result, args))
    return found


def test_names_are_answered_with_names() -> None:
    args = read_args(recorded("filter-names"))
    result = FilterResult(passed=("gpu-2",), failed={"gpu-1": "x"}, unresolvable={"plain-1": "y"})

    assert answered(result, args) == {
        "Nodes": None,
        "NodeNames": ["gpu-2"],
        "FailedNodes": {"gpu-1": "x"},
        "FailedAndUnresolvableNodes": {"plain-1": "y"},
        "Error": "",
    }


def test_whole_nodes_are_answered_with_the_same_whole_nodes() -> None:
    args = read_args(recorded("filter-nodes"))
    sent = json.loads(recorded("filter-nodes"))["Nodes"]["items"]

    found = answered(FilterResult(passed=("gpu-2",)), args)

    assert found["NodeNames"] is None
    assert found["Nodes"] == {
        "items": [node for node in sent if node["metadata"]["name"] == "gpu-2"]
    }


@pytest.mark.parametrize("form", ["names", "nodes"])
def test_an_error_is_all_that_is_answered(form: str) -> None:
    args = read_args(recorded(f"filter-{form}"))

    found = answered(FilterResult(error="no leader"), args)

    assert found == {
        "Nodes": None,
        "NodeNames": None,
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "no leader",
    }


def test_priorities_and_binding_results_carry_gos_names() -> None:
    assert json.loads(write_priorities(("a",), np.array([7]))) == [{"Host": "a", "Score": 7}]
    assert json.loads(write_binding_result("")) == {"Error": ""}


@pytest.mark.parametrize(
    "names",
    [(), ("a",), ("a", "b", "a"), ("a", 'quote"d', "back\\slash"), ("gpu-1", "größe\n", "")],
)
def test_priorities_are_json_whatever_the_names_and_scores(names: tuple[str, ...]) -> None:
    for first in range(MAX_SCORE + 1):
        scores = [(first + at) % (MAX_SCORE + 1) for at in range(len(names))]

        found = json.loads(write_priorities(names, np.array(scores, np.int64)))

        assert found == [
            {"Host": name, "Score": score} for name, score in zip(names, scores, strict=True)
        ]


def test_every_node_has_one_score() -> None:
    with pytest.raises(ValueError, match="shorter"):
        write_priorities(("a", "b"), np.array([7]))


def test_a_field_of_a_newer_kube_scheduler_is_skipped() -> None:
    sent = {**json.loads(recorded("bind")), "DryRun": True}

    assert read_binding_args(json.dumps(sent).encode()).name == "p4"


POD = '{"metadata":{"name":"p","namespace":"d"}}'


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "truncated"),
        (b"null", "Expected `object`"),
        (b"{}", "missing required field `Pod`"),
        (b'{"Pod":null,"NodeNames":[]}', "Expected `object`"),
        (b'{"Pod":{},"NodeNames":[]}', "no name"),
        (b'{"Pod":{"metadata":{"name":"p"}},"NodeNames":[]}', "no namespace"),
        (f'{{"Pod":{POD}}}'.encode(), "either Nodes or NodeNames"),
        (f'{{"Pod":{POD},"Nodes":{{}},"NodeNames":[]}}'.encode(), "either Nodes or NodeNames"),
        (f'{{"Pod":{POD},"NodeNames":[1]}}'.encode(), r"NodeNames\[0\]"),
        (f'{{"Pod":{POD},"NodeNames":"n"}}'.encode(), "Expected `array"),
        (f'{{"Pod":{POD},"Nodes":{{"items":[{{}}]}}}}'.encode(), "one of its Nodes"),
        (b'{"Pod":{"metadata":{"name":"\xff","namespace":"d"}},"NodeNames":[]}', "utf-8"),
        (b'{"Pod":' + b"[" * 100_000, "recursion"),
    ],
)
def test_a_malformed_request_is_refused_with_its_reason(body: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        read_args(body)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"[]", "Expected `object`"),
        (b'{"PodName":"p","PodNamespace":"d","Node":"n"}', "PodUID"),
        (b'{"PodName":"p","PodNamespace":"d","PodUID":"","Node":"n"}', "empty"),
        (b'{"PodName":"p","PodNamespace":"d","PodUID":7,"Node":"n"}', "Expected `str`"),
    ],
)
def test_a_malformed_bind_request_is_refused_with_its_reason(body: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        read_binding_args(body)


readers: tuple[Callable[[bytes], object], ...] = (read_args, read_binding_args)


@given(
    st.binary()
    | st.dictionaries(
        st.sampled_from(["Pod", "Nodes", "NodeNames", "PodName", "PodUID", "Node"]),
        st.recursive(
            st.none() | st.text(max_size=5) | st.integers(),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(["items", "metadata", "name", "spec"]), inner)
            ),
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_bytes_are_read_or_refused_and_never_anything_else(body: bytes) -> None:
    for read in readers:
        with contextlib.suppress(ProtocolError):
            read(body)
