"""What an import linter cannot see, and that the linter itself is content."""

import ast
import subprocess
import sys
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


def sources(package: str) -> list[Path]:
    return [path for path in (ROOT / package).rglob("*.py") if "_pb2" not in path.name]


def test_the_import_contracts_hold() -> None:
    run = subprocess.run(  # noqa: S603 - our own tool, no input from outside
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stdout


@pytest.mark.parametrize("path", sources("fracgpu"), ids=lambda path: path.stem)
def test_the_core_calls_no_builtin_that_touches_the_world(path: Path) -> None:
    tree = ast.parse(path.read_text())

    called = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }

    assert not called & IMPURE_BUILTINS


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_has_a_test_file_of_its_name(package: str) -> None:
    missing = []
    for path in sources(package):
        relative = path.relative_to(ROOT)
        if path.name in ("__init__.py", "__main__.py") or "proto" in relative.parts:
            continue
        test = ROOT / "tests" / relative.parent / f"test_{path.name}"
        if not test.exists():
            missing.append(f"{relative} wants {test.relative_to(ROOT)}")

    assert not missing, "\n".join(missing)


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
        for node in ast.walk(ast.parse(path.read_text())):
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
