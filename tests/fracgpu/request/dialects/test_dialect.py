from fracgpu.request.dialects.dialect import Dialect, DialectReading, Options, PodForDialects, keys


def test_keys_are_known_by_name_or_by_a_pattern_of_the_whole_key() -> None:
    owned = keys("x/one", patterns=(r"x/size-\d+",))

    assert "x/one" in owned
    assert "x/size-12" in owned
    assert "x/size-" not in owned
    assert "x/size-12-more" not in owned
    assert "x/size-\u0661" not in owned  # a digit, but not of ASCII


def test_a_dialect_leaves_no_pod_alone_unless_it_says_so() -> None:
    row = Dialect(name="x", title="X", read=lambda _pod, _options: DialectReading())

    assert not row.leaves(PodForDialects(scheduler_name="kai-scheduler"), Options())
