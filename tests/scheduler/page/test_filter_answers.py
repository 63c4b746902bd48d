"""What the extender answered last about each pod."""

import json

from fracgpu.state.pod_info import PodInfo, decode_pod_info
from scheduler.extender.api import FilterResult
from scheduler.page.documents import FilterAnswer
from scheduler.page.filter_answers import FilterAnswers
from tests.fakes.clock import NOON, VirtualClock
from tests.support.gpu import a_gpu_pod


def a_pod(name: str = "p") -> PodInfo:
    body = a_gpu_pod(name)
    body["metadata"]["uid"] = name
    return decode_pod_info(json.dumps(body).encode())


def test_the_last_answer_counts_all_nodes_that_were_asked_about() -> None:
    answers = FilterAnswers(VirtualClock())
    result = FilterResult(passed=("a",), failed={"b": "full"}, unresolvable={"c": "full"})

    answers.note(a_pod(), result)

    assert answers.get("p") == FilterAnswer(at=NOON, nodes=3, fitting=1, reason="full")


def test_a_replica_that_could_not_answer_has_said_nothing_about_the_pod() -> None:
    answers = FilterAnswers(VirtualClock())

    answers.note(a_pod(), FilterResult(error="another replica leads"))

    assert answers.get("p") is None


def test_only_so_many_pods_are_remembered() -> None:
    answers = FilterAnswers(VirtualClock(), most=2)

    for name in ("p", "q", "r"):
        answers.note(a_pod(name), FilterResult(failed={"a": "full"}))

    assert [answers.get(name) is not None for name in ("p", "q", "r")] == [False, True, True]
