from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from certs.authority import CertificateInfo
from certs.rotation import (
    Keep,
    Renew,
    RenewalReason,
    Wait,
    authority_step,
    due_at,
    next_look,
    retired_from,
    serving_step,
    trusted_authorities,
)
from tests.fakes.clock import NOON

DAY = timedelta(days=1)
NAMES = frozenset({"webhook.svc"})


def a_ca(key: str = "ca", *, made: datetime = NOON, life: timedelta = 30 * DAY) -> CertificateInfo:
    return CertificateInfo(
        not_before=made, not_after=made + life, names=frozenset(), fingerprint=f"print-{key}",
        key_id=key, issuer_key_id=key, is_ca=True,
    )  # fmt: skip


def a_leaf(
    ca: CertificateInfo, *, made: datetime = NOON, life: timedelta = 9 * DAY
) -> CertificateInfo:
    return CertificateInfo(
        not_before=made, not_after=min(made + life, ca.not_after), names=NAMES,
        fingerprint="print-leaf", key_id="leaf", issuer_key_id=ca.key_id, is_ca=False,
    )  # fmt: skip


def step(
    leaf: CertificateInfo | None,
    *,
    ca: CertificateInfo,
    bundle: tuple[CertificateInfo, ...] | None = None,
    names: frozenset[str] = NAMES,
    now: datetime = NOON + DAY,
    signs_from: datetime | None = NOON,
) -> Keep | Renew | Wait:
    trusted = (ca,) if bundle is None else bundle
    return serving_step(leaf, ca=ca, bundle=trusted, names=names, now=now, signs_from=signs_from)


def test_two_thirds_of_a_life_is_when_it_is_due() -> None:
    assert due_at(a_ca(life=30 * DAY)) == NOON + 20 * DAY


@pytest.mark.parametrize(
    ("ca", "age", "expected"),
    [
        (None, DAY, Renew(reason=RenewalReason.MISSING)),
        (a_leaf(a_ca()), DAY, Renew(reason=RenewalReason.MISSING)),
        (a_ca(), DAY, Keep(until=NOON + 20 * DAY)),
        (a_ca(), 20 * DAY, Renew(reason=RenewalReason.DUE)),
        (a_ca(), 30 * DAY, Renew(reason=RenewalReason.EXPIRED)),
    ],
)
def test_an_authority_is_kept_for_two_thirds_of_its_life(
    ca: CertificateInfo | None, age: timedelta, expected: Keep | Renew
) -> None:
    assert authority_step(ca, now=NOON + age) == expected


def test_an_authority_that_somebody_asked_to_replace_goes_at_once() -> None:
    assert authority_step(a_ca(), now=NOON + DAY, asked=True) == Renew(reason=RenewalReason.ASKED)
    assert authority_step(a_ca(), now=NOON + 20 * DAY, asked=True) == Renew(
        reason=RenewalReason.DUE
    )


OLD, NEW = a_ca("old"), a_ca("new", made=NOON + 20 * DAY)


@pytest.mark.parametrize(
    ("leaf", "age", "reason"),
    [
        (None, DAY, RenewalReason.MISSING),
        (a_leaf(OLD), 9 * DAY, RenewalReason.EXPIRED),
        (a_leaf(a_ca("stranger")), DAY, RenewalReason.AUTHORITY),
    ],
)
def test_a_certificate_that_nobody_can_use_is_renewed_without_waiting_for_trust(
    leaf: CertificateInfo | None, age: timedelta, reason: RenewalReason
) -> None:
    assert step(leaf, ca=OLD, now=NOON + age, signs_from=None) == Renew(reason=reason)


@pytest.mark.parametrize(
    ("leaf", "ca", "age", "names", "reason"),
    [
        (a_leaf(OLD), OLD, 6 * DAY, NAMES, RenewalReason.DUE),
        (a_leaf(OLD), OLD, DAY, frozenset({"other"}), RenewalReason.NAMES),
        (a_leaf(OLD), replace(NEW, not_before=NOON), DAY, NAMES, RenewalReason.AUTHORITY),
    ],
)
def test_a_certificate_that_still_serves_is_renewed_once_its_signer_is_trusted(
    leaf: CertificateInfo,
    ca: CertificateInfo,
    age: timedelta,
    names: frozenset[str],
    reason: RenewalReason,
) -> None:
    now = NOON + age
    later = now + timedelta(seconds=1)

    def when(signs_from: datetime | None) -> Keep | Renew | Wait:
        bundle = (OLD, ca)
        return step(leaf, ca=ca, bundle=bundle, names=names, now=now, signs_from=signs_from)

    assert when(None) == Wait(reason=reason, until=None)
    assert when(later) == Wait(reason=reason, until=later)
    assert when(now) == Renew(reason=reason)


def test_a_certificate_that_somebody_asked_to_replace_waits_for_trust_as_well() -> None:
    def when(signs_from: datetime | None) -> Keep | Renew | Wait:
        return serving_step(
            a_leaf(OLD), ca=OLD, bundle=(OLD,), names=NAMES, now=NOON + DAY,
            signs_from=signs_from, asked=True,
        )  # fmt: skip

    assert when(None) == Wait(reason=RenewalReason.ASKED, until=None)
    assert when(NOON) == Renew(reason=RenewalReason.ASKED)


def test_an_authority_may_go_some_time_after_its_successor_signed_the_last_certificate() -> None:
    early, late = a_leaf(NEW, made=NOON + 20 * DAY), a_leaf(NEW, made=NOON + 21 * DAY)

    assert retired_from([early, late], ca=NEW, grace=DAY) == NOON + 22 * DAY
    assert retired_from([early, a_leaf(OLD)], ca=NEW, grace=DAY) is None
    assert retired_from([], ca=NEW, grace=DAY) is None


def test_a_fresh_certificate_is_kept_until_two_thirds_of_its_life() -> None:
    assert step(a_leaf(OLD), ca=OLD) == Keep(until=NOON + 6 * DAY)


def test_only_authorities_that_have_not_expired_stay_trusted() -> None:
    bundle = [OLD, NEW, a_leaf(OLD)]

    assert trusted_authorities(bundle, now=NOON + 29 * DAY) == {"print-old", "print-new"}
    assert trusted_authorities(bundle, now=NOON + 30 * DAY) == {"print-new"}


def test_the_next_look_is_at_the_earliest_date_and_not_later_than_the_limit() -> None:
    steps: list[Keep | Renew | Wait] = [
        Keep(until=NOON + 3 * DAY),
        Wait(reason=RenewalReason.DUE, until=NOON + 2 * DAY),
    ]

    assert next_look(steps, now=NOON, limit=9 * DAY) == 2 * DAY
    assert next_look(steps, now=NOON, limit=DAY) == DAY
    assert next_look(steps, now=NOON + 5 * DAY, limit=DAY) == timedelta(0)
    assert next_look([Wait(reason=RenewalReason.DUE, until=None)], now=NOON, limit=DAY) == DAY


@dataclass
class Story:
    """Years of rotation: what was stored and trusted at each pass."""

    ca_life: timedelta
    leaf_life: timedelta
    overlap: timedelta
    now: datetime = NOON
    ca: CertificateInfo | None = None
    leaf: CertificateInfo | None = None
    served: CertificateInfo | None = None
    bundle: tuple[CertificateInfo, ...] = ()
    retired: int = 0
    trusted_since: dict[str, datetime] = field(default_factory=dict)
    renewals: int = 0
    _serial: "count[int]" = field(default_factory=count)

    def look(self) -> timedelta:
        """Run one pass of the loop without I/O; return the time until the next."""
        first = authority_step(self.ca, now=self.now)
        if isinstance(first, Renew):
            kept = trusted_authorities(self.bundle, now=self.now)
            old = tuple(each for each in self.bundle if each.fingerprint in kept)
            self.ca = a_ca(f"ca-{next(self._serial)}", made=self.now, life=self.ca_life)
            self.bundle = (self.ca, *old)
        assert self.ca is not None
        since = self.trusted_since.setdefault(self.ca.key_id, self.now)
        second = serving_step(
            self.leaf, ca=self.ca, bundle=self.bundle, names=NAMES, now=self.now,
            signs_from=since + self.overlap,
        )  # fmt: skip
        if isinstance(second, Renew):
            self.check_trust_before_use(second)
            self.leaf = a_leaf(self.ca, made=self.now, life=self.leaf_life)
            self.renewals += 1
            return timedelta(0)
        self.retire()
        return next_look([authority_step(self.ca, now=self.now), second], now=self.now, limit=DAY)

    def retire(self) -> None:
        """Remove previous authorities, if the replica serves a certificate of the current one."""
        assert self.ca is not None
        assert self.leaf is not None
        since = retired_from([self.leaf], ca=self.ca, grace=timedelta(0))
        served = self.served is not None and self.served.issuer_key_id == self.ca.key_id
        if since is not None and since <= self.now and served:
            self.retired += len(self.bundle) - 1
            self.bundle = (self.ca,)

    def check_trust_before_use(self, renewal: Renew) -> None:
        assert self.ca is not None
        first_ever = self.renewals == 0
        trusted_for = self.now - self.trusted_since[self.ca.key_id]
        assert first_ever or trusted_for >= self.overlap, renewal

    def check_served_is_trusted(self) -> None:
        assert self.leaf is not None
        assert self.now < self.leaf.not_after
        self.check_trusted(self.leaf)
        if self.served is not None and self.now < self.served.not_after:
            self.check_trusted(self.served)

    def check_trusted(self, leaf: CertificateInfo) -> None:
        signers = [each for each in self.bundle if each.key_id == leaf.issuer_key_id]
        assert signers
        assert self.now < signers[0].not_after


@given(
    ca_hours=st.integers(6, 24 * 400),
    leaf_percent=st.integers(10, 100),
    overlap_percent=st.integers(0, 80),
    delays_s=st.lists(st.tuples(st.integers(0, 60), st.booleans()), min_size=60, max_size=120),
)
def test_through_every_rotation_what_is_served_is_valid_and_was_trusted_before_it_was_used(
    ca_hours: int, leaf_percent: int, overlap_percent: int, delays_s: list[tuple[int, bool]]
) -> None:
    ca_life = timedelta(hours=ca_hours)
    leaf_life = ca_life * leaf_percent / 100
    story = Story(
        ca_life=ca_life, leaf_life=leaf_life, overlap=leaf_life / 3 * overlap_percent / 100
    )  # fmt: skip
    story.look()

    for delay_s, replica_follows in delays_s:
        story.check_served_is_trusted()
        if replica_follows:
            story.served = story.leaf
        assert len(story.bundle) <= 3
        story.now += story.look() + timedelta(seconds=delay_s)

    story.check_served_is_trusted()
