"""A plan as lines: what blocks it comes first, and each line has the tone of what it says."""

from dataclasses import replace

from cli.plan_report import report_on
from cli.printers.plan_lines import plan_lines
from cli.printers.text import Tone
from tests.fakes.clock import NOON
from tests.support.rebalancing import ACTIVE, a_disruption_state


def test_a_block_comes_before_the_cards_and_again_at_each_card() -> None:
    policy = replace(ACTIVE, paused=True)
    report = report_on(a_disruption_state(), policy=policy, breakers=(), now=NOON)

    lines = list(plan_lines(report))

    assert [(line.tone, line.text) for line in lines if line.tone is Tone.BAD] == [
        (Tone.BAD, "nothing more is moved now: the rebalancer is paused"),
        (Tone.BAD, "  not now: the rebalancer is paused; without that:"),
    ]
    (move,) = [line.text for line in lines if line.tone is Tone.GOOD]
    assert move.startswith("  move ml/pod-a -> n2/0 (gain ")
    assert "it uses 45%, 4000 MiB; " in move
