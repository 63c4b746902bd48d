"""Each worked example of CONTRIBUTING.md works, with no line beside those that are shown."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
EXAMPLES: Final = (
    "a dialect",
    "an annotation that limits placement",
    "a placement policy",
    "a card vendor",
    "a metric",
    "a rebalancing method",
)
LIMIT_S: Final = 300  # of one program, on a machine that may have much other work
# Four programs one after the other.
pytestmark = pytest.mark.timeout(4 * LIMIT_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Lines of a file, and what stands in their place."""

    file: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One section of the page: new files by path, and edits of those that are there."""

    files: dict[str, str]
    edits: tuple[Edit, ...]

    @property
    def tests(self) -> list[str]:
        return [path for path in self.touched if path.startswith("tests/")]

    def without(self, path: str) -> "Example":
        """Return the example as somebody leaves it who forgets one file."""
        files = {name: body for name, body in self.files.items() if name != path}
        return Example(files=files, edits=tuple(it for it in self.edits if it.file != path))

    @property
    def touched(self) -> list[str]:
        return sorted({*self.files, *(it.file for it in self.edits)})


def section(title: str) -> str:
    found = re.search(rf"^### Add {title}\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"CONTRIBUTING.md has no section on {title}"
    return found[1]


def fenced(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def read_example(title: str) -> Example:
    text = section(title)
    files = {}
    for block in fenced(text, "python"):
        head, _, body = block.partition("\n")
        files[head.removeprefix("# ")] = body
    return Example(
        files=files, edits=tuple(edit for it in fenced(text, "diff") for edit in edits(it))
    )


def edits(diff: str) -> Iterator[Edit]:
    """Read a unified diff without line numbers; a hunk's old lines must occur once in its file."""
    for part in re.split(r"^--- a/", diff, flags=re.MULTILINE)[1:]:
        head, *hunks = re.split(r"^@@\n", part, flags=re.MULTILINE)
        for hunk in hunks:
            lines = hunk.splitlines(keepends=True)
            yield Edit(
                file=head.splitlines()[0],
                before="".join(line[1:] for line in lines if line[0] in " -"),
                after="".join(line[1:] for line in lines if line[0] in " +"),
            )


def add(example: Example, checkout: Path) -> None:
    for path, body in example.files.items():
        assert not (checkout / path).exists(), f"{path} is there already"
        (checkout / path).write_text(body, encoding="utf-8")
    for edit in example.edits:
        file = checkout / edit.file
        text = file.read_text(encoding="utf-8")
        assert text.count(edit.before) == 1, f"{edit.file} has not once:\n{edit.before}"
        file.write_text(text.replace(edit.before, edit.after), encoding="utf-8")


def run(checkout: Path, tool: str, *words: str) -> None:
    """Have one of our tools pass in the copy."""
    done = result_of(checkout, tool, *words)
    assert done.returncode == 0, done.stdout + done.stderr


def result_of(checkout: Path, tool: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run one of our tools in the copy, whose packages come before the installed ones."""
    return subprocess.run(  # noqa: S603 - our own tools
        [Path(sys.executable).with_name(tool), *words],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Copy the repository without what git and the tools keep in it.

    Bytecode comes along: it holds for a file's time and size, wherever that is.
    """
    copy = tmp_path / "copy"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "*.egg-info", "build"))
    shutil.copy(ROOT / ".importlinter", copy)
    return copy


def test_the_page_has_exactly_these_examples() -> None:
    assert tuple(re.findall(r"^### Add (.+)$", PAGE, re.MULTILINE)) == EXAMPLES


@pytest.mark.parametrize("title", EXAMPLES)
def test_an_example_works_with_no_line_beside_those_shown(title: str, checkout: Path) -> None:
    example = read_example(title)
    assert example.tests
    add(example, checkout)

    run(checkout, "pytest", "-q", "-p", "no:cacheprovider", *example.tests)


def test_examples_keep_the_style_and_the_import_contracts(checkout: Path) -> None:
    examples = [read_example(title) for title in EXAMPLES]
    for example in examples:
        add(example, checkout)

    touched = sorted({path for example in examples for path in example.touched})
    run(checkout, "ruff", "check", "--no-cache", *touched)
    run(checkout, "ruff", "format", "--no-cache", "--check", *touched)
    run(checkout, "lint-imports", "--no-cache")


RULE: Final = read_example("an annotation that limits placement")
# Of what a newcomer runs, by `make test`, what has to do with an annotation; the fastest first.
# None of these draws examples: whatever is forgotten is refused in every run.
_FIT: Final = "tests/fracgpu/placement/test_fit.py"
GUARDS: Final = (
    "tests/docs/test_manifests.py::test_every_key_of_a_request_has_a_row_in_the_reference",
    "tests/fracgpu/request/test_language.py::test_every_key_is_read",
    f"{_FIT}::test_a_need_has_every_fact_of_its_request",
    f"{_FIT}::test_every_fact_of_a_pod_is_asked_by_a_rule",
)


def test_an_annotation_that_limits_placement_takes_six_files() -> None:
    assert len(RULE.touched) == 6


@pytest.mark.parametrize("forgotten", [None, *RULE.touched])
def test_an_annotation_that_limits_placement_is_refused_if_a_file_is_forgotten(
    forgotten: str | None, checkout: Path
) -> None:
    add(RULE if forgotten is None else RULE.without(forgotten), checkout)

    done = result_of(checkout, "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider", *GUARDS)

    assert (done.returncode == 0) == (forgotten is None), done.stdout + done.stderr


@pytest.mark.parametrize("title", EXAMPLES)
def test_every_path_that_a_section_names_exists(title: str) -> None:
    example = read_example(title)
    prose = re.sub(r"^```.*?^```$", "", section(title), flags=re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`([a-z_]+/[\w./-]+)`", prose))

    assert named
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
    assert all((ROOT / path).parent.is_dir() for path in example.files)
