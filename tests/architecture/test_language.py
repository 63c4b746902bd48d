"""The language of product code: loop variables have names, docstrings begin with what is done."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

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


def loop_targets(tree: ast.AST) -> Iterator[ast.expr | ast.arg]:
    """Yield what for-loops, comprehensions and lambdas bind."""
    for node in ast.walk(tree):
        match node:
            case ast.For() | ast.AsyncFor():
                yield node.target
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                yield from (generator.target for generator in node.generators)
            case ast.Lambda(args=args):
                yield from (*args.posonlyargs, *args.args, *args.kwonlyargs)
            case _:
                pass


def lines_with_it(tree: ast.AST) -> list[int]:
    """Return the lines where a loop or lambda variable is called ``it``."""
    bound = (node for target in loop_targets(tree) for node in ast.walk(target))
    return sorted(
        node.lineno
        for node in bound
        if (isinstance(node, ast.Name) and node.id == "it")
        or (isinstance(node, ast.arg) and node.arg == "it")
    )


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


def test_no_loop_or_lambda_variable_is_called_it() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}"
        for file in sources()
        for line in lines_with_it(ast.parse(file.read_text()))
    ]

    assert found == []


def test_each_public_docstring_begins_with_what_is_returned_or_done() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {word}"
        for file in sources()
        for line, word in vague_docstrings(ast.parse(file.read_text()))
    ]

    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "for it in pods: pass",
        "[it for it in pods]",
        "{it: 1 for it in pods}",
        "{n for n, (it, _) in pods}",
        "sum(it for it in pods)",
        "sorted(pods, key=lambda it: it.name)",
        "async def f():\n    async for it in pods: pass",
    ],
)
def test_each_form_of_loop_is_seen(text: str) -> None:
    assert lines_with_it(ast.parse(text)) != []


def test_only_public_docstrings_are_judged() -> None:
    text = '''"""Tell one."""
def a(): """Give two."""
def _b(): """Give three."""
class C:
    """Return four."""
    async def d(self): """Let five."""
'''

    assert vague_docstrings(ast.parse(text)) == [(1, "Tell"), (2, "Give"), (6, "Let")]
