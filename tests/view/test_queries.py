"""Arguments of requests: whole numbers inside their limits, or a sentence that says what is wrong."""

import pytest

from bushel._src.view.session import BadQuery, Query


@pytest.mark.parametrize("text", ["2", "7"])
def test_the_lower_and_the_upper_limit_of_a_query_are_allowed(text):
    assert Query({"n": text}).integer("n", low=2, high=7) == int(text)


@pytest.mark.parametrize(
    ("text", "limits", "told"),
    [
        ("1", {"low": 2, "high": 7}, "n must be 2 to 7, got 1."),
        ("8", {"low": 2, "high": 7}, "n must be 2 to 7, got 8."),
        ("-1", {"low": 0}, "n must be at least 0, got -1."),
        ("8", {"high": 7}, "n must be at most 7, got 8."),
        ("1.5", {}, "n must be a whole number, got '1.5'."),
        ("9" * 31, {}, f"n must be a whole number, got {'9' * 31!r}."),
    ],
)
def test_other_values_are_refused(text, limits, told):
    with pytest.raises(BadQuery) as refused:
        Query({"n": text}).integer("n", **limits)
    assert str(refused.value) == told


def test_an_argument_that_is_missing_is_named():
    with pytest.raises(BadQuery, match="The argument path is missing"):
        Query({}).text("path")
