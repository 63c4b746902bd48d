"""Renewing the certificate does not invalidate grants in flight."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from fracgpu.request.grant_note import (
    CLOCK_SKEW,
    SEAL_LIFETIME,
    GrantData,
    GrantNote,
    Seal,
    read_grant_note,
)
from process.clock import SystemClock
from webhook.seal_keys import SPREADS, SealKeys

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
GRANTED = GrantNote(words="train: 8000 MiB on 1 card", data=GrantData(containers={}))


def a_seal(keys: SealKeys, now: datetime) -> Seal:
    key, *also = keys.at(now)
    return Seal(key=key, also=tuple(also), scope="ml", now=now)


def keys_learnt(*times: tuple[bytes, datetime]) -> SealKeys:
    keys = SealKeys(SystemClock())
    for key, now in times:
        keys.learn(key, now=now)
    return keys


def test_the_first_key_seals_at_once_and_without_any_there_is_none() -> None:
    assert SealKeys(SystemClock()).at(NOON) == ()
    assert keys_learnt((b"a", NOON)).at(NOON) == (b"a",)


def test_a_new_key_is_known_at_once_and_seals_when_it_has_spread() -> None:
    keys = keys_learnt((b"a", NOON), (b"b", NOON))

    assert keys.at(NOON + SPREADS - SECOND) == (b"a", b"b")
    assert keys.at(NOON + SPREADS) == (b"b", b"a")


def test_an_old_key_is_forgotten_with_the_last_that_it_sealed() -> None:
    keys = keys_learnt((b"a", NOON), (b"b", NOON))
    end = NOON + SPREADS + SEAL_LIFETIME + CLOCK_SKEW

    assert keys.at(end - SECOND) == (b"b", b"a")
    assert keys.at(end) == (b"b",)


def test_a_secret_that_is_written_again_and_again_adds_nothing_up() -> None:
    same = keys_learnt(*((b"a", NOON + n * SECOND) for n in range(50)))
    others = keys_learnt(*((b"%d" % n, NOON) for n in range(50)))

    assert same.at(NOON + 50 * SECOND) == (b"a",)
    assert len(others.at(NOON)) <= 8


@given(
    lags_s=st.lists(st.floats(0, 19), min_size=2, max_size=2),
    written_s=st.floats(20, 400),
    after_s=st.floats(0, 59),
    renewed_s=st.lists(st.floats(100, 400), max_size=3).map(sorted),
)
def test_what_one_replica_seals_another_knows_however_often_and_late_they_learn_keys(
    lags_s: Sequence[float], written_s: float, after_s: float, renewed_s: Sequence[float]
) -> None:
    def replica(lag_s: float) -> list[tuple[bytes, datetime]]:
        times = [
            (b"0", 0.0),
            *((b"%d" % n, since_s) for n, since_s in enumerate(renewed_s, start=1)),
        ]
        return [(key, NOON + (since_s + lag_s) * SECOND) for key, since_s in times]

    def at(times: list[tuple[bytes, datetime]], now: datetime) -> Seal:
        return a_seal(keys_learnt(*(moment for moment in times if moment[1] <= now)), now)

    writes, reads = (replica(lag_s) for lag_s in lags_s)
    written = NOON + written_s * SECOND

    found = read_grant_note(at(writes, written).write(GRANTED))

    assert found is not None
    assert at(reads, written + after_s * SECOND).holds(found)


def test_a_key_that_was_never_the_webhooks_opens_nothing() -> None:
    seal = a_seal(keys_learnt((b"a", NOON), (b"b", NOON)), NOON)
    forged = read_grant_note(structs.replace(seal, key=b"guess").write(GRANTED))

    assert forged is not None
    assert not seal.holds(forged)
