"""The waste to expect of a node whose cards are in some state, remembered in bounded memory.

The order of a node's cards does not matter, nor do full cards or remainders too small to be used,
so nodes share states. A state has a name of 64 bits. Its expected waste is evaluated for whole
numbers of free cores, and interpolated linearly in between. What has been evaluated is kept in a
table of fixed size, where a new entry takes the place of a single older one: on a cluster where
each node is in a state of its own, and there are more states than any memory holds, nothing is lost
at once.

An evaluation takes 10 to 20 microseconds, so each caller says how many it can wait for.
"""

from typing import Final, Protocol

import numpy as np
from numpy.random import Philox  # NumPy imports it late, and that takes 15 ms
from numpy.typing import NDArray

from fracgpu.placement.node_matrix import WHOLE_CARD_MILLI, IntArray, Levels
from fracgpu.placement.policies.least_waste.fill.compiled_evaluation import (
    CompiledEvaluation,
    Question,
)
from fracgpu.placement.policies.least_waste.fill.compiled_fill import CompiledFill
from fracgpu.placement.policies.least_waste.fill.compiled_options import (
    CompiledOptions,
    StateTables,
)
from fracgpu.placement.policies.least_waste.fill.compiled_states import (
    WAYS,
    CompiledNames,
    CompiledTable,
    Names,
    Waste,
)

CPU_STEP_MILLI: Final = 1000
_TOP_CORES: Final = 256  # more free CPU than this is of no use to the cards of one node
_NEIGHBOURS: Final = np.arange(-2, 4)  # the two steps to interpolate between, and two either side
_BRACKET: Final = np.arange(2)
_FEW: Final = 8  # up to this many states, evaluating neighbours as well costs hardly more
_BATCH: Final = 64  # keeps an evaluation inside the processor's cache
_FEWEST_SETS: Final = 1 << 14
_MOST_SETS: Final = 1 << 18
_SETS_PER_NODE: Final = 32
_SEED: Final = 20_261_122
_ANY_NUMBER: Final = 2**40
_BYTES: Final = 12  # of an entry: its name and its value


class Evaluation(Protocol):
    """What is evaluated of nodes.

    Attributes:
        lost_milli: [model] the largest remainder of a card that counts as lost, in thousandths.
    """

    @property
    def lost_milli(self) -> NDArray[np.int16]: ...

    def expected_waste_milli(
        self, levels: Levels, cpu_milli: NDArray[np.int32], model: IntArray
    ) -> Waste:
        """Return the expected waste of each node, in thousandths of a card, [node]."""
        ...


class Allowance:
    """How many evaluations are left to a request.

    Args:
        evaluations: the most there may be; None for any number.
    """

    def __init__(self, evaluations: int | None = None) -> None:
        self._left = evaluations

    @property
    def spent(self) -> bool:
        """Whether nothing more may be evaluated."""
        return self._left is not None and self._left <= 0

    def most(self, wanted: int) -> int:
        """Return how many of the *wanted* evaluations there may be."""
        return wanted if self._left is None else max(0, min(wanted, self._left))

    def spend(self, evaluations: int) -> None:
        if self._left is not None:
            self._left -= evaluations


class CardStates:
    """Names the states of nodes' cards, and remembers the expected waste.

    Args:
        evaluation: what is evaluated.
        models: number of card models.
        nodes: how many nodes there may be; the memory follows.
        compiled: whether compiled code looks things up; the answers are the same.

    Attributes:
        evaluated: how many pairs of state and CPU have been evaluated.
        options: compiled code that works on options with these states; None for that in NumPy.
        evaluation: compiled code that looks up what has to be evaluated; likewise.
    """

    def __init__(
        self,
        evaluation: Evaluation,
        *,
        models: int,
        nodes: int,
        compiled: bool = CompiledFill.problem is None,
    ) -> None:
        self._evaluation, self._compiled = evaluation, compiled
        self.evaluated = 0
        # The name of a state is the sum of the names of its cards: no order, and 0 for a lost card.
        drawn = Philox(_SEED).random_raw(models * (WHOLE_CARD_MILLI + 1))
        self._card_names: Names = drawn.reshape(models, WHOLE_CARD_MILLI + 1)
        self._lost_milli = np.zeros(self._card_names.shape, np.int16)
        for model, lost in enumerate(evaluation.lost_milli.tolist()):
            self._lost_milli[model, : lost + 1] = np.arange(lost + 1)
            self._card_names[model, : lost + 1] = 0
        self._model_names: Names = Philox(_SEED + 1).random_raw(models + 1)
        self._namer: CompiledNames | None = None
        if compiled:
            self._namer = CompiledNames(self._card_names, self._lost_milli, self._model_names)
        self.make_room(nodes=nodes)

    def make_room(self, *, nodes: int) -> None:
        """Make the memory fit another number of nodes; what was evaluated is forgotten."""
        wanted = max(_FEWEST_SETS, min(_MOST_SETS, nodes * _SETS_PER_NODE))
        self._bits = (wanted - 1).bit_length()
        sets = 1 << self._bits
        self._names: Names = np.zeros((sets, WAYS), np.uint64)  # 0 is no entry's name
        self._values: Waste = np.zeros((sets, WAYS), np.float32)
        self._next = np.zeros(sets, np.uint8)
        self._table: CompiledTable | None = None
        self.options: CompiledOptions | None = None
        self.evaluation: CompiledEvaluation | None = None
        if self._compiled:
            self._table = CompiledTable(self._names, self._values, bits=self._bits)
            self.options = CompiledOptions(
                StateTables(
                    names=self._names,
                    values=self._values,
                    next_way=self._next,
                    bits=self._bits,
                    card_names=self._card_names,
                    lost_milli=self._lost_milli,
                    model_names=self._model_names,
                )
            )
            self.evaluation = CompiledEvaluation(self.options)

    @property
    def memory_bytes(self) -> int:
        """The size of the table of what has been evaluated."""
        return self._names.size * _BYTES

    def names(self, model: IntArray, levels: Levels) -> tuple[Names, Waste]:
        """Return each node's state, and the thousandths of its cards that are lost in remainders.

        Args:
            model: [node] index of the card model.
            levels: [node, card] free thousandths.
        """
        if self._namer is not None:
            return self._namer.names(model, levels)
        cells = model[:, None], levels
        names: Names = self._card_names[cells].sum(1, dtype=np.uint64)
        names += self._model_names[model]
        return names, self._lost_milli[cells].sum(1, dtype=np.float32)

    def waste_milli(self, names: Names, cpu_milli: IntArray) -> Waste:
        """Return the thousandths of cards expected to stay idle, [node]; NaN where not evaluated.

        Args:
            names: [node] the state, as `names` returned it.
            cpu_milli: [node] free thousandths of a core, 0 or more.
        """
        if self._table is not None:
            return self._table.waste_milli(names, cpu_milli)
        step, part = _steps(cpu_milli)
        return _between(self._find(_entry(names, step)), self._find(_entry(names, step + 1)), part)

    def evaluate(
        self,
        names: Names,
        cpu_milli: IntArray,
        *,
        model: IntArray,
        levels: Levels,
        allowance: Allowance,
    ) -> Waste:
        """Return what `waste_milli` does, and evaluate what is not known as far as that may be.

        Args:
            names: [node] the state; what comes first is evaluated first.
            cpu_milli: [node] free thousandths of a core, 0 or more.
            model: [node] index of the card model.
            levels: [node, card] free thousandths, of which `names` made the name.
            allowance: how much may be evaluated.
        """
        if self.evaluation is not None:
            question = self.evaluation.question(len(names), levels.shape[1])
            count = len(names)
            question.names[:count], question.cpu_milli[:count] = names, cpu_milli
            question.model[:count], question.levels[:count] = model, levels
            self.answer(question, count, allowance)
            return question.found[:count].copy()
        step, part = _steps(cpu_milli)
        low, high = self._find(_entry(names, step)), self._find(_entry(names, step + 1))
        missing = np.flatnonzero(np.isnan(low) | np.isnan(high))
        if len(missing) and not allowance.spent:
            wide = _FEW * len(_NEIGHBOURS)
            few = len(missing) <= _FEW and allowance.most(wide) == wide
            near = _NEIGHBOURS if few else _BRACKET
            at = np.clip(step[missing, None] + near, 0, _TOP_CORES + 1)
            node = np.repeat(missing, len(near))
            entries = _entry(names[node], at.ravel())
            found, values = self._evaluated(
                entries, at.ravel(), model[node], (levels, node), allowance
            )
            for known, entry in ((low, step), (high, step + 1)):
                unknown = missing[np.isnan(known[missing])]
                known[unknown] = _read(found, values, _entry(names[unknown], entry[unknown]))
        return _between(low, high, part)

    def answer(self, question: Question, count: int, allowance: Allowance) -> None:
        """Do what `evaluate` does with the first *count* states of a question, by compiled code."""
        evaluation = self.evaluation
        assert evaluation is not None
        new = evaluation.missing(question, count, most=allowance.most(_ANY_NUMBER))
        allowance.spend(new)
        self.evaluated += new
        values = self._values_of(
            question.entry_levels[:new], question.entry_cpu[:new], question.entry_model[:new]
        )
        evaluation.answer(question, count, values)

    def _values_of(self, levels: Levels, cpu_milli: NDArray[np.int32], model: IntArray) -> Waste:
        """Evaluate nodes, a batch at a time."""
        values = np.empty(len(model), np.float32)
        for start in range(0, len(model), _BATCH):
            batch = slice(start, start + _BATCH)
            values[batch] = self._evaluation.expected_waste_milli(
                levels[batch], cpu_milli[batch], model[batch]
            )
        return values

    def _evaluated(
        self,
        entries: Names,
        step: IntArray,
        model: IntArray,
        cards: tuple[Levels, IntArray],
        allowance: Allowance,
    ) -> tuple[Names, Waste]:
        """Evaluate entries, the first ones first; return them in ascending order, with values."""
        new = np.flatnonzero(np.isnan(self._find(entries)))
        seen: dict[int, int] = {}
        for at, entry in zip(new.tolist(), entries[new].tolist(), strict=True):
            seen.setdefault(entry, at)
        first = np.fromiter(seen.values(), np.int64, len(seen))
        first = first[: allowance.most(len(first))]
        allowance.spend(len(first))
        self.evaluated += len(first)
        levels, node = cards
        left, of = levels[node[first]], model[first]
        values = self._values_of(
            np.where(left <= self._evaluation.lost_milli[of][:, None], np.int16(0), left),
            (step[first] * CPU_STEP_MILLI).astype(np.int32),
            of,
        )
        self._keep(entries[first], values)
        order = np.argsort(entries[first])
        return entries[first][order], values[order]

    def _find(self, entries: Names) -> Waste:
        """Return the value of each entry; NaN for one that is not there."""
        where = self._set_of(entries)
        hit = self._names[where] == entries[:, None]
        values = self._values[where, hit.argmax(1)]
        return np.where(hit.any(1), values, np.float32(np.nan))

    def _keep(self, entries: Names, values: Waste) -> None:
        where = self._set_of(entries)
        # Of several new entries of one set, the first takes the next place, and so on.
        order = np.argsort(where, kind="stable")
        where, entries, values = where[order], entries[order], values[order]
        first = np.flatnonzero(np.diff(where, prepend=-1))
        count = np.diff(np.append(first, len(where)))
        nth = np.arange(len(where)) - np.repeat(first, count)
        way = (self._next[where] + nth) % WAYS
        self._names[where, way], self._values[where, way] = entries, values
        self._next[where[first]] = (self._next[where[first]] + count) % WAYS

    def _set_of(self, entries: Names) -> IntArray:
        return (entries >> np.uint64(64 - self._bits)).astype(np.int64)


def _steps(cpu_milli: IntArray) -> tuple[IntArray, Waste]:
    """Return the whole cores below, and how far the CPU is on the way to the next, 0..1."""
    step = np.minimum(cpu_milli // CPU_STEP_MILLI, _TOP_CORES)
    part = np.minimum(cpu_milli - step * CPU_STEP_MILLI, CPU_STEP_MILLI).astype(np.float32)
    part /= CPU_STEP_MILLI
    return step, part


def _between(low: Waste, high: Waste, part: Waste) -> Waste:
    expected: Waste = low + (high - low) * part
    return expected


def _entry(names: Names, step: IntArray) -> Names:
    """Return the names of states at whole numbers of cores, spread evenly; never 0.

    The spreading is the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
    """
    found = names + (step.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    found ^= found >> np.uint64(30)
    found *= np.uint64(0xBF58476D1CE4E5B9)
    found ^= found >> np.uint64(27)
    found *= np.uint64(0x94D049BB133111EB)
    found ^= found >> np.uint64(31)
    return found | np.uint64(1)


def _read(entries: Names, values: Waste, wanted: Names) -> Waste:
    """Return the value of each wanted entry among *entries*, which ascend; NaN if it is not."""
    if not len(entries):
        return np.full(len(wanted), np.nan, np.float32)
    at = np.minimum(np.searchsorted(entries, wanted), len(entries) - 1)
    return np.where(entries[at] == wanted, values[at], np.float32(np.nan))
