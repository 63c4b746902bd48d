"""What moving a pod would save, by what is remembered of loads."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.disruption.load_history import (
    NO_HISTORY,
    Floats,
    LoadHistory,
    LoadModel,
    PodLoad,
    above,
    belief,
)

LINE = 0.8


def a_model(*pods: tuple[int, Sequence[float]], owners: str = "", cards: int = 3) -> LoadModel:
    """Return a model of pods, each with its card and its loads; their names are p0, p1, ..."""
    busy = np.array([loads for _, loads in pods])
    rows = {f"p{number}": number for number in range(len(pods))}
    return LoadModel(
        LoadHistory(rows=rows, busy=busy, full=np.zeros(busy.shape, np.bool_)),
        [
            PodLoad(
                uid=f"p{number}",
                owner_uid=owners[number] if owners else f"owner-{number}",
                card=card,
                busy_ratio=0.0,
                full=False,
            )
            for number, (card, _) in enumerate(pods)
        ],
        np.zeros(cards),
        line=LINE,
    )


def saved(model: LoadModel, *cards: int, uid: str = "p0", grows: float = 0.0) -> Floats:
    return model.saved(uid, np.array(cards), grows=grows)


def steady(level: float, spans: int = 36) -> list[float]:
    return [level] * spans


def test_steady_load_above_the_limit_is_saved_in_full_and_above_the_hot_line_by_a_fifth() -> None:
    beyond = a_model((0, steady(0.4)), (0, steady(0.4)), (0, steady(0.35)))
    hot = a_model((0, steady(0.45)), (0, steady(0.45)))

    assert saved(beyond, 1) == pytest.approx([0.2 * 0.35 + 0.8 * 0.2], abs=1e-3)
    assert saved(hot, 1) == pytest.approx([0.2 * 0.1], abs=1e-3)


def test_a_card_is_expected_to_do_what_it_did_or_what_it_does_now_if_that_is_more() -> None:
    rose, fell = [*steady(0.1, 33), *steady(0.6, 3)], [*steady(0.6, 33), *steady(0.1, 3)]
    expected, _ = a_model((0, rose), (1, fell)).forecast("p9", 0.2)

    assert expected == pytest.approx([0.8, 0.75, 0.2], abs=0.02)


def test_how_busy_a_card_often_is_counts_both_what_its_pods_and_what_the_new_one_vary() -> None:
    calm, varied = steady(0.3), [0.0, 0.6] * 18
    still = a_model((0, calm), (1, calm))
    lively = a_model((0, varied), (1, calm))

    expected, often = still.forecast("p1", 0.3)
    assert often == pytest.approx(expected)
    expected, often = lively.forecast("p1", 0.3)
    assert often[0] - expected[0] > 0.15
    _, by_the_lively = lively.forecast("p0", 0.3)
    assert by_the_lively[1] > often[1]


def test_a_target_that_would_lose_as_much_saves_nothing() -> None:
    model = a_model((0, steady(0.5)), (0, steady(0.6)), (1, steady(0.6)), (2, steady(0.3)))

    assert saved(model, 1)[0] == pytest.approx(0, abs=1e-9)
    assert saved(model, 2)[0] > 0.1


def test_a_pod_without_history_is_taken_to_be_steady() -> None:
    loads = [
        PodLoad(uid=uid, owner_uid=uid, card=0, busy_ratio=0.5, full=True) for uid in ("a", "b")
    ]
    model = LoadModel(NO_HISTORY, loads, np.zeros(2), line=LINE)

    # Nobody saw what they ask for; it is more than they get.
    assert saved(model, 1, uid="a")[0] == pytest.approx(0.2 * 0.3 + 0.8 * 0.15, abs=1e-3)


def test_on_a_full_card_a_pod_asks_for_what_it_used_when_there_was_time_left() -> None:
    busy = np.array([[0.6] * 6 + [0.5] * 6, [0.1] * 6 + [0.5] * 6])
    full = np.array([[False] * 6 + [True] * 6] * 2)
    loads = [
        PodLoad(uid=uid, owner_uid=uid, card=0, busy_ratio=0.5, full=True) for uid in ("a", "b")
    ]
    model = LoadModel(
        LoadHistory(rows={"a": 0, "b": 1}, busy=busy, full=full), loads, np.zeros(2), line=LINE
    )

    # a asked for 60 % beside b, of which nobody saw that it asks for more than the 50 % it got.
    lost = 0.5 * (0.2 * 0.3 + 0.8 * 0.15)
    assert saved(model, 1, uid="a") == pytest.approx([lost], abs=0.02)


def test_pods_of_one_owner_that_peak_together_are_parted_although_others_do_so_by_chance() -> None:
    rng = np.random.default_rng(1)
    peaks = np.where(rng.random(36) < 0.3, 0.6, 0.05)
    others = [np.where(rng.random(36) < 0.3, 0.6, 0.05) for _ in range(4)]
    pods = [(0, peaks), (0, peaks), (1, peaks), (2, others[0]), *((3, it) for it in others[1:])]
    model = a_model(*((card, list(load)) for card, load in pods), owners="aaabcde", cards=4)

    with_its_own, with_a_stranger, with_three = saved(model, 1, 2, 3)
    assert with_a_stranger > 0.02
    assert with_a_stranger > with_its_own
    assert with_a_stranger > with_three


def test_a_rhythm_that_lasted_is_believed_and_chance_is_not() -> None:
    rng = np.random.default_rng(2)
    even, odd = [0.5, 0.1] * 18, [0.1, 0.5] * 18
    lasting = a_model((0, even), (0, even), (1, odd), (2, odd))
    chance = a_model(*((n, list(rng.choice([0.1, 0.5], 36))) for n in range(20)), cards=20)

    assert lasting.rhythm == pytest.approx(1)
    assert chance.rhythm < 0.4


def test_no_card_gets_fuller_of_busy_pods_than_the_one_relieved_for_what_was_so_half_an_hour() -> (
    None
):
    def gain(spans: int, beside: int) -> float:
        hot = [(0, steady(0.3, spans))] * 4
        model = a_model(*hot, *[(1, steady(0.17, spans))] * beside)
        return float(saved(model, 1)[0])

    assert gain(3, beside=2) > 0.1
    assert gain(3, beside=4) < 0
    assert gain(36, beside=4) > 0


@pytest.mark.parametrize("spans", [1, 3, 12])
def test_a_hot_card_beside_clearly_cooler_ones_is_relieved_however_short_the_history(
    spans: int,
) -> None:
    hot = [(0, steady(0.47, spans))] * 2
    fuller = [(card, steady(0.06, spans)) for card in range(1, 10) for _ in range(4)]
    model = a_model(*hot, *fuller, cards=11)

    of_an_empty_card, of_a_fuller_one = saved(model, 10, 1)
    assert of_an_empty_card == pytest.approx(0.2 * 0.14, abs=1e-3)
    assert of_a_fuller_one > 0.02


def test_what_hours_have_shown_to_be_random_must_save_more_than_what_keeps_a_rhythm() -> None:
    def gain(spans: int, *, shuffled: bool) -> float:
        rng, found = np.random.default_rng(6), []
        for _ in range(20 if shuffled else 1):
            pods = []
            for number in range(40):
                load = [0.4 if (span + number) % 4 < 2 else 0.05 for span in range(spans)]
                pods.append((number // 4, list(rng.permutation(load)) if shuffled else load))
            found.append(saved(a_model(*pods, cards=11), 10)[0])
        return float(np.mean(found))

    assert gain(36, shuffled=True) < gain(16, shuffled=True) - 0.004
    assert gain(36, shuffled=False) == pytest.approx(gain(16, shuffled=False))


def test_load_that_comes_and_goes_is_left_where_it_would_meet_as_much() -> None:
    rng = np.random.default_rng(3)

    def telegraph() -> list[float]:
        return list(np.repeat(rng.choice([0.03, 0.38], 12), 3))

    pods = [(card, telegraph()) for card in range(10) for _ in range(3)]
    # Three pods that happen to be busy, beside cards with three that happen to be busy or not.
    pods[:3] = [(0, [*load[:30], *[0.38] * 6]) for _, load in pods[:3]]
    model = a_model(*pods, cards=10)

    assert saved(model, *range(1, 10)).max() < 0.02


def test_what_a_move_saved_is_read_from_what_the_pods_did_since() -> None:
    model = a_model((1, steady(0.4)), (0, steady(0.8)), (1, steady(0.1)))

    assert model.saved_since("p0", 0, spans=12) == pytest.approx(0.2 * 0.4 + 0.8 * 0.25)
    assert model.saved_since("p0", 0, spans=2) is None
    assert model.saved_since("gone", 0, spans=12) is None


def test_the_belief_in_forecasts_is_what_was_saved_of_what_was_forecast() -> None:
    assert belief([]) == 1
    assert belief([(0.2, 0.2), (0.1, 0.15)]) == 1  # one that saved more makes up for nothing
    assert belief([(0.4, 0.0)]) == pytest.approx(0.03 / 0.43)
    assert belief([(0.1, -0.5)]) == 0


shares = st.floats(0, 1, allow_nan=False)
loads = st.lists(
    st.tuples(st.integers(0, 2), st.lists(shares, min_size=14, max_size=14)), min_size=1
)


@given(loads, st.floats(0, 0.5))
def test_a_pod_that_grows_never_saves_more(
    pods: list[tuple[int, list[float]]], grows: float
) -> None:
    model = a_model(*pods)

    assert (saved(model, 0, 1, 2, grows=grows) <= saved(model, 0, 1, 2) + 1e-9).all()


@given(loads)
def test_no_move_saves_more_than_the_pod_uses(pods: list[tuple[int, list[float]]]) -> None:
    model = a_model(*pods)
    most = max(pods[0][1])

    assert (saved(model, 0, 1, 2) <= most + 0.02).all()
    assert 0 <= model.rhythm <= 1


@given(st.floats(0, 3), st.floats(0, 1), st.floats(0.5, 1))
def test_the_mean_excess_is_never_below_that_of_the_mean(
    mean: float, variance: float, line: float
) -> None:
    found = above(np.array([mean]), np.array([variance]), line)[0]

    assert found >= max(0.0, mean - line) - 2e-3


def at_random(rng: np.random.Generator, *, mean: float, spans: int) -> list[float]:
    """Return the loads of a pod that goes on and off; *mean* spans long is each phase."""
    load: list[float] = []
    busy = bool(rng.random() < 0.5)
    while len(load) < spans:
        load += [0.38 if busy else 0.03] * max(1, round(rng.exponential(mean)))
        busy = not busy
    return load[:spans]


@pytest.mark.parametrize("spans", [3, 6, 12, 36])
@pytest.mark.parametrize("mean", [3, 7])
def test_pods_that_all_do_the_same_in_the_end_are_not_told_apart(spans: int, mean: float) -> None:
    """Else the one that happens to be busy is put where those are that happen to rest."""
    rng = np.random.default_rng(spans)
    pods = [(card, at_random(rng, mean=mean, spans=spans)) for card in range(30) for _ in range(3)]
    model = a_model(*pods, cards=30)
    everywhere = np.arange(30)

    means = model.expected(everywhere)
    apart = np.array([sum(np.mean(load) for at, load in pods if at == card) for card in everywhere])

    assert means.std() < 0.35 * apart.std()


def test_pods_that_keep_their_level_are_told_apart_at_once() -> None:
    rng = np.random.default_rng(4)
    levels = np.repeat([0.36, 0.1], 15)
    pods = [(card, list(level + rng.normal(0, 0.01, 3))) for card, level in enumerate(levels)]

    assert a_model(*pods, cards=30).expected(np.arange(30)) == pytest.approx(levels, abs=0.04)
