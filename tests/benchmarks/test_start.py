import pytest

from benchmarks.start import started


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_a_small_cluster_is_read_and_what_it_took_is_told() -> None:
    figures = {figure.name: figure for figure in await started(nodes=3, pods_per_node=2)}

    assert figures.keys() == {
        f"start.{name}_3_nodes_2_pods" for name in ("ready", "cpu", "rss", "peak_rss")
    }
    assert figures["start.ready_3_nodes_2_pods"].note.startswith("3 nodes of 8 cards, 6 bound")
    assert all(figure.value > 0 for figure in figures.values())
