"""Layers: what an import linter cannot see; tests/contributing runs the linter."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "fracgpu",
    "kube",
    "process",
    "component",
    "certs",
    "webhook",
    "scheduler",
    "deviceplugin",
    "rebalancer",
    "simulator",
    "cli",
)
IMPURE_BUILTINS = {"open", "print", "input", "exec", "eval", "breakpoint"}
BENCHMARK_ROOMS = (
    "benchmarks",
    "benchmarks/fixtures",
    "benchmarks/gpu_check",
    "benchmarks/resources",
)
MOST_MODULES = 15
# What stands in every file with something to find: the others need not be parsed.
SUSPECT = re.compile(r"unittest|create_task|gather|ensure_future")
TAKES_A_PRIVATE_NAME = re.compile(r"^\s*from .* import (?:\([^)]*\b_|.*\b_)", re.MULTILINE)


def sources(package: str) -> list[Path]:
    return [path for path in (ROOT / package).rglob("*.py") if "_pb2" not in path.name]


def modules_in(folder: Path) -> list[Path]:
    return [
        file
        for file in folder.glob("*.py")
        if file.name != "__init__.py" and "_pb2" not in file.name
    ]


ROOMS = sorted(
    {
        path.parent.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in sources(package)
        if path.name != "__init__.py"
    }
)


@pytest.mark.parametrize("path", sources("fracgpu"), ids=lambda path: path.stem)
def test_the_core_calls_no_builtin_that_does_io(path: Path) -> None:
    tree = ast.parse(path.read_text())

    called = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }

    assert not called & IMPURE_BUILTINS


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_has_tests(room: str) -> None:
    assert list((ROOT / "tests" / room).glob("test_*.py"))


@pytest.mark.parametrize("room", [*ROOMS, *BENCHMARK_ROOMS])
def test_a_room_says_what_it_is_for_and_where_to_start(room: str) -> None:
    text = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text())) or ""
    first, *rest = text.splitlines()

    assert first.endswith(".")
    assert re.search(r"\bStart (with|at) [`:]", " ".join(rest))


@pytest.mark.parametrize("room", [*ROOMS, *BENCHMARK_ROOMS])
def test_no_room_is_a_corridor(room: str) -> None:
    assert (
        len([module for module in modules_in(ROOT / room) if module.name != "__main__.py"])
        <= MOST_MODULES
    )


@pytest.mark.parametrize("room", ["component", *(room for room in ROOMS if "/" in room)])
def test_no_room_offers_the_same_name_twice(room: str) -> None:
    bound = [
        node
        for node in ast.parse((ROOT / room / "__init__.py").read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]

    assert not bound or room == "fracgpu/request/dialects"  # what a package offers


def test_the_documents_show_every_room_and_no_other() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()

    shown = set(re.findall(r"^\| `([a-z0-9_/]+)/` \|", page, re.MULTILINE))

    assert shown == {*ROOMS, *BENCHMARK_ROOMS}


def test_no_test_names_a_private_name_of_another_room() -> None:
    offenders = []
    for path in (ROOT / "tests").rglob("*.py"):
        own = path.relative_to(ROOT / "tests").parent.as_posix().replace("/", ".")
        text = path.read_text()
        if not TAKES_A_PRIVATE_NAME.search(text):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            if node.module.partition(".")[0] not in {*PACKAGES, "benchmarks"}:
                continue
            private = [alias.name for alias in node.names if alias.name.startswith("_")]
            if private and node.module.rpartition(".")[0] != own:
                offenders.append(f"{path}: {node.module}: {private}")

    assert not offenders


@pytest.mark.parametrize("package", PACKAGES)
def test_a_module_opens_with_one_sentence(package: str) -> None:
    mute = [
        str(path.relative_to(ROOT))
        for path in sources(package)
        if not (ast.get_docstring(ast.parse(path.read_text())) or "").strip()
    ]

    assert not mute


@pytest.mark.parametrize("package", [*PACKAGES, "tests"])
def test_nobody_patches_and_every_task_has_an_owner(package: str) -> None:
    offenders = []
    for path in sources(package):
        text = path.read_text()
        if not SUSPECT.search(text):
            continue
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.ImportFrom(module=str(module)) if module.startswith("unittest.mock"):
                    offenders.append(f"{path}: unittest.mock")
                case ast.Import(names=names) if any(n.name.startswith("unittest") for n in names):
                    offenders.append(f"{path}: unittest")
                case ast.Attribute(
                    value=ast.Name(id="asyncio"), attr="create_task" | "gather" | "ensure_future"
                ):
                    offenders.append(f"{path}: asyncio.{node.attr}")
                case _:
                    pass

    assert not offenders
