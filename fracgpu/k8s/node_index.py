"""Which nodes selectors and required node affinity allow, found without going through the nodes."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from itertools import accumulate
from operator import or_

from fracgpu.k8s.node_affinity import NAME_FIELD, NodeExpression, NodeRules
from fracgpu.k8s.selectors import label_number


class NodeIndex:
    """The labels of nodes, by key and value.

    A set of nodes is an ``int`` with one bit for each node (a bitmap index), so that what an
    expression selects takes a few operations on integers, whatever the number of nodes: less than
    a microsecond at 5,000. Only ``Gt`` and ``Lt`` need the values of a label in order; that order
    is made when it is asked for, and again after a change of that label on some node.
    """

    def __init__(self) -> None:
        self.nodes = 0
        self._positions: dict[str, int] = {}
        self._names: list[str] = []
        self._free: list[int] = []
        self._labels: dict[str, Mapping[str, str]] = {}
        # A value that one node has, as host names are, is kept as that node's position p, written
        # as ~p: bitmaps of them would take memory that grows with the square of the nodes.
        self._values: dict[str, dict[str, int]] = {}
        self._labelled: dict[str, int] = {}
        self._ordered: dict[str, tuple[list[int], list[int]]] = {}

    def put(self, node: str, labels: Mapping[str, str]) -> int:
        """Index a node as it is now, and return its position, which it keeps until removed."""
        position = self._positions.get(node)
        if position is None:
            position = self._positions[node] = self._free.pop() if self._free else len(self._names)
            self._names[position : position + 1] = [node]
            self.nodes |= 1 << position
        before = self._labels.get(node, {})
        if before != labels:
            self._replace(position, before, labels)
            self._labels[node] = labels
        return position

    def remove(self, node: str) -> int | None:
        """Forget a node, and return the position that it had; None for an unknown one."""
        position = self._positions.pop(node, None)
        if position is not None:
            self._replace(position, self._labels.pop(node, {}), {})
            self._free.append(position)
            self.nodes ^= 1 << position
        return position

    def names(self, nodes: int) -> Iterator[str]:
        """Yield the names of a set of nodes."""
        while nodes:
            lowest = nodes & -nodes
            yield self._names[lowest.bit_length() - 1]
            nodes ^= lowest

    def selected(self, rules: NodeRules) -> int:
        """Return the nodes for which :meth:`NodeRules.selects` holds."""
        known: dict[NodeExpression, int] = {}
        found = self.nodes
        for wanted in rules.selector:
            found &= self._matching(wanted, known)
        if rules.terms is None:
            return found
        any_term = 0
        for term in rules.terms:
            matching = self.nodes if term else 0
            for wanted in term:
                matching &= self._matching(wanted, known)
            any_term |= matching
        return found & any_term

    def _matching(self, wanted: NodeExpression, known: dict[NodeExpression, int]) -> int:
        found = known.get(wanted)
        if found is None:
            found = known[wanted] = self._find(wanted)
        return found

    def _find(self, wanted: NodeExpression) -> int:
        match wanted.operator:
            case "In":
                return self._having(wanted)
            case "NotIn":
                return self.nodes & ~self._having(wanted)
            case "Exists":
                return self._present(wanted)
            case "DoesNotExist":
                return self.nodes & ~self._present(wanted)
            case "Gt" | "Lt":
                return self._compared(wanted)
            case _:  # an operator of a later release selects nothing, as in NodeExpression.holds
                return 0

    def _having(self, wanted: NodeExpression) -> int:
        """Return the nodes that have one of the values."""
        found = 0
        if wanted.by_field:
            for name in set(wanted.values) if wanted.key == NAME_FIELD else ():
                position = self._positions.get(name)
                found |= 0 if position is None else 1 << position
            return found
        values = self._values.get(wanted.key, {})
        for value in set(wanted.values):
            found |= _bitmap(values.get(value, 0))
        return found

    def _present(self, wanted: NodeExpression) -> int:
        if wanted.by_field:
            return self.nodes if wanted.key == NAME_FIELD else 0
        return self._labelled.get(wanted.key, 0)

    def _compared(self, wanted: NodeExpression) -> int:
        limit = label_number(wanted.values[0]) if wanted.values else None
        if limit is None or wanted.by_field:
            return 0
        numbers, below = self._in_order(wanted.key)
        if wanted.operator == "Lt":
            return below[bisect_left(numbers, limit)]
        return below[-1] & ~below[bisect_right(numbers, limit)]

    def _in_order(self, key: str) -> tuple[list[int], list[int]]:
        """Return a label's numbers, ascending, and the nodes that have one of the first so many."""
        found = self._ordered.get(key)
        if found is None:
            by_number = sorted(
                (number, _bitmap(entry))
                for value, entry in self._values.get(key, {}).items()
                if (number := label_number(value)) is not None
            )
            below = list(accumulate((nodes for _, nodes in by_number), or_, initial=0))
            found = self._ordered[key] = ([number for number, _ in by_number], below)
        return found

    def _replace(self, position: int, before: Mapping[str, str], labels: Mapping[str, str]) -> None:
        for key, value in before.items():
            if labels.get(key) != value:
                self._unset(position, key, value)
        for key, value in labels.items():
            if before.get(key) != value:
                values = self._values.setdefault(key, {})
                others = values.get(value)
                values[value] = ~position if others is None else _bitmap(others) | 1 << position
                self._labelled[key] = self._labelled.get(key, 0) | 1 << position
                self._ordered.pop(key, None)

    def _unset(self, position: int, key: str, value: str) -> None:
        values = self._values[key]
        left = _bitmap(values[value]) & ~(1 << position)
        if left:
            values[value] = left
        else:
            del values[value]
        self._labelled[key] &= ~(1 << position)
        if not values:
            del self._values[key], self._labelled[key]
        self._ordered.pop(key, None)


def _bitmap(entry: int) -> int:
    return 1 << ~entry if entry < 0 else entry
