"""Answers why a pod waits, one question at a time."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from fracgpu.errors import WireError
from fracgpu.explain.answers import Explanation, Suggestion, SuggestionKind
from fracgpu.explain.explanation import explain
from fracgpu.explain.subject import read_subject
from fracgpu.explain.suggestions import suggest
from fracgpu.request.need import Strategy
from fracgpu.state.cluster_state import ClusterState, ExplainedPod
from kube.errors import KubeError, NotFound
from kube.kinds import PODS
from process.clock import Clock
from scheduler.cache.assumptions import PodReader
from scheduler.core import SchedulerCore
from scheduler.page.board import Board
from scheduler.page.explaining import state_for

_MOST_QUEUED: Final = 4
_LIMIT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Answer:
    """Why a pod waits, and what would help; both for the few nodes nearest to a fit."""

    explanation: Explanation
    suggestions: tuple[Suggestion, ...]


class TooManyQuestionsError(Exception):
    """Others ask already, or the API server does not answer; ``str()`` says which."""


class Explainer:
    """Explains waiting pods with the cache of the extender; reads the pod itself from the API.

    The cache has less of a pod than an explanation needs, its node affinity for one.

    Args:
        client: reads one pod.
        core: the cache.
        board: knows which pods wait; no other is read.
        strategy: returns the cluster's default.
        clock: the time at which cordons are evaluated.
    """

    def __init__(
        self,
        client: PodReader,
        core: SchedulerCore,
        board: Board,
        *,
        strategy: Callable[[], Strategy],
        clock: Clock,
    ) -> None:
        self._client = client
        self._core = core
        self._board = board
        self._strategy = strategy
        self._clock = clock
        self._one = asyncio.Lock()
        self._queued = 0

    async def explain(self, namespace: str, name: str) -> Answer | None:
        """Return why a pod waits; None if no such pod waits.

        Raises:
            TooManyQuestionsError: too many others wait for an answer, or the API server is slow.
        """
        if self._board.waiting_pod(namespace, name) is None:
            return None
        if self._queued >= _MOST_QUEUED:
            raise TooManyQuestionsError("too many questions at once; ask again")
        self._queued += 1
        try:
            async with asyncio.timeout(_LIMIT_S), self._one:
                return await self._explained(namespace, name)
        except NotFound:
            return None
        except TimeoutError as error:
            raise TooManyQuestionsError(f"no answer within {_LIMIT_S:g} s; ask again") from error
        except KubeError as error:
            raise TooManyQuestionsError(f"the pod could not be read: {error}") from error
        finally:
            self._queued -= 1

    async def _explained(self, namespace: str, name: str) -> Answer | None:
        try:
            subject = read_subject(await self._client.get(PODS, name, namespace=namespace))
        except WireError as error:
            raise TooManyQuestionsError(str(error)) from error
        state = state_for(
            subject,
            self._core,
            strategy=self._strategy(),
            # Whichever it names: it waits because a kube-scheduler asked us, or has yet to.
            scheduler=subject.info.scheduler_name,
            now=self._clock.now(),
        )
        claim = self._board.claim_status(subject.info)
        state = replace(state, notes=(*state.notes, claim) if claim else state.notes)
        # Everything in the state is immutable; in a thread it delays no answer to kube-scheduler.
        return await asyncio.to_thread(_answer, subject, state)


def _answer(subject: ExplainedPod, state: ClusterState) -> Answer:
    explanation = explain(subject, state)
    # That no node would ever do can be said only by who has looked at all of them.
    suggestions = tuple(
        each
        for each in suggest(subject, state, explanation)
        if each.kind is not SuggestionKind.LARGER_NODE
    )
    return Answer(explanation, suggestions)
