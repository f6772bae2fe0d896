"""The page in a real Chromium: each kind of page on real data, clicked through."""

import http.server
import re
import threading
import time

import numpy as np
import pytest
from helpers.golden_trajectories import GOLDEN
from PIL import Image

import bushel
from bushel import MapDataset
from bushel._src.view.session import Session
from bushel._src.view.targets import open_session

COLOR = (200, 30, 90)


def picture(n):
    image = np.zeros((32, 32, 3), np.uint8)
    image[:, :] = COLOR
    image[4:8, 10:20] = (n, 255 - n, 7)
    return image


def examples():
    return MapDataset.range(100).map(lambda n: {"image": picture(n), "label": n, "caption": f"<b>number {n}</b>"})


def wait_for(page, index):
    page.wait_for_selector(f".shown[data-index='{index}']:not([aria-busy])")


def drawn_pixels(page, selector):
    """The pixels of an image or canvas as the browser has decoded them: [height, width, 4]."""
    width, height, values = page.eval_on_selector(
        selector,
        """async (element) => {
            const isImage = element instanceof HTMLImageElement;
            if (isImage) await element.decode();
            const canvas = document.createElement("canvas");
            canvas.width = isImage ? element.naturalWidth : element.width;
            canvas.height = isImage ? element.naturalHeight : element.height;
            const context = canvas.getContext("2d");
            context.drawImage(element, 0, 0);
            return [canvas.width, canvas.height, [...context.getImageData(0, 0, canvas.width, canvas.height).data]];
        }""",
    )
    return np.array(values, np.uint8).reshape(height, width, 4)


def background(page, selector):
    return page.eval_on_selector(selector, "element => getComputedStyle(element).backgroundColor")


def test_elements_are_clicked_through(open_page):
    page = open_page(examples(), panel="elements")
    wait_for(page, 0)
    assert page.get_by_role("tab", name="Elements").get_attribute("aria-selected") == "true"
    assert page.get_by_role("button", name="Previous").is_disabled()
    page.get_by_role("button", name="Next").click()
    wait_for(page, 1)
    page.keyboard.press("ArrowRight")
    wait_for(page, 2)
    assert np.array_equal(drawn_pixels(page, ".entry img")[..., :3], picture(2))
    page.get_by_label("index").fill("42")
    page.get_by_label("index").press("Enter")
    wait_for(page, 42)
    assert np.array_equal(drawn_pixels(page, ".entry img")[..., :3], picture(42))
    page.get_by_role("button", name="Previous").click()
    wait_for(page, 41)
    page.go_back()
    wait_for(page, 42)
    page.get_by_label("epoch").fill("3")
    page.get_by_label("epoch").press("Enter")
    wait_for(page, 342)
    page.reload()  # the place is in the address, and the token in the tab
    wait_for(page, 342)
    assert "token" not in page.url
    while page.get_attribute(".shown", "data-index") == "342":  # one of a hundred draws gives it again
        page.get_by_role("button", name="Random").click()
        page.wait_for_selector(".shown:not([aria-busy])")
    assert 300 <= int(page.get_attribute(".shown", "data-index")) < 400


def test_html_in_data_is_text(open_page):
    evil = "<img src=x onerror=\"document.title='broken into'\"><script>document.title='broken into'</script>"

    class Named:
        def __repr__(self):
            return evil

    def fail(element):
        raise ValueError(evil)

    ds = MapDataset.source([{evil: evil, "object": Named(), "texts": np.array([evil, evil])}])
    page = open_page(ds, panel="elements")
    wait_for(page, 0)
    assert page.locator(".shown").inner_text().count(evil) == 4
    assert page.locator(".shown img, .shown script").count() == 0
    page = open_page(ds.map(fail), panel="elements")
    page.wait_for_selector(".failure")
    assert evil in page.locator(".failure").inner_text()
    page.get_by_role("tab", name="Pipeline").click()
    page.wait_for_selector(".step .failure")
    assert "broken into" not in page.title()


def test_a_page_without_its_token_shows_no_data(open_page, browser):
    page = open_page(examples())
    context = browser.new_context()
    other = context.new_page()
    other.set_default_timeout(120_000)
    other.goto(page.view.url.partition("#")[0])
    assert "token" in other.locator("main .failure").inner_text()
    context.close()


def test_packed_segments_have_colours(open_page):
    sequences = [np.arange(n) + 100 for n in (5, 9, 4, 6)]
    ds = MapDataset.source(sequences).pack([5, 9, 4, 6], 20)

    class Letters:
        def decode(self, ids):
            return "".join(chr(97 + i % 26) for i in ids)

    page = open_page(Session(ds, tokenizer=Letters()), panel="elements")
    page.wait_for_selector(".token")
    segments = ds[0]["tokens_segment_ids"].tolist()
    colors = [background(page, f".token:nth-child({place + 1})") for place in range(20)]
    by_segment = {segment: {c for c, s in zip(colors, segments) if s == segment} for segment in set(segments)}
    assert all(len(found) == 1 for found in by_segment.values()), by_segment
    assert len(set.union(*by_segment.values())) == len(by_segment)  # all different, and padding has none
    assert by_segment[0] == {"rgba(0, 0, 0, 0)"}
    decoded = page.locator(".decoded li").all_inner_texts()
    first = ds[0]["tokens"][np.array(segments) == 1].tolist()
    assert decoded[0] == Letters().decode(first) and len(decoded) == max(segments)
    assert background(page, ".decoded li") == colors[0]


def test_an_element_that_fails_shows_its_error_and_the_page_goes_on(open_page):
    def check(x):
        if x == 1:
            raise ValueError("label 1 is missing")
        return x

    page = open_page(MapDataset.range(5).map(check), panel="elements")
    wait_for(page, 0)
    page.get_by_role("button", name="Next").click()
    wait_for(page, 1)
    text = page.locator(".failure").inner_text()
    assert "ValueError: label 1 is missing" in text and "record 1 of range(5)" in text
    page.locator(".failure summary").click()
    assert "in check" in page.locator(".failure details").inner_text()
    page.get_by_role("button", name="Next").click()
    wait_for(page, 2)
    assert page.locator(".shown code").inner_text() == "2" and page.locator(".failure").count() == 0


@pytest.mark.parametrize("stream", [False, True])
def test_an_element_that_fails_leads_to_its_record(open_page, stream):
    def check(x):
        if x["number"] == 11:
            raise ValueError("label 11 is missing")
        return x

    ds = MapDataset.source([{"number": n, "text": f"this is {n}"} for n in range(20)]).seed(1).shuffle()
    ds = ds.map(check).batch(4)
    failing = next(index for index in range(5) if any(one.record == 11 for one in ds.origin(index).records))
    page = open_page(ds.to_iter_dataset() if stream else ds, panel="elements", index=failing)
    page.wait_for_selector(".records button")
    links = page.locator(".records button").all_inner_texts()
    assert links[-1] == "Where it comes from"
    assert sorted(links[:-1]) == sorted(f"record {one.record}" for one in ds.origin(failing).records)
    assert page.locator(".records").inner_text().startswith(f"Made of {', '.join(links[:-1])} of ")
    assert links[0] == "record 11" and page.locator(".records .named").all_inner_texts() == ["record 11"]
    page.locator(".records button").first.click()
    wait_for(page, 11)
    assert "this is 11" in page.locator(".shown").inner_text()
    page.go_back()
    page.locator(".records button", has_text="Where it comes from").click()
    page.wait_for_selector("table.records")


def test_plots_have_few_empty_bins(open_page):
    numbers = np.append(np.arange(30) % 7, 5000)
    page = open_page(MapDataset.source([{"numbers": numbers}]), panel="elements")
    page.wait_for_selector(".plots .plot:last-child canvas")
    _, counts = page.eval_on_selector(".plots .plot:last-child", "element => element.plot.data")
    assert counts[:-1].count(0) < 10 and sum(counts[:-1]) == len(numbers)


def test_a_stream_that_fails_goes_on_without_the_element(open_page):
    stream = MapDataset.range(20).to_iter_dataset().filter(lambda x: x % 2).map(lambda x: 60 // (x - 3))
    page = open_page(stream, panel="elements", index=1)
    page.wait_for_selector(".failure")
    assert page.get_by_role("button", name="Random").is_hidden()
    page.get_by_role("button", name="Leave out elements that fail").click()
    page.wait_for_selector(".shown code.value")
    assert page.locator(".shown code.value").inner_text() == "30"


def test_the_pipeline_is_a_graph_whose_steps_lead_to_their_elements(open_page):
    parts = [MapDataset.range(10).map(lambda x: {"x": np.full(3, x)}), MapDataset.range(30).map(lambda x: {"x": x})]
    ds = MapDataset.mix(parts, [1, 2]).seed(4).shuffle()
    page = open_page(ds, panel="pipeline")
    page.wait_for_function("() => document.querySelectorAll('.step .spec')[6].textContent.length > 3")
    steps = page.locator(".step").all_inner_texts()
    assert len(steps) == 7 and "mix(weights=[100, 200])" in steps[4] and "seed" in steps[6]
    assert page.locator(".step .length").all_inner_texts() == ["10", "10", "30", "30", "30", "30", "30"]
    assert "'x': int64[3]" in steps[1] and "int64[]" in steps[0]
    assert page.locator(".gutter .dot").count() == 7 and page.locator(".gutter .turn").count() == 2
    page.locator(".step").nth(1).click()
    wait_for(page, 0)
    assert page.get_by_role("tab", name="Elements").get_attribute("aria-selected") == "true"
    assert page.get_by_label("after step").input_value() == "1"
    page.get_by_label("index").fill("7")
    page.get_by_label("index").press("Enter")
    wait_for(page, 7)
    assert "7 7 7" in page.locator(".shown").inner_text()


def test_the_time_of_each_step_is_measured(open_page):
    def slow(x):
        time.sleep(0.002)
        return x

    page = open_page(MapDataset.range(300).map(slow).batch(4), panel="pipeline")
    page.get_by_role("button", name="Measure").click()
    page.wait_for_function("() => document.querySelector('.times').textContent.includes('per second')")
    shares = page.eval_on_selector_all(".step .time", "times => times.map(time => parseInt(time.textContent))")
    assert shares[1] > 50 and re.search(r"[1-9]\d* elements in", page.locator(".times").inner_text())


def test_where_an_element_comes_from(open_page, tmp_path):
    for number in range(2):
        (tmp_path / f"{number}.txt").write_text("".join(f"line {number} {n}\n" for n in range(5)))
    ds = MapDataset.source(bushel.sources.open(f"{tmp_path}/*.txt")).seed(1).shuffle().batch(2)
    page = open_page(ds, panel="origin", index=3)
    page.wait_for_selector("table.records")
    rows = [row.split("\t") for row in page.locator(".records tbody tr").all_inner_texts()]
    records = ds.origin(3).records
    assert [int(row[1]) for row in rows] == [record.record for record in records]
    for row, record in zip(rows, records):
        assert (
            row[3].startswith(f"{tmp_path}/{record.record // 5}.txt") and f"record {record.record % 5} of it" in row[3]
        )
    page.locator(".passages tbody tr").last.locator("button").first.click()  # to the record itself
    wait_for(page, records[0].record)
    assert f"line {records[0].record // 5} {records[0].record % 5}" in page.locator(".shown").inner_text()


def test_an_origin_that_is_not_known_is_said_calmly(open_page):
    page = open_page(MapDataset.range(9).to_iter_dataset().filter(lambda x: x > 2), panel="origin")
    page.wait_for_selector(".shown .quiet")
    assert "without reading" in page.locator(".shown").inner_text() and page.locator(".failure").count() == 0


class Counted:
    def __init__(self):
        self.reads = []

    def __len__(self):
        return 10**9

    def __getitem__(self, index):
        self.reads.append(index)
        return {"number": index}


def test_a_billion_elements_open_at_once(open_page):
    source = Counted()
    ds = MapDataset.source(source).seed(0).shuffle().map(lambda record: record)
    begin = time.process_time()
    page = open_page(ds, panel="elements", index=987_654_321)
    wait_for(page, 987_654_321)
    spent = time.process_time() - begin  # of this process, which serves the page
    (record,) = ds.origin(987_654_321).records
    assert source.reads == [record.record]
    assert page.locator(".shown code.value").inner_text() == str(record.record)
    assert "of 1,000,000,000" in page.locator(".total").inner_text()
    assert spent < 10  # nothing goes over all of them


def test_batches_show_their_rows_and_frames_in_full_size(open_page):
    page = open_page(examples().batch(6), panel="elements", index=1)
    page.wait_for_selector(".strip[data-ready]")
    assert page.locator(".strip canvas").count() == 6
    assert np.array_equal(drawn_pixels(page, ".strip figure:nth-child(3) canvas")[..., :3], picture(8))
    page.locator(".strip figure").nth(4).click()
    page.wait_for_selector(".large img")
    assert np.array_equal(drawn_pixels(page, ".large img")[..., :3], picture(10))
    page.get_by_label("row").select_option("5")
    page.wait_for_selector(".entry > .part.image img")
    assert np.array_equal(drawn_pixels(page, ".entry > .part.image img")[..., :3], picture(11))


def test_a_window_of_frames_plays(open_page):
    frames = np.stack([np.full((16, 16, 3), 40 * n, np.uint8) for n in range(4)])
    page = open_page(MapDataset.source([{"video": frames}]), panel="elements")
    page.wait_for_selector(".strip[data-ready]")
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("() => document.querySelector('.play input').value === '2'")
    page.get_by_role("button", name="Stop").click()
    shown = int(page.input_value(".play input"))
    assert (drawn_pixels(page, ".player")[..., :3] == 40 * shown).all()


def test_curves_heat_maps_masks_and_sounds_are_drawn(open_page):
    element = {
        "action": np.linspace(0, 1, 350).reshape(50, 7).astype(np.float32),
        "action_pad_mask": np.arange(50) < 38,
        "audio": np.sin(np.arange(8000) / 9).astype(np.float32),
        "sampling_rate": 8000,
        "nested": {"values": np.arange(100.0)},
        "long": np.arange(8000.0).reshape(4, 2000),
    }
    page = open_page(MapDataset.source([element]), panel="elements")
    page.wait_for_selector(".inner canvas")
    captions = page.locator(".heat figcaption").all_inner_texts()
    assert captions[0].endswith(" bright") and re.search(r" bright, 1 of \d+ columns shown$", captions[-1])
    assert page.locator(".entry:has(> .label .key:text-is('action')) .u-over").count() == 2  # curves, histogram
    heat = drawn_pixels(page, ".entry:has(> .label .key:text-is('action')) img.heat")[..., :3]
    assert heat.shape == (50, 7, 3) and (heat[38:] == 128).all()
    assert not page.locator("details:has-text('action_pad_mask')").get_attribute("open")
    page.wait_for_function("() => document.querySelector('audio').duration > 0")
    assert page.eval_on_selector("audio", "audio => audio.duration") == 1


def test_episodes_of_robots(open_page):
    page = open_page(open_session(GOLDEN / "tfds" / "synth_rlds"), panel="elements", index=1)
    page.wait_for_selector(".strip[data-ready]")
    assert page.locator(".strip").count() == 3  # image, wrist_image, depth
    assert "32 of 40 images" in page.locator(".shown").inner_text()


def test_a_checkpoint_opens_at_its_position(open_page):
    ds = MapDataset.range(1000).seed(0).shuffle().batch(4).to_iter_dataset()
    it = iter(ds)
    for _ in range(12):
        next(it)
    page = open_page(open_session(ds, checkpoint=it.get_state()), panel="elements")
    wait_for(page, 12)
    assert "the next element is 12" in page.locator(".checkpoint").inner_text()
    page.get_by_label("row").select_option("2")
    page.wait_for_selector(".shown code.value")
    assert page.locator(".shown code.value").inner_text() == str(next(it)[2])
    page.get_by_role("button", name="Previous").click()
    wait_for(page, 11)
    page.get_by_role("button", name="At the checkpoint").click()
    wait_for(page, 12)


def test_dark_and_narrow_pages_fit(open_page, tmp_path):
    light = open_page(examples().batch(8), panel="elements", width=400)
    dark = open_page(examples().batch(8), panel="elements", width=400, dark=True)
    brightness = []
    for page in (light, dark):
        page.wait_for_selector(".strip[data-ready]")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        page.screenshot(path=tmp_path / "page.png")
        brightness.append(np.asarray(Image.open(tmp_path / "page.png").convert("L")).mean())
    assert brightness[0] > 180 and brightness[1] < 90


def test_a_page_whose_program_has_ended_says_so(open_page):
    page = open_page(examples(), panel="elements")
    wait_for(page, 0)
    page.view.close()
    page.get_by_role("button", name="Next").click()
    page.wait_for_selector(".failure")
    assert "does not answer" in page.locator(".failure").inner_text()
    page.expected_problems.append("net::ERR_")  # refused, or reset if the connection was still open


def test_a_notebook_shows_the_page_in_a_frame(open_page, browser):
    html = open_page(examples(), panel="elements").view._repr_html_().encode()

    class Notebook(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(html)

        def log_message(self, format, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Notebook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.goto(f"http://localhost:{server.server_port}/")
        inside = page.frame_locator("iframe")
        inside.locator(".shown[data-index='0']").wait_for()
        assert inside.locator(".entry img").count() == 1
        context.close()
        server.shutdown()
