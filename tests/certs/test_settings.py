import pytest

from certs.settings import CertsSettings, is_name, normal_name
from process.settings import SettingsError, load


def settings(*argv: str) -> CertsSettings:
    return load(CertsSettings, argv, {}, program="certs")


def test_the_defaults_make_a_year_of_authority_and_a_month_of_service() -> None:
    assert (settings().ca_life_s, settings().serving_life_s) == (365 * 86_400, 30 * 86_400)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--serving-life-s=100", "--ca-life-s=99"], "want at most --ca-life-s, 99.0"),
        (["--serving-life-s=90", "--overlap-s=30"], "want less than a third of --serving-life-s"),
        (["--extra-names=localhost,my_host"], "'my_host' is not a valid name"),
        (["--services=-x"], "'-x' is not a valid name"),
    ],
)
def test_settings_that_cannot_work_are_refused(argv: list[str], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings(*argv)

    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["localhost", "*.svc", "a.b-c.d", "10.0.0.1", "::1", "A.B"])
def test_a_name_is_a_dns_name_or_an_address(text: str) -> None:
    assert is_name(text)


@pytest.mark.parametrize("text", ["", ".", "a..b", "a_b", "-a", "*", "a.*.b", "x" * 64, "a b"])
def test_anything_else_is_no_name(text: str) -> None:
    assert not is_name(text)


def test_a_name_is_written_as_a_certificate_writes_it() -> None:
    spelt = [normal_name(text) for text in ("LocalHost", "0:0::1", "127.0.0.1")]

    assert spelt == ["localhost", "::1", "127.0.0.1"]
