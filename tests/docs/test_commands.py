"""Every command that a document shows exists, with the flags, files and targets that it names."""

import argparse
import importlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from cli.commands.run import ROLES
from cli.completion import arguments_of
from cli.main import COMMANDS
from process.settings import usage
from tests.support.helm import ROOT
from tests.support.markdown import code, documents
from tests.support.yaml_files import read_yaml

DOCUMENTS: Final = [path for path in documents() if path.name != "CHANGELOG.md"]
NAMES: Final = [str(path.relative_to(ROOT)) for path in DOCUMENTS]
# At the beginning, in a container, or beside a prompt's variables.
_OURS: Final = re.compile(r"^(?:kubectl |.* -- |[A-Z_]+=\S+ )?fracgpu (?P<words>[a-z].*)$")
_MAKE: Final = re.compile(r"^(?:.*&& )?(?:[A-Z_]+=\S+ )*make (?P<words>[a-z].*)$")
_FLAG: Final = re.compile(r"(?<![\w-])--?[a-z][\w-]*")
_ALONE: Final = re.compile(r"--[a-z][\w-]*(?=[= ]|$)")
# Flags of other programs that our documents speak of.
FOREIGN: Final = {
    "--force-conflicts": "helm",
    "--set": "helm",
    "--no-hooks": "helm",
    "--wait": "helm",
    "--root-dir": "kubelet",
    "--node-labels": "kubelet",
}
_KUBECTL: Final = re.compile(r"(?:^|&& |\$\()kubectl (?P<words>[^|&;>)]+)")
_SET: Final = re.compile(r"--set[= ](?P<path>[a-zA-Z][\w.\[\]]*)=")
# Beside a command, or alone where a reader puts it into an overlay.
_FOLDER: Final = re.compile(
    r"(?:kubectl .*?-k |^(?:\.\./)?(?=overlays/\w))(?P<path>(?:deploy|overlays)[^\s\]]*)"
)
_FILE: Final = re.compile(r"kubectl .*?-f (?P<path>(?:docs|deploy|overlays|charts)/\S*)")


def lines(document: str) -> list[str]:
    return list(code((ROOT / document).read_text()))


def parser_of(words: list[str]) -> tuple[argparse.ArgumentParser, str]:
    """Return the parser that reads these words, and which of them name the command."""
    name, *rest = words
    parser, said = arguments_of(name), name
    for word in rest:
        nested = [it for it in parser._actions if isinstance(it, argparse._SubParsersAction)]
        if not nested or word not in nested[0].choices:
            break
        parser, said = nested[0].choices[word], f"{said} {word}"
    return parser, said


@cache
def role_flags(role: str) -> frozenset[str]:
    """Return the flags of ``fracgpu run ROLE``; none of a role that stands for any."""
    if role not in ROLES:
        return frozenset()
    settings = vars(importlib.import_module(f"{role}.settings"))[ROLES[role].settings]
    found = re.findall(r"^ *(--[a-z][\w-]*)", usage(settings, program=role), re.MULTILINE)
    return frozenset(found)


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """Return the options of a parser and of its subcommands."""
    found = {option for action in parser._actions for option in action.option_strings}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {option for it in action.choices.values() for option in options_of(it)}
    return found


def unknown(words: str) -> Iterator[str]:
    """Yield what the command line does not know."""
    name = words.split(maxsplit=1)[0].strip("|,.:;")
    if name not in COMMANDS:
        yield f"fracgpu {name}"
        return
    parser, said = parser_of(re.sub(r"[\[\]]", "", words).split())
    known = {option for action in parser._actions for option in action.option_strings}
    if name == "run":
        known |= role_flags("".join(words.split()[1:2]))
    yield from (f"fracgpu {said} {flag}" for flag in _FLAG.findall(words) if flag not in known)


@pytest.mark.parametrize("document", NAMES)
def test_every_fracgpu_command_exists_with_its_flags(document: str) -> None:
    found = [match["words"] for line in lines(document) if (match := _OURS.match(line))]

    assert [what for words in found for what in unknown(words)] == []


def test_commands_are_found_and_what_does_not_exist_is_told() -> None:
    found = [line for name in NAMES for line in lines(name) if _OURS.match(line)]

    assert len(found) > 40
    assert list(unknown("moves --wach")) == ["fracgpu moves --wach"]
    assert list(unknown("certs rotate [--ca] [--all]")) == ["fracgpu certs rotate --all"]
    assert list(unknown("card")) == ["fracgpu card"]


@pytest.mark.parametrize("document", NAMES)
def test_every_make_target_exists_with_its_options(document: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, re.MULTILINE))
    options = set(re.findall(r"^([A-Z_]+) \?=", makefile, re.MULTILINE))
    found = [match["words"] for line in lines(document) if (match := _MAKE.match(line))]

    named = {words.split()[0].rstrip(".,;") for words in found}
    given = {option for words in found for option in re.findall(r"\b([A-Z_]+)=", words)}
    assert named - targets == set()
    assert given - options == set()


def test_make_targets_are_found() -> None:
    found = [line for name in NAMES for line in lines(name) if _MAKE.match(line)]

    assert len(found) > 20


@pytest.mark.parametrize("document", NAMES)
def test_every_file_that_kubectl_applies_is_there(document: str) -> None:
    folders = [m["path"] for line in lines(document) for m in _FOLDER.finditer(line)]
    files = [m["path"] for line in lines(document) for m in _FILE.finditer(line)]

    assert [at for at in folders if not (ROOT / at / "kustomization.yaml").is_file()] == []
    assert [at for at in files if not (ROOT / at).is_file()] == []


def test_files_and_folders_that_kubectl_applies_are_found() -> None:
    documented = [line for name in NAMES for line in lines(name)]

    assert len([line for line in documented if _FOLDER.search(line)]) > 5
    assert [line for line in documented if _FILE.search(line)]


@pytest.mark.parametrize("document", NAMES)
def test_every_block_says_its_language(document: str) -> None:
    """Without one a block is an unmarked diagram, text or log, which has none to say."""
    fences = re.findall(r"^ *```(\S*)", Path(ROOT / document).read_text(), re.MULTILINE)[::2]

    assert {name for name in fences if name} <= {"sh", "yaml", "text", "mermaid", "python", "diff"}


def flags_of_benchmarks() -> set[str]:
    sources = [path.read_text() for path in (ROOT / "benchmarks").glob("*.py")]
    return {flag for text in sources for flag in re.findall(r'add_argument\("(--[\w-]+)"', text)}


@cache
def our_flags() -> frozenset[str]:
    """Return every flag of the roles, the commands and the benchmarks."""
    ours = {flag for role in ROLES for flag in role_flags(role)}
    ours |= {flag for name in COMMANDS for flag in options_of(arguments_of(name))}
    return frozenset(ours | flags_of_benchmarks())


# Decisions are records: what they were measured with may be gone.
@pytest.mark.parametrize("document", [it for it in NAMES if "/decisions/" not in it])
def test_every_flag_that_stands_alone_is_one_of_ours_or_of_a_named_program(document: str) -> None:
    named = {match[0] for line in lines(document) if (match := _ALONE.match(line))}

    assert named - our_flags() - FOREIGN.keys() == set()


def verb_of(words: list[str]) -> str:
    """Return the verb of a kubectl command, after flags for all verbs."""
    rest = iter(words)
    for word in rest:
        if word in ("-n", "--namespace", "--context", "--kubeconfig"):
            next(rest, None)
        elif not word.startswith("-"):
            return word
    return ""


@cache
def flags_of_kubectl(*words: str) -> frozenset[str]:
    """Return the flags that ``kubectl WORDS`` lists; empty if there is no such command."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run(  # noqa: S603 - the kubectl that the developer has
        [kubectl, *words], capture_output=True, text=True, check=False, timeout=30
    )
    if done.returncode != 0 or "kubectl controls the Kubernetes" in done.stdout:
        return frozenset()
    return frozenset(re.findall(r"(?<![\w-])--?[a-z][\w-]*(?=[=,: ])", done.stdout))


def unknown_to_kubectl(words: str) -> Iterator[str]:
    """Yield what ``kubectl WORDS`` does not know."""
    # What follows two dashes is for somebody else.
    own = words.partition(" -- ")[0]
    verb = verb_of(own.split())
    known = flags_of_kubectl(verb, "--help")
    if verb in ("rollout", "certificate", "auth"):
        known |= flags_of_kubectl(verb, own.split(f"{verb} ")[1].split(maxsplit=1)[0], "--help")
    if not known:
        yield verb
        return
    known |= flags_of_kubectl("options") | {"-n", "-f", "-k", "-o", "-l", "-A", "-w", "-p"}
    yield from (f"{verb} {flag}" for flag in _FLAG.findall(own) if flag not in known)


@pytest.mark.timeout(300)
def test_every_kubectl_command_exists_with_its_flags() -> None:
    found = {
        (name, match["words"].strip())
        for name in NAMES
        for line in lines(name)
        for match in _KUBECTL.finditer(line)
        # Our own program as a plugin, and commands of which only the beginning is named.
        if not match["words"].startswith(("fracgpu", "-")) and "…" not in match["words"]
    }

    assert len(found) > 60
    unknown = {(name, what) for name, words in found for what in unknown_to_kubectl(words)}
    assert unknown == set()


def test_what_kubectl_does_not_know_is_told() -> None:
    assert list(unknown_to_kubectl("get pods --every")) == ["get --every"]
    assert list(unknown_to_kubectl("fetch pods")) == ["fetch"]


@pytest.mark.parametrize("document", NAMES)
def test_every_value_that_helm_is_given_is_one_of_the_chart(document: str) -> None:
    paths = {match["path"] for line in lines(document) for match in _SET.finditer(line)}

    assert {path for path in paths if not is_value(path)} == set()


@cache
def values() -> object:
    """Return the values of the chart."""
    return read_yaml((ROOT / "charts/fracgpu/values.yaml").read_text())


def is_value(path: str) -> bool:
    """Report whether the chart has the value; below an empty mapping anything may stand."""
    at: object = values()
    for key in re.sub(r"\[\d+\]", "", path).split("."):
        if not isinstance(at, dict) or key not in at:
            return at == {}
        at = at[key]
    return True


def test_a_value_that_the_chart_lacks_is_told() -> None:
    assert is_value("image.registry")
    assert not is_value("image.registy")
