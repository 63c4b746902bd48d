"""``fracgpu simulate``: from files or a live cluster to a table and a chart."""

import json
from pathlib import Path

import pytest

from cli.commands.simulate import main
from cli.main import CALLED_WRONG, DONE, FAILED
from cli.main import main as fracgpu
from tests.cli.live_cluster import Cli, a_pod, furnish
from tests.simulator.replay.trace import NODES, PODS


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / "my_nodes.csv").write_text(NODES)
    pods = tmp_path / "pods.csv"
    pods.write_text(PODS)
    return pods


def test_policies_are_compared_in_a_table_with_a_curve(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(trace), "--seeds", "2"]) == DONE

    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0] == "4 nodes with 8 cards, a workload of 6 pods, 2 orders of arrival"
    named = [line.split()[0] for line in lines[3:7]]
    assert named == ["pack", "spread", "first-fit", "least-waste"]
    assert "70 % load" in captured.out
    assert captured.err.splitlines()[0] == "pack: done"


def test_json_holds_every_seed_and_the_mean_curve(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--nodes", str(trace.parent / "my_nodes.csv"), "--policy", "pack,least-waste"]

    assert main([str(trace), *words, "--seed", "7", "--seeds", "3", "--json"]) == DONE

    captured = capsys.readouterr()
    answer = json.loads(captured.out)
    assert captured.err == ""
    assert [policy["policy"] for policy in answer["policies"]] == ["pack", "least-waste"]
    first = answer["policies"][0]
    assert first["seeds"] == [7, 8, 9]
    at_full = first["allocatedAtFullLoadPercent"]
    assert first["curve"][100] == pytest.approx(sum(at_full) / 3, abs=0.001)


def test_the_curves_are_plotted_in_a_file(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = trace.parent / "curves.svg"

    assert main([str(trace), "--policy", "pack", "--plot", str(picture)]) == DONE

    assert picture.read_text().startswith("<svg ")
    assert capsys.readouterr().out.endswith(f"\n\nchart written to {picture}\n")


async def test_a_live_cluster_is_replayed_with_its_own_pods(cli: Cli) -> None:
    await furnish(cli.kube)
    for number in range(3):
        await a_pod(cli.kube, f"p{number}", mib=9_000)

    assert await cli.call(main, "--live", "--policy", "pack") == DONE

    assert "1 node with 2 cards, a workload of 3 pods" in cli.read().out


async def test_a_live_cluster_without_pods_has_nothing_to_replay(cli: Cli) -> None:
    await furnish(cli.kube)

    assert await cli.call(main, "--live") == FAILED

    assert "no pod requests a card" in cli.read().err


def test_a_pod_list_without_a_node_list_beside_it_is_told_to_name_one(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (trace.parent / "my_nodes.csv").unlink()

    assert fracgpu(["simulate", str(trace)]) == CALLED_WRONG

    assert "name the node list with --nodes" in capsys.readouterr().err


def test_a_file_that_is_no_trace_is_named_with_its_line(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace.write_text(PODS.replace("1,330", "x,330"))

    assert fracgpu(["simulate", str(trace)]) == CALLED_WRONG

    assert "line 4: num_gpu is 'x'; want a whole number" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["pods.csv", "--live"],
        ["pods.csv", "--policy", "best"],
        ["pods.csv", "--seeds", "0"],
        ["nowhere.csv", "--nodes", "nowhere.csv"],
    ],
)
def test_what_cannot_be_run_is_a_wrong_call(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fracgpu(["simulate", *argv]) == CALLED_WRONG
    assert capsys.readouterr().err
