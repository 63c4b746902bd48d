"""The tests' reader of Dockerfiles: it reads all of ours; unknown instructions are errors."""

from pathlib import Path

import pytest

from tests.support.dockerfile import Copy, DockerfileError, Run, context_files, read_dockerfile
from tests.support.images import ROOT

TWO_STAGES = """
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY a b ./
# a comment within is left out
RUN one \\
# here too
    --two
FROM python:3.11-slim-bookworm
COPY --from=build /opt/x /opt/x
ENV PATH=/opt/x/bin:$PATH ONE=1
USER 65532:65532
ENTRYPOINT ["x", "y"]
"""


def test_stages_are_read_with_what_each_step_needs() -> None:
    build, image = read_dockerfile(TWO_STAGES)

    copy, run = build.steps
    assert copy == Copy(sources=("a", "b"), target="/src/")
    assert isinstance(run, Run)
    assert (run.command.split(), run.workdir) == (["one", "--two"], "/src")
    assert image.steps == [Copy(sources=("/opt/x",), target="/opt/x", stage="build")]
    assert image.env["PATH"].startswith("/opt/x/bin:/usr/local/sbin:")
    assert (image.env["ONE"], image.user, image.entrypoint) == ("1", "65532:65532", ("x", "y"))


@pytest.mark.parametrize(
    "line", ["HEALTHCHECK CMD true", "ADD a b", "COPY --chown=1 a b", "FROM a AS b AS c"]
)
def test_what_is_not_known_is_an_error(line: str) -> None:
    with pytest.raises(DockerfileError):
        read_dockerfile(f"FROM python:3.11-slim-bookworm\n{line}\n")


def test_the_builder_is_given_everything_that_our_dockerfile_copies_and_no_more() -> None:
    files = context_files(ROOT, (ROOT / ".dockerignore").read_text())
    stages = read_dockerfile((ROOT / "Dockerfile").read_text())
    copied = {
        Path(source)
        for stage in stages
        for step in stage.steps
        if isinstance(step, Copy) and not step.stage
        for source in step.sources
    }

    assert {Path(file.parts[0]) for file in files} == copied


def test_the_last_rule_that_matches_decides(tmp_path: Path) -> None:
    for name in ("keep/a.py", "keep/__pycache__/a.pyc", "drop/b.py", "c.md"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()

    files = context_files(tmp_path, "*\n!keep\n!c.md\n**/__pycache__\n")

    assert files == [Path("c.md"), Path("keep/a.py")]
