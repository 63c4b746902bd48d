"""The input of a plan is what the cache shows now, and what the caller knows besides."""

from fracgpu.request.need import Strategy
from kube.client import KubeClient
from tests.fakes.clock import NOON
from tests.support.moving import a_rig, make_cluster
from tests.support.rebalancing import COOL_CARD, HOT_CARD, LONG_AGO, a_past_move


async def test_it_has_the_clusters_cards_and_pods_and_all_that_was_given(kube: KubeClient) -> None:
    await make_cluster(kube)
    past = [a_past_move()]

    async with a_rig(kube) as rig:
        state = rig.cache.disruption_state(
            usage={},
            heat={},
            past=past,
            strategy=Strategy.SPREAD,
            scheduler_name="another",
            leading_since=LONG_AGO,
            now=NOON,
        )

    assert state.cards() == {HOT_CARD, COOL_CARD}
    assert {pod.info.record.name for pod in state.pods.values()} == {"pod-a", "pod-b"}
    assert state.past == past
    assert (state.strategy, state.scheduler_name) == (Strategy.SPREAD, "another")
    assert state.leading_since == LONG_AGO
