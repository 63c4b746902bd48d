"""The policy ``least-waste``: place a pod where the expected waste of the cluster rises least.

The cost of a node's state is what is wasted of its cards, less what its idle cards are worth to
pods that are short of such cards (`prices`). A pod goes where that cost, with the price of the card
model, rises least: among nodes and, for one card, among the cards of a node. What is wasted is

- what is expected to stay idle once the node is full: a copy of the node is filled with each of 32
  sequences of pods drawn from the mix (`draws`). Each step offers two pods, and the one that leaves
  less of its card runs, on the tightest card with room; the other runs elsewhere. That one number
  covers stranded CPU, shares that do not add up to a card and remainders of cards;
- what is idle and of no use to the next pod of the mix: the fragmentation measure of Weng et al.,
  "Beware of Fragmentation" (USENIX ATC 2023). While the cluster fills up, shares alone count.

How much each counts depends on whether pods leave (`turnover`). ``least_waste.c`` computes both for
states at whole cores, interpolates between these, and remembers what it has evaluated.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import WHOLE_CARD_MILLI, IntArray
from fracgpu.placement.policies.least_waste.draws import Draws, draw, steps_of
from fracgpu.placement.policies.least_waste.library import Model, Nodes, Policy, Request
from fracgpu.placement.policies.least_waste.mix import PodClass
from fracgpu.placement.policies.least_waste.nodes import MAX_CARDS, PolicyNodes
from fracgpu.placement.policies.least_waste.prices import Prices
from fracgpu.placement.policies.least_waste.turnover import Weights

# Prices move slowly: they are computed again after this many changes of nodes.
_REPRICED_EVERY: Final = 64
# The memory of what was evaluated: 2**20 states, 12 MiB.
_SET_BITS, _WAYS = 17, 8
# The costs of the kinds of pods asked for least recently are dropped: beyond 13 MB, at 28 bytes for
# each node, but not below as many kinds as are common together.
_MOST_CELLS: Final = 500_000
_FEWEST_KINDS, _MOST_KINDS = 32, 256
# How many pairs of pods are placed, and classes compared with a node, in a millisecond.
_PAIRS_PER_MS, _CLASSES_PER_MS = 5_000, 100_000
# Vectors of least_waste.c lie in memory at multiples of this many bytes.
_ALIGNED: Final = 64
_ANY_NUMBER: Final = 2**62
_NEVER_ASKED: Final = -2  # least_waste.c has -1 for what is not known
# struct class of least_waste.c
_CLASS: Final = np.dtype(
    [("frequency", float), ("share", np.int64), ("cards", np.int64), ("cpu", np.int64)]
)


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """What pods request that cost the same on each node."""

    mib: int = 0
    cards: int = 0
    cpu_milli: int = 0


class _Costs:
    """What pods of one kind would cost, [row]; `Request` of library.py has its addresses."""

    def __init__(self, rows: int) -> None:
        self.cost = np.full(rows, np.nan)
        self.taken = np.zeros(rows, np.uint32)
        self.changed_at = np.full(rows, _NEVER_ASKED, np.int64)
        self.priced_at = np.full(rows, _NEVER_ASKED, np.int64)

    def behind(self, changed: IntArray) -> IntArray:
        """Return the rows that were asked for and are not known, or have changed since."""
        asked = self.changed_at != _NEVER_ASKED
        return np.flatnonzero(asked & (self.changed_at != changed[: len(asked)]))


class LeastWaste:
    """Ranks nodes for pods; its mix does not change.

    The same calls in the same order give the same answers, whatever the load. Prices lag behind the
    nodes by a few changes; other than that, what is remembered changes no answer.

    Args:
        classes: the workload's mix.
        models: the card models; *nodes* refers to them by index.
        nodes: the nodes, which may change between calls.
        weights: what counts how much.
        rank: the compiled code.

    Attributes:
        classes, models, weights: as given.
    """

    def __init__(
        self,
        classes: Sequence[PodClass],
        models: Sequence[str],
        nodes: PolicyNodes,
        *,
        weights: Weights,
        rank: Callable[..., int],
    ) -> None:
        self.classes, self.models, self.weights = tuple(classes), tuple(models), weights
        self._nodes, self._rank = nodes, rank
        self._kept: list[NDArray[Any]] = []  # what pointers point to
        self._costs: dict[Kind, _Costs] = {}
        self._steps = steps_of(self.classes)
        self._models = (Model * max(1, len(self.models)))()

    def building(self) -> Iterator[None]:
        """Set it up, in steps of a few milliseconds."""
        for at, model in enumerate(self.models):
            self._models[at] = self._model(draw(self.classes, model, self._steps))
            yield
        self._prices = Prices(self.classes, self.models, self.weights)
        self._priced_at = -_REPRICED_EVERY
        yield
        most = WHOLE_CARD_MILLI if self.weights.fragment_of_whole else WHOLE_CARD_MILLI - 1
        counted = [one for one in self.classes if 0 < one.demand.share_milli <= most]
        classes = np.zeros(len(counted), _CLASS)
        classes["frequency"] = [one.frequency_ratio for one in counted]
        classes["share"] = [one.demand.share_milli for one in counted]
        classes["cards"] = [one.demand.cards for one in counted]
        classes["cpu"] = [one.demand.cpu_milli for one in counted]
        accepts = [[one.demand.accepts(model) for one in counted] for model in self.models]
        self._policy = Policy(
            models=ctypes.addressof(self._models),
            classes=self._keep(classes),
            accepts=self._keep(np.array(accepts, np.uint8)),
            cpu_steps=self._keep(self._prices.cpu_steps),
            worth=self._prices.worth.ctypes.data,
            prices=self._prices.by_model.ctypes.data,
            names=self._zeros(np.dtype(np.uint64).itemsize * _WAYS << _SET_BITS),
            values=self._zeros(np.dtype(np.float32).itemsize * _WAYS << _SET_BITS),
            model_count=len(self.models),
            steps=self._steps,
            class_count=len(counted),
            cpu_step_count=len(self._prices.cpu_steps),
            set_bits=_SET_BITS,
            fill=self.weights.fill,
            fragment=self.weights.fragment,
        )

    def _model(self, drawn: Draws) -> Model:
        arrays = drawn.cpu, drawn.share, drawn.several, drawn.several_cpu
        return Model(*(self._keep(array) for array in arrays))

    def _keep(self, array: NDArray[Any]) -> int:
        """Return the address of a copy of *array* that lives as long as this object."""
        found = self._zeros(array.nbytes)
        ctypes.memmove(found, array.tobytes(), array.nbytes)
        return found

    def _zeros(self, size: int) -> int:
        """Return the address of so many bytes that live as long as this object."""
        room = np.zeros(size + _ALIGNED, np.uint8)
        self._kept.append(room)
        start: int = room.ctypes.data
        return start + -start % _ALIGNED

    @property
    def evaluated(self) -> int:
        """How many states have been evaluated."""
        return int(self._policy.evaluated)

    def evaluated_in(self, time_ms: int) -> int:
        """Return how many evaluations take about that time: a count, whatever the load."""
        classes = len(self.classes)
        each_ms = max(self._steps, 1) / _PAIRS_PER_MS + classes / _CLASSES_PER_MS
        return max(1, int(time_ms / each_ms))

    def costs(
        self,
        kind: Kind,
        rows: IntArray,
        *,
        allowance: int = _ANY_NUMBER,
        first: NDArray[np.float64] | None = None,
        closed: Mapping[int, int] | None = None,
    ) -> NDArray[np.float64]:
        """Return what a pod would cost on each of *rows*: thousandths of a card.

        NaN where that is not known, and infinity where the pod does not fit.

        Args:
            kind: what the pod requests.
            rows: each at most once.
            allowance: how many states may be evaluated.
            first: [row] those with the most are evaluated first, if not all are.
            closed: bits of the cards that this pod does not get, by row.
        """
        self._keep_up()
        found = self._costs_of(kind)
        if self._run(kind, rows, found, allowance=0) and allowance > 0:
            those = rows if first is None else rows[np.argsort(-first, kind="stable")]
            before = self.evaluated
            self._run(kind, those, found, allowance=allowance)
            allowance -= self.evaluated - before
        cost = found.cost[rows]
        if closed:
            at = np.flatnonzero(np.isin(rows, list(closed)))
            masks = np.array([closed[row] for row in rows[at].tolist()], np.uint32)
            cost[at] = self.costs_without(kind, rows[at], masks, allowance=allowance)[0]
        return cost

    def costs_without(
        self, kind: Kind, rows: IntArray, closed: NDArray[np.uint32], *, allowance: int
    ) -> tuple[NDArray[np.float64], NDArray[np.uint32]]:
        """Return the cost on each of *rows* without some of its cards, and the cards to take.

        Both cards are bits: the *closed* ones, and those to take.
        """
        self._keep_up()
        found = _Costs(len(rows))
        self._run(kind, rows, found, allowance=allowance, closed=closed)
        return found.cost, found.taken

    def taken(self, kind: Kind, row: int, *, closed: int, allowance: int) -> int | None:
        """Return the bits of the cards that a pod should take of one node; None if unknown."""
        masks = np.array([closed], np.uint32)
        cost, taken = self.costs_without(kind, np.array([row]), masks, allowance=allowance)
        return int(taken[0]) if np.isfinite(cost[0]) else None

    def catching_up(self) -> Iterator[None]:
        """Evaluate, in steps of about a millisecond, what was asked for and is not known."""
        for kind in tuple(reversed(self._costs)):
            costs = self._costs.get(kind)
            if costs is None:  # it was dropped meanwhile
                continue
            yield from self.warming(kind, costs.behind(self._nodes.changed))

    def warming(self, kind: Kind, rows: IntArray) -> Iterator[None]:
        """Evaluate one kind of pods on some rows, in steps of about a millisecond."""
        left = len(rows)
        while left:
            self._keep_up()
            # Looked up each time: it may have been dropped, or made longer.
            left = self._run(kind, rows, self._costs_of(kind), allowance=self.evaluated_in(1))
            yield

    def _costs_of(self, kind: Kind) -> _Costs:
        rows = len(self._nodes.model)
        before = self._costs.pop(kind, None)
        found = before or _Costs(rows)
        if before is not None and len(before.cost) < rows:
            found = _Costs(rows)
            for name, array in vars(before).items():
                vars(found)[name][: len(array)] = array
        self._costs[kind] = found  # a dict keeps insertion order: the latest last
        most = min(max(_MOST_CELLS // rows, _FEWEST_KINDS), _MOST_KINDS)
        while len(self._costs) > most:
            del self._costs[next(iter(self._costs))]
        return found

    def _keep_up(self) -> None:
        if self._nodes.now - self._priced_at >= _REPRICED_EVERY:
            self._priced_at = self._nodes.now
            self._prices.refresh(self._nodes)
            self._policy.idle = self._prices.idle

    def _run(
        self,
        kind: Kind,
        rows: IntArray,
        costs: _Costs,
        *,
        allowance: int,
        closed: NDArray[np.uint32] | None = None,
    ) -> int:
        """Call compiled code; return on how many rows the cost is not known."""
        nodes, rows = self._nodes, np.ascontiguousarray(rows, np.int64)
        if not len(rows):
            return 0
        # The library trusts these.
        assert 0 <= rows.min() <= rows.max() < len(nodes.model)
        assert len(costs.cost) == len(rows if closed is not None else nodes.model)
        table = Nodes(
            changed=nodes.changed.ctypes.data,
            cpu=nodes.cpu_milli.ctypes.data,
            model=nodes.model.ctypes.data,
            size_mib=nodes.size_mib.ctypes.data,
            levels=nodes.levels.ctypes.data,
        )
        request = Request(
            mib=kind.mib,
            cards=min(kind.cards, MAX_CARDS + 1),
            cpu=kind.cpu_milli,
            rows=rows.ctypes.data,
            count=len(rows),
            priced=self._priced_at,
            allowance=allowance,
            closed=None if closed is None else closed.ctypes.data,
            cost=costs.cost.ctypes.data,
            taken=costs.taken.ctypes.data,
            changed_at=costs.changed_at.ctypes.data,
            priced_at=costs.priced_at.ctypes.data,
        )
        return self._rank(ctypes.byref(self._policy), ctypes.byref(table), ctypes.byref(request))
