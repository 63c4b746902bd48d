"""The language of product code: variables have names, docstrings begin with what is done."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.architecture.test_layers import ROOT

PRODUCT: Final = (
    "benchmarks", "certs", "cli", "component", "deviceplugin", "fracgpu", "kube", "process",
    "rebalancer", "scheduler", "simulator", "tools", "webhook",
)  # fmt: skip

# None of these says what is returned or done; "Return", "Report whether" and "Write" do.
VAGUE: Final = frozenset(
    {"Give", "Gives", "Hand", "Hands", "Let", "Lets", "Say", "Says", "Tell", "Tells"}
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources() -> list[Path]:
    files = [
        file
        for package in PRODUCT
        for file in sorted((ROOT / package).rglob("*.py"))
        if "_pb2" not in file.name
    ]
    assert files
    return files


def public(body: list[ast.stmt]) -> Iterator[Function | ast.ClassDef]:
    """Yield public functions and classes, and the public members of those classes."""
    for statement in body:
        if isinstance(statement, Function | ast.ClassDef) and not statement.name.startswith("_"):
            yield statement
            if isinstance(statement, ast.ClassDef):
                yield from public(statement.body)


def vague_docstrings(tree: ast.Module) -> list[tuple[int, str]]:
    """Return line and first word of the public docstrings that begin with a vague word."""
    found = []
    for node in (tree, *public(tree.body)):
        first = (ast.get_docstring(node) or "").partition(" ")[0].rstrip(".,:;")
        if first in VAGUE:
            found.append((getattr(node, "lineno", 1), first))
    return found


def called_it(tree: ast.AST) -> list[int]:
    """Return the lines where a variable or a parameter is called ``it``."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Name) and node.id == "it" and isinstance(node.ctx, ast.Store))
        or (isinstance(node, ast.arg) and node.arg == "it")
    ]


def test_no_variable_is_called_it() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}"
        for file in sources()
        for line in called_it(ast.parse(file.read_text()))
    ]

    assert found == []


def test_each_public_docstring_begins_with_what_is_returned_or_done() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {word}"
        for file in sources()
        for line, word in vague_docstrings(ast.parse(file.read_text()))
    ]

    assert found == []
