"""AdmissionReviews that no API server sends: generated, and real ones spoilt in every way."""

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from benchmarks._live_webhook import POLYGLOT
from benchmarks.webhook import a_review

Json = Any

_MIB: Final = 1024 * 1024
_SEED_POOL: Final = 400
_DEEP: Final = 60_000
# One in so many is as large as the server reads, or a little larger.
_LARGE_EVERY: Final = 500
# How many things are odd about one review.
_HOW_OFTEN: Final = (0, 0, 0, 1, 1, 2, 3)

OURS: Final = (
    "fraction", "memory", "cores", "cards", "model", "placement", "topology", "isolation",
    "rebalance", "granted", "assignment", "wired", "fractoin", "",
)  # fmt: skip
FOREIGN: Final = (
    "aliyun.com/gpu-mem", "aliyun.com/gpu-count", "nvidia.com/gpu", "nvidia.com/gpumem",
    "nvidia.com/gpumem-percentage", "nvidia.com/gpucores", "gpu-fraction", "gpu-memory",
    "gpu-fraction-num-devices", "gpu-fraction-container-name", "tencent.com/vcuda-core",
    "tencent.com/vcuda-memory", "tke.cloud.tencent.com/qgpu-core", "volcano.sh/gpu-memory",
    "volcano.sh/vgpu-number", "koordinator.sh/gpu", "k8s.amazonaws.com/vgpu",
    "elasticgpu.io/gpu-memory", "tensor-fusion.ai/vram-request", "nvidia.com/use-gputype",
    "nvidia.cdi.k8s.io/train.gpu-memory.request", "nvidia.com/gpu-10gb",
)  # fmt: skip
TEXTS: Final = (
    "0.5", "50%", "1", "0", "-1", "1e309", "NaN", "Infinity", "8Gi", "8000Mi", "8k", "30", "2",
    "train=0.5", "train=0.5, logs=0.25", "train=0.5,train=0.5", "none", "any", "pack", "*", "!*",
    "*A100*", "99999999999999999999999999", "0x10", "½", "٣", "\u202e5.0", "\u0000", "💥" * 20,
    "", " ", ",", "=", "a=b=c", "x" * 3000, "[" * 500, "train=" * 300,
)  # fmt: skip
NUMBERS: Final = (0, -1, 1, 1 << 31, 1 << 63, 1 << 64, 10**30, 0.5, -0.0, 1e308, 5e-324)
KINDS: Final = (
    ("", "Pod"), ("apps", "Deployment"), ("apps", "StatefulSet"), ("apps", "DaemonSet"),
    ("apps", "ReplicaSet"), ("batch", "Job"), ("batch", "CronJob"), ("x.example", "Odd"),
)  # fmt: skip

_json_values: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True)
    | st.text(max_size=20)
    | st.sampled_from(TEXTS),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(max_size=12) | st.sampled_from([f"fracgpu.io/{it}" for it in OURS]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def generated(count: int) -> list[Json]:
    """Values that hypothesis thinks up, the same ones each time."""
    found: list[Json] = []

    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(_json_values)
    def collect(value: Json) -> None:
        found.append(value)

    collect()
    return found


def odd_reviews(count: int, *, seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield *count* bodies, each with the path it goes to."""
    rng = random.Random(seed)  # noqa: S311 - a test's dice, not a secret
    values = generated(_SEED_POOL)
    for number in range(count):
        if number % _LARGE_EVERY == _LARGE_EVERY - 1:
            yield "/mutate", _large(rng)
            continue
        review = _base(rng)
        for _ in range(rng.choice(_HOW_OFTEN)):
            rng.choice(_SPOILS)(rng, review, values)
        path = "/mutate" if review_kind(review) == "Pod" else "/validate"
        if _chance(rng, 5):
            path = rng.choice(("/mutate", "/validate"))
        yield path, _bytes(rng, review)


def review_kind(review: Json) -> str:
    """Name the kind of the object that a review is about, as far as it says."""
    try:
        return str(review["request"]["kind"]["kind"])
    except (KeyError, TypeError, IndexError):
        return "Pod"


def _chance(rng: random.Random, percent: float) -> bool:
    return rng.uniform(0, 100) < percent


def _base(rng: random.Random) -> Json:
    """A review as real ones are, about a pod or a workload, that asks in some way."""
    review = a_review()
    request = review["request"]
    request["namespace"] = rng.choice((POLYGLOT, POLYGLOT, "default", "none-such"))
    _ask(rng, request["object"])
    group, kind = rng.choice(KINDS) if _chance(rng, 30) else ("", "Pod")
    request["kind"] = {"group": group, "version": "v1", "kind": kind}
    if kind != "Pod":
        spec: Json = {"template": request["object"]}
        spec = {"jobTemplate": {"spec": spec}} if kind == "CronJob" else spec
        request["object"] = {"metadata": {"name": "w"}, "spec": spec}
    if _chance(rng, 20):
        request["operation"] = rng.choice(("UPDATE", "UPDATE", "DELETE", "", "create"))
        request["oldObject"] = copy.deepcopy(request["object"])
    return review


def _ask(rng: random.Random, pod: Json) -> None:
    notes = pod["metadata"]["annotations"]
    first, second = pod["spec"]["containers"]
    for key in rng.sample(OURS, rng.choice(_HOW_OFTEN)):
        notes[f"fracgpu.io/{key}"] = rng.choice(TEXTS)
    if _chance(rng, 30):
        for key in rng.sample(FOREIGN, rng.randint(1, 3)):
            where = notes if _chance(rng, 50) else first["resources"]["limits"]
            where[key] = rng.choice(TEXTS)
    if _chance(rng, 20):
        second["resources"] = {"limits": {"fracgpu.io/gpu-mem": rng.choice((*TEXTS, *NUMBERS))}}
    if _chance(rng, 30):
        name = rng.choice(("train", "warm", "", "é"))
        pod["spec"]["initContainers"] = [{"name": name, "restartPolicy": "Always"}]
    if _chance(rng, 20):
        pod["spec"]["affinity"] = rng.choice(
            (None, {}, {"nodeAffinity": None}, {"nodeAffinity": _required([{}, None])})
        )


def _required(terms: Json) -> Json:
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}


def _places(value: Json) -> Iterator[tuple[Any, Any]]:
    """Every place in a value: its container and its key there."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(pairs):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


def _somewhere(rng: random.Random, review: Json) -> tuple[Any, Any] | None:
    places = list(_places(review))
    return rng.choice(places) if places else None


def _replace(rng: random.Random, review: Json, values: Sequence[Json]) -> None:
    if place := _somewhere(rng, review):
        place[0][place[1]] = copy.deepcopy(rng.choice(values))


def _replace_by_number(rng: random.Random, review: Json, _values: Sequence[Json]) -> None:
    if place := _somewhere(rng, review):
        place[0][place[1]] = rng.choice((*NUMBERS, float("nan"), float("inf"), -float("inf")))


def _replace_by_text(rng: random.Random, review: Json, _values: Sequence[Json]) -> None:
    if place := _somewhere(rng, review):
        place[0][place[1]] = rng.choice(TEXTS)


def _remove(rng: random.Random, review: Json, _values: Sequence[Json]) -> None:
    if place := _somewhere(rng, review):
        del place[0][place[1]]


def _rename(rng: random.Random, review: Json, _values: Sequence[Json]) -> None:
    place = _somewhere(rng, review)
    if place and isinstance(place[0], dict):
        place[0][rng.choice((*TEXTS, *FOREIGN))] = place[0].pop(place[1])


def _double(rng: random.Random, review: Json, _values: Sequence[Json]) -> None:
    place = _somewhere(rng, review)
    if place and isinstance(place[0], list):
        place[0].extend(copy.deepcopy(place[0][place[1]]) for _ in range(rng.choice((1, 30))))


_SPOILS: Final[tuple[Callable[[random.Random, Json, Sequence[Json]], None], ...]] = (
    _replace, _replace_by_number, _replace_by_text, _remove, _rename, _double,
)  # fmt: skip


def _bytes(rng: random.Random, review: Json) -> bytes:
    """Write a review, now and then as no writer of JSON would."""
    body = json.dumps(review, ensure_ascii=_chance(rng, 50)).encode(errors="surrogatepass")
    if not _chance(rng, 7):
        return body
    return rng.choice(_SPOILT_BYTES)(rng, body)


def _cut(rng: random.Random, body: bytes) -> bytes:
    return body[: rng.randint(0, len(body))]


def _scribble(rng: random.Random, body: bytes) -> bytes:
    at = rng.randint(0, len(body) - 1)
    return body[:at] + rng.randbytes(rng.randint(1, 4)) + body[at + 1 :]


def _say_twice(_rng: random.Random, body: bytes) -> bytes:
    twice = body.replace(b'"fracgpu.io/', b'"fracgpu.io/fraction": "0.1", "fracgpu.io/', 1)
    return twice.replace(b'"metadata":', b'"metadata": {"annotations": []}, "metadata":')


def _dig(rng: random.Random, body: bytes) -> bytes:
    deep = rng.choice((b"[", b'{"a":')) * rng.choice((100, 1100, _DEEP))
    return body.replace(b'"status": {}', b'"status": ' + deep)


def _nest(_rng: random.Random, body: bytes) -> bytes:
    closed = b"[" * 900 + b"]" * 900
    return body.replace(b'"status": {}', b'"status": ' + closed)


_SPOILT_BYTES: Final = (_cut, _scribble, _scribble, _say_twice, _dig, _nest)


def _large(rng: random.Random) -> bytes:
    """A review of about what the server reads at most: 3 MiB, of the kinds that cost most."""
    review = a_review()
    pod = review["request"]["object"]
    room = 3 * _MIB - 8192 + rng.choice((0, 0, 0, 16384))
    kind = rng.choice(("blob", "pairs", "keys", "containers", "foreign keys"))
    if kind == "blob":
        pod["metadata"]["annotations"]["blob"] = "x" * room
    elif kind == "pairs":
        pod["metadata"]["annotations"]["fracgpu.io/fraction"] = "train=0.5," * (room // 10)
    elif kind == "keys":
        pod["metadata"]["annotations"] |= {f"fracgpu.io/k{n}": "1" for n in range(room // 24)}
    elif kind == "containers":
        containers = [{"name": f"c{n}"} for n in range(room // 22)]
        pod["spec"]["containers"] = containers
        pod["metadata"]["annotations"]["fracgpu.io/fraction"] = "c0=0.5"
    else:
        pod["metadata"]["annotations"] |= {f"nvidia.com/gpu-{n}gb": "1" for n in range(room // 32)}
    return json.dumps(review).encode()
