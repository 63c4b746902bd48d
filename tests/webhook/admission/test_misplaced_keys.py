import pytest

from tests.webhook.builders import Json, a_pod, denied, judged, judged_change, patched, stored
from webhook.admission.verdict import OURS, Allowed


@pytest.mark.parametrize(
    ("place", "key", "message"),
    [
        (
            "labels",
            "fracgpu.io/fraction",
            "label fracgpu.io/fraction is '0.5'; want no such label: a request is read from the "
            'pod\'s annotations; write the annotation fracgpu.io/fraction: "0.5"',
        ),
        (
            "labels",
            "fracgpu.io/Memory",
            "label fracgpu.io/Memory is '0.5'; want no such label: a request is read from the "
            'pod\'s annotations; write the annotation fracgpu.io/memory: "0.5"',
        ),
        *(
            (
                "labels",
                f"fracgpu.io/{key}",
                f"label fracgpu.io/{key} is '0.5'; want no such label: a request is read from the "
                f"pod's annotations; {hint}",
            )
            for key, hint in (
                ("gpu-mem", 'write the annotation fracgpu.io/memory: "0.5"'),
                ("gpu-slot", 'write the annotation fracgpu.io/cards: "0.5"'),
                ("granted", "leave it out"),
            )
        ),
        (
            "annotations",
            "fracgpu/gpu-mem",
            "annotation fracgpu/gpu-mem is '0.5'; want a key that begins with fracgpu.io/; did you "
            "mean fracgpu.io/memory?",
        ),
        (
            "annotations",
            "FracGPU.io/Fraction",
            "annotation FracGPU.io/Fraction is '0.5'; want fracgpu.io/ in small letters; did you "
            "mean fracgpu.io/fraction?",
        ),
        (
            "annotations",
            "FRACGPU.IO/colour",
            "annotation FRACGPU.IO/colour is '0.5'; want fracgpu.io/ in small letters",
        ),
        *(
            (
                "annotations",
                f"{prefix}fraction",
                f"annotation {prefix}fraction is '0.5'; want a key that begins with fracgpu.io/; "
                "did you mean fracgpu.io/fraction?",
            )
            for prefix in (
                *("fracgpu/", "fracgpu.com/", "fracgpu-io/", "FracGPU/", "fracgpu.io."),
                *("fragpu.io/", "frac-gpu.io/", "FragGPU/"),
            )
        ),
        *(
            (
                "labels",
                f"{prefix}fraction",
                f"label {prefix}fraction is '0.5'; want no such label: a request is read from the "
                'pod\'s annotations; write the annotation fracgpu.io/fraction: "0.5"',
            )
            for prefix in ("fracgpu.com/", "fracgpu/", "fracgpu.io.", "fragpu.io/")
        ),
    ],
)
def test_a_request_where_nobody_reads_it_is_answered(place: str, key: str, message: str) -> None:
    """On a new pod, and on one that is there: `kubectl label pod` was silent."""
    pod = a_pod()
    pod["metadata"][place] = {key: "0.5"}

    assert denied(judged(pod)).message == message
    assert denied(judged_change(a_pod(), pod)).message == message
    assert judged_change(pod, a_pod()) == judged_change(pod, pod) == Allowed()


@pytest.mark.parametrize("value", ["true", "translated", "x"])
@pytest.mark.parametrize("pod", [a_pod(), a_pod(fraction="0.5")], ids=["no request", "a request"])
def test_nobody_but_the_webhook_writes_the_label_of_a_grant(pod: Json, value: str) -> None:
    labels = {"fracgpu.io/granted": value}
    outcome = denied(judged({**pod, "metadata": {**pod["metadata"], "labels": labels}}))

    assert outcome.message.startswith("label fracgpu.io/granted is ")


def test_a_label_that_is_no_request_is_warned_of() -> None:
    pod = a_pod()
    pod["metadata"]["labels"] = {"fracgpu.io/team": "vision", "app": "web"}
    one = judged(pod)
    pod["metadata"]["labels"] |= {"fracgpu.io/a": "1", "fracgpu.io/b": "2"}

    assert one == Allowed(
        warnings=("label fracgpu.io/team has no effect: FracGPU reads annotations",)
    )
    assert judged(pod) == Allowed(
        warnings=("label fracgpu.io/a and 2 more has no effect: FracGPU reads annotations",)
    )
    assert judged_change(a_pod(), pod) == judged(pod)
    assert judged_change(pod, pod) == Allowed()


def test_a_pod_with_a_grant_and_such_a_label_is_warned_again_when_it_is_reviewed_again() -> None:
    pod = a_pod(fraction="0.5")
    pod["metadata"]["labels"] = {"fracgpu.io/team": "vision"}
    warnings = ("label fracgpu.io/team has no effect: FracGPU reads annotations",)
    first = patched(judged(pod))

    assert first.warnings == warnings
    assert judged(stored(pod, first)) == Allowed(warnings=warnings, dialect=OURS)


def test_keys_that_begin_as_ours_and_ask_for_nothing_are_somebody_elses() -> None:
    pod = a_pod()
    pod["metadata"]["annotations"] = dict.fromkeys(
        (
            *("fracgpu-dashboard.example.com/team", "fracgpu/", "fracgpu", "x.fracgpu.io/fraction"),
            *("fargo.io/fraction", "fpga.io/memory", "fragpu.io/team", "gpu.io/memory"),
            "fracgpu/granted",
        ),
        "1",
    )
    pod["metadata"]["labels"] = {"fracgpu-team": "a", "fracgpu.example.com/team": "a"}

    assert judged(pod) == Allowed()


ABOUT_A_SHARE = {
    "fracgpu.io/move-requested": "2026-01-31T12:00:00Z",
    "fracgpu.io/move-grace": "60",
    "fracgpu.io/move-ready": "true",
    "fracgpu.io/resize": "8Gi",
}


@pytest.mark.parametrize(("key", "value"), ABOUT_A_SHARE.items())
def test_what_only_a_pod_with_a_share_can_want_is_warned_of_elsewhere(key: str, value: str) -> None:
    """On a new pod, and on one that is there: `kubectl annotate pod` was silent."""
    plain = a_pod()
    pod = {**plain, "metadata": {**plain["metadata"], "annotations": {key: value}}}
    warned = Allowed(
        warnings=(
            f"{key} has no effect: the pod requests no share of a card; add fracgpu.io/fraction or "
            "fracgpu.io/memory to a new pod",
        )
    )

    assert judged(pod) == judged_change(plain, pod) == warned
    assert judged_change(pod, pod) == judged_change(pod, plain) == Allowed()
    claiming = {**pod, "spec": {**pod["spec"], "resourceClaims": [{"name": "own"}]}}
    assert judged(claiming) == judged_change(plain, claiming) == Allowed()
    granted = stored(a_pod(fraction="0.5"), judged(a_pod(fraction="0.5")))
    notes = {**granted["metadata"]["annotations"], key: value}
    moving = {**granted, "metadata": {**granted["metadata"], "annotations": notes}}
    assert judged_change(granted, moving) == Allowed()
