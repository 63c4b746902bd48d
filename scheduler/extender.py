"""Filter and prioritize: two questions about one picture. They change nothing."""

from collections.abc import Callable
from typing import Final

from fracgpu.ledger import Ledger
from fracgpu.placement import NoPlacement, Placement, Reason, place, score_0_to_10
from fracgpu.request import PodNeed, Strategy
from process.clock import Clock
from scheduler.protocol import ExtenderArgs, FilterResult, HostPriority

# Taking pods off a node remedies these, and nothing else does.
_REMEDIED_BY_PREEMPTION: Final = frozenset(
    {
        Reason.TOO_LITTLE_FREE,
        Reason.TOO_FEW_CORES,
        Reason.CONTAINERS_CLASH,
        Reason.TOO_MANY_TRIES,
    }
)
_UNSEEN: Final = "node(s) that the extender has not seen yet"


class Extender:
    """Answers kube-scheduler from the ledger.

    Args:
        ledger: who holds what.
        strategy: gives the cluster's default at the moment of asking.
        clock: tells which cordons and assumptions still hold.
    """

    def __init__(self, ledger: Ledger, *, strategy: Callable[[], Strategy], clock: Clock) -> None:
        self._ledger = ledger
        self._strategy = strategy
        self._clock = clock

    def filter(self, args: ExtenderArgs) -> FilterResult:
        """Sort the candidates into those that will do and those that will not, with reasons."""
        pod = args.pod
        if pod.need_problem:
            reasons = dict.fromkeys(args.node_names, pod.need_problem)
            return FilterResult(unresolvable=reasons)
        if pod.need is None:
            return FilterResult(passed=args.node_names)
        passed: list[str] = []
        failed: dict[str, str] = {}
        unresolvable: dict[str, str] = {}
        for name in args.node_names:
            answer = self._ask(name, pod.need)
            if answer is None:
                failed[name] = _UNSEEN
            elif isinstance(answer, Placement):
                passed.append(name)
            else:
                refused = failed if may_preempt(answer) else unresolvable
                refused[name] = _why(answer)
        return FilterResult(passed=tuple(passed), failed=failed, unresolvable=unresolvable)

    def prioritize(self, args: ExtenderArgs) -> tuple[HostPriority, ...]:
        """Score the candidates 0 to 10; 0 where the pod asks nothing of us or does not fit."""
        need = args.pod.need
        return tuple(
            HostPriority(host=name, score=0 if need is None else self._score(name, need))
            for name in args.node_names
        )

    def _score(self, name: str, need: PodNeed) -> int:
        answer = self._ask(name, need)
        return score_0_to_10(answer) if isinstance(answer, Placement) else 0

    def _ask(self, name: str, need: PodNeed) -> Placement | NoPlacement | None:
        loads = self._ledger.node(name, now=self._clock.now())
        return None if loads is None else place(loads, need, strategy=self._strategy())


def _why(answer: NoPlacement) -> str:
    """Say it so that it can be read after a count, which kube-scheduler puts before each reason."""
    return f"node(s) without a fitting card ({answer.text})"


def may_preempt(answer: NoPlacement) -> bool:
    """Tell whether fewer pods on the node could turn the answer into a yes."""
    reasons = {*answer.refusals.values(), *({answer.whole} if answer.whole else ())}
    return bool(reasons & _REMEDIED_BY_PREEMPTION)
