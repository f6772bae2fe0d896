"""The panel "Mixture and order" in a real Chromium."""

import numpy as np

from bushel import MapDataset
from bushel.experimental import FirstFitPackIterDataset


def rows_of(page):
    """The table of shares as texts: name -> (target, actual, elements)."""
    page.wait_for_selector(".mixture tbody tr")
    return {
        row.get_attribute("data-part"): tuple(
            row.locator(f"td.{name}").inner_text() for name in ("target", "actual", "elements")
        )
        for row in page.locator(".mixture tbody tr").all()
    }


def test_shares_on_the_page_are_the_true_counts(open_page):
    parts = [MapDataset.source([f"<i>{k}</i>"] * 50).shuffle(seed=k).repeat() for k in range(3)]
    ds = MapDataset.mix(parts, [0.5, 0.3, 0.2]).batch(7)
    counts = [sum(list(ds[index]).count(f"<i>{k}</i>") for index in range(40)) for k in range(3)]
    page = open_page(ds, panel="order", outputs=40)
    table = rows_of(page)
    assert [int(elements) for _, _, elements in table.values()] == counts
    assert [actual for _, actual, _ in table.values()] == [f"{count / 2.8:.2f} %" for count in counts]
    plot = page.locator(".mixture .plot").evaluate(
        "async (e) => { while (!e.plot) await new Promise(requestAnimationFrame); return e.plot.data; }"
    )
    assert plot[0][-1] == 40 and abs(plot[1][-1] - counts[0] / 280) < 1e-6
    page.locator(".order .verdict", has_text="Shuffled over the whole source").first.wait_for()
    page.get_by_label("outputs").fill("3")
    page.get_by_label("outputs").press("Enter")
    page.locator(".mixture", has_text="of 21 elements").wait_for()
    few = [sum(list(ds[index]).count(f"<i>{k}</i>") for index in range(3)) for k in range(3)]
    assert [int(elements) for _, _, elements in rows_of(page).values()] == few
    page.locator(".order .verdict", has_text="too few to say").first.wait_for()


def test_packing_on_the_page(open_page):
    lengths = np.random.default_rng(0).integers(1, 60, 200)
    packed = MapDataset.source([np.arange(n) for n in lengths]).pack(lengths, 64)
    page = open_page(packed.shuffle(seed=1).batch(2), panel="order")
    page.wait_for_selector(".pack .efficiency")
    assert page.locator(".pack .efficiency").inner_text() == f"{100 * packed.efficiency['tokens']:.2f} %"
    assert page.locator(".pack [data-histogram]").count() == 3
    data = page.locator('[data-histogram="lengths"] .plot').evaluate(
        "async (e) => { while (!e.plot) await new Promise(requestAnimationFrame); return e.plot.data; }"
    )
    assert data[1][:-1] == np.histogram(lengths, data[0])[0].tolist()
    assert "nothing is mixed" in page.locator(".shares").inner_text()


def test_a_stream_that_packs_is_measured_when_the_user_asks(open_page):
    rows = MapDataset.source([{"tokens": np.arange(n % 30 + 1)} for n in range(300)]).to_iter_dataset()
    page = open_page(FirstFitPackIterDataset(rows, length_struct={"tokens": 64}, num_packing_bins=8), panel="order")
    page.locator(".packing button.read").click()
    page.wait_for_selector(".pack .efficiency")
    assert "in the rows that were read" in page.locator(".pack").inner_text()
    assert "depends on what was read before" in page.locator(".shares").inner_text()


def test_padding_on_the_page(open_page):
    lengths = [3, 5, 2, 6, 1]
    rows = MapDataset.source([{"text": np.arange(n), "n": n} for n in lengths])
    page = open_page(rows.bucket(lengths, [4, 8], 2, seed=0).repeat(3), panel="order")
    page.wait_for_selector(".buckets .efficiency")
    assert page.locator(".buckets .efficiency").inner_text() == "60.71 %"  # 17 of 28
    assert page.locator(".buckets td.real").all_inner_texts() == ["50.00 %", "68.75 %"]
    page.locator(".padded button.read").click()
    page.wait_for_selector(".padded [data-leaf]")
    table = {row.get_attribute("data-leaf"): row.inner_text() for row in page.locator(".padded [data-leaf]").all()}
    assert table == {"text": "text\t60.71 %\t17\t28", "n": "n\t100.00 %\t5\t5"}
