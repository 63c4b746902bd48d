import math
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from process.settings import (
    REQUIRED,
    HelpRequested,
    ProcessSettings,
    SettingsError,
    describe,
    load,
    setting,
    usage,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopSettings(ProcessSettings):
    """Made up to have one of each kind."""

    listen_port: int = setting(8443, "where it listens", low=0, high=65535)
    busy_ratio: float = setting(0.8, "above is busy", low=0, high=1)
    owner: str = setting(REQUIRED, "who answers for it")
    dry_run: bool = setting(False, "only say what it would do")
    ledger_path: Path = setting(Path("/tmp/ledger"), "where it writes")  # noqa: S108 - not opened
    names: tuple[str, ...] = setting((), "names it goes by")
    until: str | None = setting(None, "when it closes")
    token: str | None = setting(None, "what opens the till", secret=True)
    telemetry_port: int = setting(9555, "its own default", low=0, high=65535)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeSettings:
    """Its fields must agree with each other."""

    low_s: float = setting(1.0, "from", low=0)
    high_s: float = setting(2.0, "to")

    def __post_init__(self) -> None:
        if self.low_s > self.high_s:
            raise ValueError(f"--low-s is {self.low_s}; want at most --high-s, {self.high_s}")


def shop(*argv: str, **environ: str) -> ShopSettings:
    variables = {f"FRACGPU_SHOP_{name}": value for name, value in environ.items()}
    return load(ShopSettings, argv, variables, program="shop")


def mistakes(*argv: str, **environ: str) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        shop(*argv, **environ)
    return caught.value.mistakes


def test_a_flag_beats_a_variable_and_a_variable_beats_the_default() -> None:
    settings = shop("--owner", "ann", "--listen-port=1", LISTEN_PORT="2", BUSY_RATIO="0.5")

    assert (settings.listen_port, settings.busy_ratio, settings.telemetry_port) == (1, 0.5, 9555)


def test_each_kind_of_field_is_read_from_text() -> None:
    settings = shop(
        "--dry-run", "--names", "a, b,,c", "--until", "noon", OWNER="ann", LEDGER_PATH="/x/y"
    )

    assert settings.dry_run is True
    assert settings.names == ("a", "b", "c")
    assert settings.until == "noon"
    assert settings.ledger_path == Path("/x/y")


@pytest.mark.parametrize(
    ("flag", "expected"),
    [("--no-dry-run", False), ("--dry-run=no", False), ("--dry-run=TRUE", True)],
)
def test_a_yes_or_no_flag_can_be_said_both_ways(flag: str, expected: bool) -> None:
    settings = shop("--owner=x", flag, DRY_RUN=str(not expected))

    assert settings.dry_run is expected


def test_an_empty_text_is_none_where_none_is_allowed() -> None:
    assert shop("--owner=x", "--until=", LOG_JSON="").until is None


def test_all_mistakes_are_told_at_once() -> None:
    message = mistakes(
        "--listen-prot", "1", "--busy-ratio=1.5", "--log-level=loud",
        LISTEN_PORT="many", DRY_RUN="maybe", BUZY_RATIO="1",
    )  # fmt: skip

    assert message == (
        "--listen-prot is not a flag here; did you mean --listen-port?",
        "1 is not a flag here; see --help",
        "FRACGPU_SHOP_BUZY_RATIO is not a setting; did you mean FRACGPU_SHOP_BUSY_RATIO?",
        "--log-level is 'loud'; want one of debug, info, warning, error",
        "FRACGPU_SHOP_LISTEN_PORT is 'many'; want a whole number from 0 to 65535",
        "--busy-ratio is '1.5'; want a number from 0 to 1",
        "--owner (or FRACGPU_SHOP_OWNER) is missing; want a text",
        "FRACGPU_SHOP_DRY_RUN is 'maybe'; want true or false",
    )


def test_a_word_longer_than_any_flag_is_no_slip_of_one() -> None:
    word = f"--listen-port{'s' * 60}"

    assert mistakes("--owner=x", word) == (f"{word} is not a flag here; see --help",)


def test_a_flag_given_twice_is_a_mistake() -> None:
    assert mistakes("--owner=a", "--owner", "b") == ("--owner is given twice; want it once",)


def test_a_flag_without_its_value_is_a_mistake_and_does_not_eat_the_next_flag() -> None:
    assert mistakes("--listen-port", "--owner=a") == (
        "--listen-port has no value; want a whole number from 0 to 65535",
    )


def test_a_required_text_may_not_be_empty() -> None:
    assert mistakes(OWNER="") == ("FRACGPU_SHOP_OWNER is ''; want a text",)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999"])
def test_a_number_is_finite(text: str) -> None:
    assert mistakes("--owner=x", f"--busy-ratio={text}")


@given(st.floats(allow_nan=False))
def test_a_number_is_taken_exactly_when_it_is_in_range(number: float) -> None:
    allowed = math.isfinite(number) and 0 <= number <= 1

    if allowed:
        assert shop("--owner=x", f"--busy-ratio={number!r}").busy_ratio == number
    else:
        assert len(mistakes("--owner=x", f"--busy-ratio={number!r}")) == 1


def test_variables_of_other_roles_are_not_our_business() -> None:
    settings = load(ShopSettings, ["--owner=x"], {"FRACGPU_BARN_LISTEN_PORT": "x"}, program="shop")

    assert settings.listen_port == 8443


def test_the_variables_kubelet_sets_for_a_service_of_our_name_are_no_typos() -> None:
    settings = shop(
        "--owner=x",
        SERVICE_HOST="10.0.0.1",
        SERVICE_PORT="443",
        SERVICE_PORT_HTTPS="443",
        PORT="tcp://10.0.0.1:443",
        PORT_443_TCP="tcp://10.0.0.1:443",
        PORT_443_TCP_ADDR="10.0.0.1",
        METRICS_SERVICE_HOST="10.0.0.2",
        METRICS_PORT="tcp://10.0.0.2:80",
        LISTEN_PORT="tcp://10.0.0.3:80",
    )

    assert settings.listen_port == 8443


def test_a_misspelt_port_is_still_a_typo() -> None:
    assert mistakes("--owner=x", LISTN_PORT="1") == (
        "FRACGPU_SHOP_LISTN_PORT is not a setting; did you mean FRACGPU_SHOP_LISTEN_PORT?",
    )


def test_fields_that_disagree_are_a_mistake_like_any_other() -> None:
    with pytest.raises(SettingsError, match=r"want at most --high-s, 2\.0"):
        load(RangeSettings, ["--low-s", "3"], {}, program="range")


def test_secrets_are_masked_wherever_settings_are_shown() -> None:
    settings = shop("--owner=x", "--token", "open-sesame")

    shown = describe(settings)

    assert shown["token"] == "***"  # noqa: S105 - the mask
    assert shown["ledger_path"] == "/tmp/ledger"  # noqa: S108 - not opened
    assert set(shown) >= {"listen_port", "kubeconfig", "log_level"}


def test_a_secret_that_is_not_set_is_shown_as_not_set() -> None:
    assert describe(shop("--owner=x"))["token"] is None


def test_help_names_flag_meaning_range_default_and_variable() -> None:
    with pytest.raises(HelpRequested) as caught:
        shop("--bogus", "--help")

    text = str(caught.value)
    assert text == usage(ShopSettings, program="shop")
    assert "  --listen-port N\n      where it listens (a whole number from 0 to 65535, " in text
    assert "default: 8443, FRACGPU_SHOP_LISTEN_PORT)" in text
    assert "  --owner TEXT\n      who answers for it (a text, required, FRACGPU_SHOP_OWNER)" in text
    assert "  --dry-run\n" in text
