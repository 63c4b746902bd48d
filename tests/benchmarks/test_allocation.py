"""The allocation benchmark: which pods name models, and how the referee is called."""

import csv
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.allocation import DOCUMENTED_CASES, Case, measure, shared
from benchmarks.fixtures.named_models import NODE_FILE, name_models, write_named

NODES = [
    {"sn": "a", "cpu_milli": "64000", "memory_mib": "99999", "gpu": "8", "model": "BIG"},
    {"sn": "b", "cpu_milli": "64000", "memory_mib": "99999", "gpu": "8", "model": "BIG"},
    *(
        {"sn": f"s{n}", "cpu_milli": "8000", "memory_mib": "9999", "gpu": "2", "model": "SMALL"}
        for n in range(8)
    ),
    {"sn": "odd", "cpu_milli": "8000", "memory_mib": "9999", "gpu": "1", "model": "ODD"},
]


def a_row(number: int, *, gpus: int = 1, spec: str = "") -> dict[str, str]:
    return {
        "name": f"p{number:04}",
        "cpu_milli": "1000",
        "memory_mib": "100",
        "num_gpu": str(gpus),
        "gpu_milli": "500",
        "gpu_spec": spec,
    }


def test_the_same_pods_name_the_same_models_each_time() -> None:
    pods = [a_row(n) for n in range(200)]

    assert list(name_models(NODES, pods, percent=33)) == list(
        name_models(NODES, reversed(pods), percent=33)
    )


@pytest.mark.parametrize(("percent", "low", "high"), [(0, 0, 0), (33, 280, 380), (100, 1000, 1000)])
def test_about_so_many_pods_name_models_and_no_curiosity(percent: int, low: int, high: int) -> None:
    named = Counter(
        pod["gpu_spec"] for pod in name_models(NODES, map(a_row, range(1000)), percent=percent)
    )

    assert low <= 1000 - named[""] <= high
    assert set(named) <= {"", "BIG", "SMALL", "BIG|SMALL"}


def test_a_pod_names_a_model_of_which_a_node_can_hold_it() -> None:
    pods = [a_row(n, gpus=8) for n in range(100)]

    assert all("BIG" in pod["gpu_spec"] for pod in name_models(NODES, pods, percent=100))


def test_pods_without_cards_and_pods_that_name_models_stay_as_they_are() -> None:
    pods = [a_row(1, gpus=0), a_row(2, spec="ODD")]

    assert list(name_models(NODES, pods, percent=100)) == pods


def test_a_written_trace_has_the_names_that_the_referee_looks_for(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for folder in (source, target):
        folder.mkdir()
    for name, rows in ((NODE_FILE, NODES), ("openb_pod_list_tiny.csv", [a_row(1), a_row(2)])):
        with (source / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)

    write_named(source, target, trace="tiny", percent=100)

    assert (target / NODE_FILE).read_bytes() == (source / NODE_FILE).read_bytes()
    with (target / "openb_pod_list_tiny.csv").open(newline="") as file:
        assert all(row["gpu_spec"] for row in csv.DictReader(file))


def test_each_figure_of_the_documentation_has_a_name_of_its_own() -> None:
    assert len({case.name for case in DOCUMENTED_CASES}) == len(DOCUMENTED_CASES)
    assert Case(named_percent=33, policy="fgd").name == "default_named33_fgd"


@pytest.mark.e2e
@pytest.mark.timeout(1800)
def test_where_a_third_of_the_pods_name_models_95_per_cent_are_allocated() -> None:
    if not (shared() / "referee").is_dir():
        pytest.skip(f"the placement referee is not in {shared().name}/ beside the repository")

    figure, *_ = measure(Case(named_percent=33), [42])

    assert figure.name == "allocation.default_named33.at_full_load"
    assert figure.value >= 95
    assert "; 0 pods declined" in figure.note
