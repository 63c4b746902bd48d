"""The compiled fill answers what the one in NumPy answers, to the bit."""

import platform
import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fracgpu.placement.node_matrix import MAX_CARDS, Demand
from fracgpu.placement.policies.least_waste.fill import compiled_fill
from fracgpu.placement.policies.least_waste.fill.compiled_fill import SOURCES, CompiledFill, load
from fracgpu.placement.policies.least_waste.fill.fill_sequences import FillSequences, fastest_fill
from fracgpu.placement.policies.least_waste.fill.numpy_fill import NumpyFill
from fracgpu.placement.policies.least_waste.workload_mix import WorkloadMix
from tests.fracgpu.placement.policies.least_waste.demands import MODELS, a_fill, mix

# More than any level, at it, and below: shares and levels then often meet exactly.
SHARE = st.sampled_from([1, 40, 125, 190, 333, 500, 810, 1000]) | st.integers(1, 1000)
ON_CARDS = st.builds(
    Demand,
    cpu_milli=st.integers(0, 40_000),
    cards=st.sampled_from([1, 1, 1, 2, 3, 8, 33]),
    share_milli=SHARE,
    models=st.none() | st.just(frozenset({"A100"})),
)
ONLY_CPU = st.builds(Demand, cpu_milli=st.integers(0, 40_000))
WORKLOAD = st.lists(ON_CARDS | ONLY_CPU, max_size=12)
NODE = st.tuples(
    st.lists(st.just(0) | SHARE, max_size=MAX_CARDS), st.integers(0, 256_000), st.integers(0, 1)
)
Node = tuple[list[int], int, int]


def waste(fill: FillSequences, nodes: Sequence[Node], *, width: int = MAX_CARDS) -> bytes:
    levels = np.zeros((len(nodes), width), np.int16)
    for row, (cards, _, _) in enumerate(nodes):
        levels[row, : len(cards)] = cards
    return fill.expected_waste_milli(
        levels,
        np.array([node[1] for node in nodes], np.int32),
        np.array([node[2] for node in nodes], np.int64),
    ).tobytes()


@settings(max_examples=150, deadline=None)
@given(WORKLOAD, st.lists(NODE, max_size=8))
def test_any_workload_wastes_the_same_on_any_nodes(
    workload: list[Demand], nodes: list[Node]
) -> None:
    classes = WorkloadMix.fold(workload).classes()

    compiled = a_fill(classes, MODELS, fill=CompiledFill)
    in_numpy = a_fill(classes, MODELS, fill=NumpyFill)

    assert waste(compiled, nodes) == waste(in_numpy, nodes)


def test_thousands_of_nodes_at_once_waste_the_same() -> None:
    random = np.random.default_rng(7)
    levels = random.integers(0, 1001, (2000, 8)) * (random.random((2000, 8)) < 0.7)
    levels[random.random(levels.shape) < 0.4] = 1000
    nodes = [
        (cards, int(cpu), int(model))
        for cards, cpu, model in zip(
            levels.tolist(),
            random.integers(0, 130_000, 2000),
            random.integers(0, 2, 2000),
            strict=True,
        )
    ]

    compiled = a_fill(mix(), MODELS, fill=CompiledFill)
    in_numpy = a_fill(mix(), MODELS, fill=NumpyFill)

    assert waste(compiled, nodes, width=8) == waste(in_numpy, nodes, width=8)


def test_no_node_at_all_is_no_waste() -> None:
    assert waste(a_fill(mix(), MODELS, fill=CompiledFill), []) == b""


def test_what_could_read_beyond_an_array_is_refused() -> None:
    fill = a_fill(mix(), MODELS, fill=CompiledFill)

    with pytest.raises(AssertionError):
        waste(fill, [([1000], 4000, len(MODELS))])
    with pytest.raises(AssertionError):
        waste(fill, [([1000], 4000, -1)])
    with pytest.raises(AssertionError):
        waste(fill, [([1000] * 33, 4000, 0)], width=33)


def test_a_machine_of_the_image_has_the_compiled_fill_and_uses_it() -> None:
    # Else the tests above would compare nothing; `make setup` compiles it.
    assert platform.machine() in {"x86_64", "aarch64"}
    assert CompiledFill.problem is None
    drawn = a_fill(mix(), MODELS)
    assert isinstance(drawn.fill, CompiledFill)


def test_a_library_that_is_missing_or_broken_is_a_problem_that_names_it(tmp_path: Path) -> None:
    missing, broken = tmp_path / "fill-none.so", tmp_path / "fill-broken.so"
    there = Path(compiled_fill.__file__).parent
    shutil.copy(there / "fill.c", broken)

    for path in (missing, broken):
        library, problem = load(str(path))
        assert library is None
        assert problem is not None
        assert path.name in problem
    library, problem = load(str(there / f"fill-{platform.machine()}.so"))
    assert library is not None
    assert problem is None


def test_the_checksum_is_that_of_the_sources() -> None:
    sources = sorted(Path(compiled_fill.__file__).parent.glob("*.[ch]"))

    found = zlib.crc32(b"".join(source.read_bytes() for source in sources))
    assert found == SOURCES, f"SOURCES in compiled_fill.py has to be {found:#010x}"


def test_a_library_of_other_sources_is_not_used_and_what_to_do_is_said(tmp_path: Path) -> None:
    name = f"fill-{platform.machine()}.so"
    compiled = (Path(compiled_fill.__file__).parent / name).read_bytes()
    checksum = SOURCES.to_bytes(4, "little")
    assert compiled.count(checksum) == 1
    other = tmp_path / name
    other.write_bytes(compiled.replace(checksum, (SOURCES ^ 1).to_bytes(4, "little")))

    library, problem = load(str(other))
    assert library is None
    assert problem == f"{other} was compiled from other sources; make setup compiles it again"


def test_without_the_compiled_fill_the_one_in_numpy_is_used() -> None:
    drawn = a_fill(mix(), MODELS, fill=lambda pods: fastest_fill(pods, problem="no such file"))

    assert isinstance(drawn.fill, NumpyFill)
