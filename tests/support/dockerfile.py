"""Reads a Dockerfile and a .dockerignore, as far as ours use them; anything else is an error.

Form and meaning: https://docs.docker.com/reference/dockerfile/ and
https://docs.docker.com/build/concepts/context/#dockerignore-files
"""

import fnmatch
import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final


class DockerfileError(Exception):
    """The Dockerfile has an instruction that this reader does not know; the text names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A command line for the shell, and its environment."""

    command: str
    workdir: str
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """Files into the image.

    Attributes:
        sources: paths in the build's context, or in the stage *stage*.
        target: an absolute path; with several sources, or a slash at its end, a folder.
        stage: the stage that they come from; empty for the context.
    """

    sources: tuple[str, ...]
    target: str
    stage: str = ""


@dataclass(slots=True, kw_only=True)
class Stage:
    """What stands between one FROM and the next."""

    base: str
    name: str = ""
    steps: list[Run | Copy] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = ""
    entrypoint: tuple[str, ...] = ()


_CONTINUED: Final = re.compile(r"\\\n")
# Where an image of python, and one from scratch, looks for programs.
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def read_dockerfile(text: str) -> list[Stage]:
    """Return the stages in order; the last one is the image.

    Raises:
        DockerfileError: an instruction is not known here.
    """
    stages: list[Stage] = []
    without_comments = "\n".join(
        line for line in text.splitlines() if not line.lstrip().startswith("#")
    )
    for line in _CONTINUED.sub(" ", without_comments).splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            stages.append(_from(rest.split()))
        elif word:
            if not stages:
                raise DockerfileError(f"{word} before FROM")
            _apply(stages[-1], word, rest.strip())
    return stages


def _from(words: list[str]) -> Stage:
    match words:
        case [base]:
            return Stage(base=base)
        case [base, "AS", name]:
            return Stage(base=base, name=name)
        case _:
            raise DockerfileError(f"FROM {' '.join(words)}; want FROM IMAGE or FROM IMAGE AS NAME")


def _apply(stage: Stage, word: str, rest: str) -> None:
    match word:
        case "RUN":
            stage.steps.append(Run(command=rest, workdir=stage.workdir, env=dict(stage.env)))
        case "COPY":
            stage.steps.append(_copy(stage, shlex.split(rest)))
        case "ENV":
            stage.env.update(_env(stage, rest))
        case "WORKDIR":
            stage.workdir = str(PurePosixPath(stage.workdir, rest))
        case "USER":
            stage.user = rest
        case "ENTRYPOINT":
            stage.entrypoint = tuple(json.loads(rest))
        case _:
            raise DockerfileError(f"{word} is not known to the tests' builder: {rest}")


def _copy(stage: Stage, words: list[str]) -> Copy:
    origin = ""
    if words[0].startswith("--from="):
        origin = words.pop(0).partition("=")[2]
    if any(word.startswith("--") for word in words) or len(words) < 2:
        raise DockerfileError(f"COPY {' '.join(words)}; want COPY [--from=STAGE] SOURCE... TARGET")
    *sources, target = words
    resolved = str(PurePosixPath(stage.workdir, target))
    if target.endswith("/"):
        resolved += "/"
    return Copy(sources=tuple(sources), target=resolved, stage=origin)


def _env(stage: Stage, rest: str) -> dict[str, str]:
    known = {"PATH": DEFAULT_PATH, **stage.env}
    found = {}
    for pair in shlex.split(rest):
        name, _, value = pair.partition("=")
        found[name] = re.sub(r"\$\{?(\w+)\}?", lambda match: known.get(match[1], ""), value)
    return found


def context_files(root: Path, ignore: str) -> list[Path]:
    """Return the files below *root* in the build context, relative to it and sorted.

    A path is excluded by the last line of *ignore* that matches it or a folder it lies in.
    """
    rules = [
        line.strip() for line in ignore.splitlines() if line.strip() and not line.startswith("#")
    ]
    found = []
    for folder, folders, files in os.walk(root):
        here = Path(folder).relative_to(root)
        # Skipping folders that are excluded whole saves most of the work.
        folders[:] = [name for name in folders if _may_hold(here / name, rules)]
        found += [here / name for name in files if not _ignored(here / name, rules)]
    return sorted(found)


def _may_hold(folder: Path, rules: Sequence[str]) -> bool:
    """Report whether something in *folder* may be included, so that it must be walked."""
    exceptions = [rule.removeprefix("!") for rule in rules if rule.startswith("!")]
    return not _ignored(folder, rules) or any(
        "*" in rule or rule.startswith(f"{folder}/") for rule in exceptions
    )


def _ignored(path: Path, rules: Iterable[str]) -> bool:
    ignored = False
    places = [str(path), *(str(parent) for parent in path.parents if str(parent) != ".")]
    for rule in rules:
        if any(_matches(place, rule.removeprefix("!")) for place in places):
            ignored = not rule.startswith("!")
    return ignored


def _matches(path: str, pattern: str) -> bool:
    """Report whether all of *path* matches: * stays within one folder, ** does not."""
    if pattern.startswith("**/"):
        rest = pattern.removeprefix("**/")
        parts = path.split("/")
        return any(_matches("/".join(parts[at:]), rest) for at in range(len(parts)))
    here, there = path.split("/"), pattern.split("/")
    return len(here) == len(there) and all(
        fnmatch.fnmatchcase(name, glob) for name, glob in zip(here, there, strict=True)
    )
