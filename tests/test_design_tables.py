"""The tables of docs/design/layers.md can be read, and a table with a mistake is refused."""

import pytest
from helpers.design_tables import ENGINE, PAGE, ROOMS, read_layers, read_rows

TEXT = """
# The layers

| rank | room | what it does |
| --- | --- | --- |
| 1 | `not_this_one` | stands above the first heading |

## Rooms

Words, also with a | bar.

| rank | room | what it does |
| --- | --- | --- |
| 1 | `base` | what all need |
| 2 | `left`, `right` | two rooms in one row |
| 2 | `middle` | the same rank again |
| 3 | `top` | the last one |

| another | table | here |
| --- | --- | --- |
| 9 | `other` | not a room |

## Inside the engine

| rank | module or folder | what it does |
| --- | --- | --- |
| 1 | `slabs` | shared memory |
"""


def test_rooms_of_one_rank_are_one_set():
    assert read_layers(ROOMS, TEXT) == [{"base"}, {"left", "right", "middle"}, {"top"}]
    assert read_layers(ENGINE, TEXT) == [{"slabs"}]
    assert read_layers(ENGINE, TEXT.rstrip()) == [{"slabs"}], "a table at the end of the file"


def test_the_page_has_both_tables():
    rooms, engine = read_layers(ROOMS), read_layers(ENGINE)
    assert rooms[0] == {"base"}
    assert {"loaders", "device"} in rooms, "two rooms of one rank"
    assert engine[-1] == {"opener"}
    assert rooms.index({"display", "graph"}) < rooms.index({"engine"}) < rooms.index({"datasets"})


@pytest.mark.parametrize("heading", [ROOMS, ENGINE])
def test_each_row_of_the_page_is_a_sentence(heading):
    for _, name, words in read_rows(heading, PAGE.read_text(encoding="utf-8")):
        assert words.endswith(".") and "`" in name, name


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("| 3 | `top`", "| 4 | `top`", "Rank 4 of top follows rank 2. Ranks count up by one."),
        ("| 3 | `top`", "| 1 | `top`", "Rank 1 of top follows rank 2."),
        ("| 3 | `top`", "| 3 | top", "The row of rank 3 below 'Rooms' has no name in backticks: 'top'."),
        ("| 3 | `top`", "| 3 | `left`", "left stands twice in the table below 'Rooms'."),
        ("## Rooms", "## Halls", "There is no heading 'Rooms'."),
    ],
)
def test_a_mistake_in_a_table_is_named(before, after, sentence):
    with pytest.raises(ValueError) as raised:
        read_layers(ROOMS, TEXT.replace(before, after))
    assert sentence in str(raised.value)


def test_a_heading_without_a_table_is_named():
    with pytest.raises(ValueError, match="There is no table below 'Rooms'"):
        read_layers(ROOMS, "# Title\n\n## Rooms\n\nWords.\n\n## Next\n")
