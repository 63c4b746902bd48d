"""What stays on the screen of a refusal."""

from simulator.demo.story import refusal_line

DENIED = 'admission webhook "pods.fracgpu.io" denied the request: '


def test_a_short_reason_is_told_whole() -> None:
    line = refusal_line("odd", f"{DENIED}cards is 0; want 1")

    assert line.text == line.short == "refused odd: cards is 0; want 1"


def test_of_a_long_one_what_was_there_and_what_would_work() -> None:
    reason = f"fracton is '0.5'; want one of {'a, ' * 50}z; did you mean fraction?"

    line = refusal_line("misspelt", DENIED + reason)

    assert line.text == "refused misspelt: fracton is '0.5'; ... did you mean fraction?"
    assert line.short == "refused misspelt: did you mean fraction?"


def test_what_was_admitted_is_not_called_refused() -> None:
    assert refusal_line("odd", None).text == "odd was NOT refused"
