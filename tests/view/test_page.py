"""The page in a real Chromium: each kind of page, clicked through."""

from bushel import MapDataset


def test_the_page_shows_a_tab_for_each_panel(open_page):
    page = open_page(MapDataset.range(10))
    assert page.get_by_role("tab").all_inner_texts()[:2] == ["Pipeline", "Elements"]
