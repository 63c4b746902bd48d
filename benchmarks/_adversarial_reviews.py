"""AdmissionReviews whose authors want the webhook to be busy: each costs what its kind can."""

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

from benchmarks._live_webhook import POLYGLOT
from benchmarks.webhook import a_review

Json = Any

# About what the server reads at most.
_ROOM: Final = 3 * 1024 * 1024 - 8192
_SIZES: Final = (60, 2_000, 20_000, 120_000)
_KEYS: Final = (
    "fraction", "memory", "cores", "cards", "model", "placement", "topology", "isolation",
    "rebalance", "granted",
)  # fmt: skip
_FOREIGN_ANNOTATIONS: Final = (
    "gpu-fraction", "gpu-memory", "gpu-fraction-num-devices", "gpu-fraction-container-name",
    "nvidia.com/use-gputype", "nvidia.com/nouse-gputype", "nvidia.com/use-gpuuuid",
    "hami.io/node-scheduler-policy", "tensor-fusion.ai/vram-request", "tensor-fusion.ai/gpu-model",
    "tensor-fusion.ai/inject-container", "nvidia.cdi.k8s.io/train.gpu-memory.request",
)  # fmt: skip
_FOREIGN_LIMITS: Final = (
    "aliyun.com/gpu-mem", "nvidia.com/gpu", "nvidia.com/gpumem", "koordinator.sh/gpu-memory",
    "tencent.com/vcuda-core", "volcano.sh/vgpu-number", "nvidia.com/gpu-10gb", "cpu",
)  # fmt: skip

_TEXTS: Final[tuple[Callable[[int], str], ...]] = (
    lambda size: "[" * size,  # brackets that nothing closes
    lambda size: "[!" * (size // 2),
    lambda size: "*a" * (size // 2),  # stars that all may move
    lambda size: "*" * size + "b",
    lambda size: "[a-z]" * (size // 5),
    lambda size: ",".join(["*[!x]?*"] * (size // 8)),  # globs without end
    lambda size: "," * size,
    lambda size: "=" * size,
    lambda size: "train=0.5," * (size // 10),
    lambda size: ",".join(f"train{n}=0.5" for n in range(size // 12)),
    lambda size: "ab" * (size // 2),  # what difflib likes least: much alike, never the same
    lambda size: "9" * size,
    lambda size: "0." + "0" * size + "1",
    lambda size: f"1e{'9' * min(size, 9)}",
    lambda size: f"1e{'9' * size}",
    lambda size: " " * size + "1",
    lambda size: "1" + "Gi" * (size // 2),
    lambda size: "٣" * size,  # digits of another script
    lambda size: "ß" * size,  # twice as long once capitals do not count
    lambda size: "\u0000" * size,  # six characters each where a message quotes them
    lambda size: "💥" * size,
)


def adversarial_reviews(count: int, *, seed: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield *count* bodies, each with what is bad about it and the path it goes to."""
    rng = random.Random(seed)  # noqa: S311 - a test's dice, not a secret
    for number in range(count):
        kind, spoil = _KINDS[number % len(_KINDS)]
        review = a_review()
        request = review["request"]
        request["namespace"] = rng.choice((POLYGLOT, POLYGLOT, "default"))
        pod = request["object"]
        spoil(rng, pod)
        path = "/mutate"
        if rng.random() < 0.25:  # noqa: PLR2004 - one in four
            path = "/validate"
            request["kind"] = {"group": "apps", "version": "v1", "kind": "Deployment"}
            request["object"] = {"metadata": {"name": "w"}, "spec": {"template": pod}}
        if rng.random() < 0.25:  # noqa: PLR2004 - one in four
            request["operation"] = "UPDATE"
            request["oldObject"] = copy.deepcopy(request["object"])
            pod["metadata"]["annotations"]["fracgpu.io/rebalance"] = "b" * 63
        yield f"{kind} to {path}", path, json.dumps(review, ensure_ascii=False).encode()


def _text(rng: random.Random) -> str:
    return rng.choice(_TEXTS)(rng.choice(_SIZES))


def _notes(pod: Json) -> Json:
    return pod["metadata"]["annotations"]


def _our_values(rng: random.Random, pod: Json) -> None:
    for key in rng.sample(_KEYS, rng.choice((1, 1, 2, 4))):
        _notes(pod)[f"fracgpu.io/{key}"] = _text(rng)


def _globs(rng: random.Random, pod: Json) -> None:
    shapes = ("*[!q]*[!q]*[!q]*[!q]*[!q]*", "*?*?*?*?*?*?*?*?*a?b", "[" * 90, "*A*1*0*0*" * 10)
    globs = [f"{rng.choice(shapes)[:88]}{n}" for n in range(rng.choice((8, 32, 33, 4000)))]
    _notes(pod)["fracgpu.io/model"] = ",".join(globs)


def _globs_and_containers(rng: random.Random, pod: Json) -> None:
    """As many globs as are read, that allow every card, and as many containers that none holds."""
    shapes = ("*[!q]*[!r]*[!s]*", "*?*?*?*?*a?b", "*A*1*0*0", "*[a-z]*[0-9]*", "!*[!a-z]*[!0-9]*~")
    globs = [f"{rng.choice(shapes)}{rng.randrange(10**6)}"[:31] for _ in range(31)]
    _notes(pod)["fracgpu.io/model"] = ",".join([*globs, "*"])
    count = rng.choice((8, 127, 128))
    containers: list[Json] = [{"name": f"{n:0>63}"} for n in range(count)]
    pod["spec"]["containers"] = containers
    salt = rng.randrange(1000, 9000)
    # Together just a card or eight, beyond any node, or next to nothing beside other limits.
    stem = rng.choice((f"0.00{10000 // count}", f"0.0{salt}", f"0.9{salt}", f"0.00000{salt}"))
    items = [f"{stem}{n:03}" for n in range(count)]
    key = rng.choice(("fraction", "fraction", "memory"))
    if key == "memory":
        items = [f"{salt + n}Mi" for n in range(count - 1)] + [rng.choice(("9Ti", "70Gi", "1Mi"))]
    elif rng.random() < 0.5:  # noqa: PLR2004 - one in two
        for it in containers:
            it["resources"] = {"limits": {"fracgpu.io/gpu-mem": "1"}}
        containers[-1]["resources"] = {"limits": {"fracgpu.io/gpu-mem": "5"}}
    pairs = zip((it["name"] for it in containers), items, strict=True)
    _notes(pod)[f"fracgpu.io/{key}"] = ",".join(f"{name}={item}" for name, item in pairs)
    if rng.random() < 0.5:  # noqa: PLR2004 - one in two
        cards = [1] * (count - 1) + [rng.choice((2, 9, 64))]
        pairs = zip((it["name"] for it in containers), map(str, cards), strict=True)
        _notes(pod)["fracgpu.io/cards"] = ",".join(f"{name}={item}" for name, item in pairs)


def _model_parts(rng: random.Random, pod: Json) -> None:
    """Other systems' words for models, and every system's words at once."""
    parts = (f"{rng.choice('ABCdef01-')}{n:x}" for n in range(10**6))
    for key in ("nvidia.com/use-gputype", "nvidia.com/nouse-gputype", "tensor-fusion.ai/gpu-model"):
        if rng.random() < 0.75:  # noqa: PLR2004 - three in four
            size = rng.choice((1, 20, 60))
            _notes(pod)[key] = ",".join(next(parts) * size for _ in range(32))[:16_000]
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1"}
    if rng.random() < 0.5:  # noqa: PLR2004 - one in two
        limits |= dict.fromkeys(rng.sample(_FOREIGN_LIMITS, 4), "1")
    pod["spec"]["containers"] = [
        {"name": f"c{n:0>62}", "resources": {"limits": dict(limits)}}
        for n in range(rng.choice((1, 64, 128)))
    ]


def _keys_near_ours(rng: random.Random, pod: Json) -> None:
    """Keys that look like ours, as many as an object holds, as annotations or as labels."""
    shapes = ("fracgpu.io/{}{:b}", "Fracgpu.IO/{}{}", "fracgpu.io.{}/{}", "fracgpu.io/{:ß>200}{}")
    shape, count = rng.choice(shapes), rng.choice((500, 990, 5000))
    keys = {shape.format(rng.choice(_KEYS), n): "0.5" for n in range(count)}
    where = rng.choice(("annotations", "labels"))
    pod["metadata"][where] = {**(pod["metadata"].get(where) or {}), **keys}


def _our_keys(rng: random.Random, pod: Json) -> None:
    _notes(pod)[f"fracgpu.io/{_text(rng)}"] = "1"


def _foreign_values(rng: random.Random, pod: Json) -> None:
    for key in rng.sample(_FOREIGN_ANNOTATIONS, rng.choice((1, 2, 5))):
        _notes(pod)[key] = _text(rng)
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    for key in rng.sample(_FOREIGN_LIMITS, rng.choice((0, 1, 3))):
        limits[key] = _text(rng)


def _foreign_keys(rng: random.Random, pod: Json) -> None:
    stem = rng.choice(("nvidia.com/gpu-{}gb", "nvidia.cdi.k8s.io/c{}.gpu-memory.request"))
    where = rng.choice((_notes(pod), pod["spec"]["containers"][0]["resources"]["limits"]))
    where.update({stem.format(n): "1Gi" for n in range(rng.choice((90, 900, 6000)))})


def _long_foreign_keys(rng: random.Random, pod: Json) -> None:
    for _ in range(rng.choice((1, 4))):
        name = "".join(rng.choices("ab-", k=rng.choice((60, 250, 60_000))))
        _notes(pod)[f"nvidia.cdi.k8s.io/{name}.gpu-memory.request"] = "1Gi"


def _container_names(rng: random.Random, pod: Json) -> None:
    """Names much like each other, and a request for one that is not among them."""
    size, count = rng.choice(((63, 8), (63, 128), (64, 4), (20_000, 2), (150_000, 2), (10, 12_000)))
    alphabet = rng.choice(("ab", "ab1", "a-b"))
    asked = "".join(rng.choices(alphabet, k=size))
    found = []
    for _ in range(count):
        name = list(asked)
        for _ in range(min(size, 12)):
            name[rng.randrange(size)] = rng.choice(alphabet)
        found.append({"name": "".join(name)})
    pod["spec"]["containers"] = found
    _notes(pod)["fracgpu.io/fraction"] = f"{asked}=0.5"
    if rng.random() < 0.5:  # noqa: PLR2004 - one in two
        _notes(pod)["gpu-memory"] = "100"
        _notes(pod)["gpu-fraction-container-name"] = asked


def _many_asking(rng: random.Random, pod: Json) -> None:
    """As many containers as are read, each with as much as is read."""
    count = rng.choice((100, 128, 129))
    containers = [{"name": f"{n:0>63}", "resources": {"limits": {}}} for n in range(count)]
    if rng.random() < 0.5:  # noqa: PLR2004 - one in two
        for it in containers:
            it["resources"] = {"limits": {f"x.example/{n}": "1" for n in range(7)}}
    pod["spec"]["containers"] = containers
    for key in ("fraction", "cores"):
        item = {"fraction": "0.123456789", "cores": "99"}[key]
        pairs = ",".join(f"{it['name']}={item}" for it in containers)
        _notes(pod)[f"fracgpu.io/{key}"] = pairs


def _limits(rng: random.Random, pod: Json) -> None:
    limits: dict[str, Any] = {"fracgpu.io/gpu-mem": _text(rng), "fracgpu.io/gpu-slot": _text(rng)}
    limits |= {f"fracgpu.io/{_text(rng)[:400]}": "1" for _ in range(3)}
    kept = rng.sample(sorted(limits), rng.choice((1, 2)))
    pod["spec"]["containers"][0]["resources"] = {"limits": {key: limits[key] for key in kept}}


def _environment(rng: random.Random, pod: Json) -> None:
    _notes(pod)["fracgpu.io/fraction"] = "0.5"
    many = [{"name": f"A{n}", "value": ""} for n in range(rng.choice((1000, 9000)))]
    pod["spec"]["containers"][0]["env"] = [
        *many,
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": _text(rng)},
    ]


def _affinity(rng: random.Random, pod: Json) -> None:
    _notes(pod)["fracgpu.io/fraction"] = "0.5"
    term = rng.choice(
        (
            {},
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]},
            {"matchExpressions": [{"key": "a", "operator": "Exists"}] * 60},
        )
    )
    terms = [term] * rng.choice((50, 150))
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    pod["spec"]["affinity"] = {"nodeAffinity": required}


def _as_large_as_possible(rng: random.Random, pod: Json) -> None:
    """Small things without number: the most work for a reader of JSON."""
    share = rng.choice((0.1, 0.12, 0.5, 1.0))
    room = int(_ROOM * share)
    _notes(pod)["fracgpu.io/fraction"] = "0.5"
    match rng.randrange(6):
        case 0:
            pod["spec"]["containers"] += [{"name": "c"}] * (room // 15)
        case 1:
            asks = {"name": "c", "resources": {"limits": {"a": 1}}}
            pod["spec"]["containers"] += [asks] * (room // 50)
        case 2:
            _notes(pod).update({f"k{n}": "" for n in range(room // 14)})
        case 3:
            pod["metadata"]["labels"] = {f"k{n}": "" for n in range(room // 14)}
        case 4:
            pod["spec"]["containers"][0]["env"] = [{"name": "a"}] * (room // 15)
        case _:
            terms: list[Json] = [{}] * (room // 4)
            required = {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
            }
            pod["spec"]["affinity"] = {"nodeAffinity": required}


_KINDS: Final[tuple[tuple[str, Callable[[random.Random, Json], None]], ...]] = (
    ("hostile values of our keys", _our_values),
    ("globs", _globs),
    ("globs over many containers", _globs_and_containers),
    ("models in other systems' words", _model_parts),
    ("keys near ours", _keys_near_ours),
    ("hostile keys of ours", _our_keys),
    ("hostile values of other systems' keys", _foreign_values),
    ("many keys of other systems", _foreign_keys),
    ("long keys of other systems", _long_foreign_keys),
    ("containers of much the same name", _container_names),
    ("as many containers as are read", _many_asking),
    ("hostile limits", _limits),
    ("a long environment", _environment),
    ("a long affinity", _affinity),
    ("as large as is read", _as_large_as_possible),
)
