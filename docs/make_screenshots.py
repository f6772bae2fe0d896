"""Makes the pictures of the viewer in docs/images: `python docs/make_screenshots.py [NAME ...]`.

It needs Chromium, and the package playwright. Each picture is a function of `SHOTS` that returns what is looked at.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from bushel import MapDataset, MultiprocessingOptions, serve_report
from bushel._src.view.attachment import Attachment
from bushel._src.view.session import Session
from bushel._src.view.show_page import View

IMAGES = Path(__file__).parent / "images"
LARGEST = 150_000
"""Bytes of a picture."""


class Shot(NamedTuple):
    """A picture: what is looked at, the place on the page, and what the browser waits for."""

    make: Callable[[], Session]
    place: dict[str, Any]
    wait_for: str
    width: int = 1060
    height: int = 640
    dark: bool = False
    click: str = ""


class Scenes:
    """Records of a data set whose classes have names."""

    classes = ("red", "blue", "green", "yellow")

    def __init__(self, size: int):
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"number": index, "label": np.int64(index % 4)}


def draw_scene(record: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A camera image with a block on a table, and what a policy would learn from it."""
    number = record["number"]
    sky = np.linspace(225, 190, 128)[:, None] + np.linspace(0, 20, 128)[None]
    image = Image.fromarray(np.stack([sky, sky, sky + 8], -1).clip(0, 255).astype(np.uint8))
    pen = ImageDraw.Draw(image)
    pen.polygon([(0, 128), (0, 84), (128, 72), (128, 128)], fill=(164, 126, 88))
    x, y = 30 + number * 37 % 60, 78 + number * 17 % 24
    color = [(196, 60, 52), (58, 110, 190), (74, 150, 84), (214, 168, 50)][number % 4]
    pen.rectangle([x, y, x + 22, y + 18], fill=color, outline=(60, 50, 40))
    pen.line([(64, 0), (58, 34), (x + 11, y - 12)], fill=(70, 72, 78), width=6)
    pen.line([(x + 3, y - 12), (x + 3, y - 2)], fill=(40, 42, 46), width=3)
    pen.line([(x + 19, y - 12), (x + 19, y - 2)], fill=(40, 42, 46), width=3)
    top, left = rng.integers(0, 16, 2)
    goal = np.zeros((112, 112, 3), np.uint8)
    goal[14:98] = np.asarray(image)[22:106, 8:120]
    names = Scenes.classes
    return {
        "image": np.asarray(image)[top : top + 112, left : left + 112],
        "goal": goal,
        "goal_mask": np.repeat(np.repeat([False, True, False], [14, 84, 14])[:, None], 112, axis=1),
        "label": record["label"],
        "instruction": f"pick up the {names[number % 4]} block",
        "action": np.cumsum(rng.normal(0, 0.3, (16, 4)), axis=0).astype(np.float32),
        "action_pad_mask": np.arange(16) < 12,
        "proprio": rng.normal(size=7).astype(np.float32),
    }


def scenes() -> MapDataset[Any]:
    """Two data sets of scenes, mixed, cropped at random and batched."""
    parts = [MapDataset.source(Scenes(size)).seed(seed).shuffle().repeat() for seed, size in enumerate((800, 300))]
    return MapDataset.mix(parts, [3, 1]).seed(7).random_map(draw_scene)


def open_scenes() -> Session:
    """Single scenes."""
    return Session(scenes(), target="train.py:make_dataset")


def open_batches() -> Session:
    """Batches of scenes."""
    return Session(scenes().batch(12), target="train.py:make_dataset")


def open_tokens() -> Session:
    """The sentences of the documents, packed into rows."""
    import tokenizers

    pages = [path.read_text() for path in sorted(Path(__file__).parent.glob("*.md"))]
    sentences = [line for page in pages for line in re.findall(r"[A-Z][a-z][^.`|\n]{20,140}\.", page)]
    tokenizer: Any = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.train_from_iterator(sentences, tokenizers.trainers.BpeTrainer(vocab_size=3000, show_progress=False))
    ids = [np.array(tokenizer.encode(sentence).ids, np.int32) for sentence in sentences]
    packed = MapDataset.source(ids).pack([len(row) for row in ids], 192, seed=3).seed(1).shuffle()
    return Session(packed, target="language.py:rows", tokenizer=tokenizer)


TRAIN = """
def find_box(scene):
    if scene["instruction"].endswith("yellow block"):
        raise KeyError("no bounding box for 'yellow block'")
    return scene
"""
"""A function of the user's that fails, in the user's own file."""


def open_failing() -> Session:
    """A pipeline of which some elements fail."""
    names: dict[str, Any] = {}
    exec(compile(TRAIN, "project/train.py", "exec"), names)
    return Session(scenes().map(names["find_box"]), target="train.py:make_dataset")


def find_failing() -> int:
    """The first element that fails."""
    session = open_failing()
    return next(index for index in range(100) if session.read(-1, index).error)


def record_episode(number: int, length: int, name: str) -> dict[str, Any]:
    """An arm that moves a block: two cameras, joints, actions and an instruction."""
    steps = np.arange(length)[:, None]
    joints = np.sin(steps / 8 + number + np.arange(6)).astype(np.float32)
    hand = (steps > length // 2).astype(np.float32)
    front, wrist = [], []
    for step in range(length):
        image = Image.new("RGB", (160, 120), (206, 204, 198))
        pen = ImageDraw.Draw(image)
        pen.polygon([(0, 120), (0, 78), (160, 66), (160, 120)], fill=(164, 126, 88))
        x, y = 30 + 90 * step / length, 70 + 14 * np.sin(step / 6 + number)
        pen.line([(80, 0), (74, 30), (x + 8, y - 10)], fill=(70, 72, 78), width=6)
        pen.rectangle([x, y, x + 16, y + 14], fill=(196, 60, 52), outline=(60, 50, 40))
        front.append(np.asarray(image))
        wrist.append(np.asarray(image.crop((int(x) - 20, int(y) - 20, int(x) + 36, int(y) + 22)).resize((160, 120))))
    words = [b"put the red block on the tray", b"push the red block to the right"][number % 2]
    return {
        "observation": {"image_front": np.stack(front), "image_wrist": np.stack(wrist), "proprio": joints},
        "action": np.concatenate([np.diff(joints, axis=0, append=joints[-1:]), hand], axis=1),
        "task": {"language_instruction": np.array([words] * length, object)},
        "dataset_name": np.array([name.encode()] * length, object),
    }


def open_robots() -> Session:
    """Samples of two robots, mixed 3 to 1: windows of two frames, chunks of twelve actions."""
    from bushel.trajectory import TrajectoryDataset, apply_trajectory_transforms

    parts = []
    for name, lengths in (("kitchen", (46, 38, 52)), ("bench", (30, 41))):
        episodes = [record_episode(number, length, name) for number, length in enumerate(lengths)]
        windows = apply_trajectory_transforms(
            TrajectoryDataset.from_trajectories(episodes),
            train=True,
            window_size=2,
            action_horizon=12,
            goal_relabeling_strategy="uniform",
        )
        parts.append(windows.flatten().shuffle(seed=len(parts)).repeat())
    mixed = TrajectoryDataset.sample_from_datasets(parts, [3, 1])
    return Session(mixed.batch(32).dataset, target="train.py:make_dataset")


JOINTS = ["shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper"]


def open_policy() -> Session:
    """Rows of a LeRobot data set with the names of its joints: windows of two frames, chunks of twelve actions."""
    from bushel.trajectory import LeRobotSource, convert_episodes

    folder = Path(tempfile.mkdtemp())
    (folder / "raw").mkdir()
    for number, length in enumerate((46, 38, 52, 30, 41, 35, 44, 39)):
        episode = record_episode(number, length, "kitchen")
        pictures = {name.removeprefix("image_"): values for name, values in episode["observation"].items()}
        np.savez(
            folder / "raw" / f"{number}.npz",
            front=pictures["front"],
            wrist=pictures["wrist"],
            state=pictures["proprio"],
            action=episode["action"][:, 1:],
            language_instruction=episode["task"]["language_instruction"][0].decode(),
        )
    target = folder / "kitchen"
    convert_episodes(folder / "raw", target, format="lerobot", source_format="npz", fps=10, codec=None, progress=False)
    info = json.loads((target / "meta" / "info.json").read_text())
    for name in ("action", "observation.state"):
        info["features"][name]["names"] = JOINTS
    (target / "meta" / "info.json").write_text(json.dumps(info))
    ahead = [step / 10 for step in range(12)]
    windows = {"action": ahead, "observation.images.front": [-0.1, 0.0], "observation.images.wrist": [-0.1, 0.0]}
    source = LeRobotSource(target, delta_timestamps=windows, cache_dir=folder / "cache")
    return Session(MapDataset.source(source).seed(2).shuffle().batch(32), target="train.py:make_dataset")


def decode(number: int) -> dict[str, Any]:
    """Stands for work: an image that takes its time, and sometimes fails."""
    time.sleep(0.005)
    if number % 501 == 77:
        raise ValueError(f"record {number}: the JPEG file is cut short")
    return {"image": np.zeros((64, 64, 3), np.uint8), "label": number}


def open_running() -> Session:
    """A loop that trains in a thread, after some seconds."""
    options = MultiprocessingOptions(num_workers=1)
    ds = MapDataset.range(10**9).seed(0).shuffle().map(decode).to_iter_dataset().batch(8).mp_prefetch(options)
    it = iter(ds.with_options(execution_tracking_mode="stage_timing", on_error="skip"))
    server = serve_report(it, interval_s=0.5)

    def train() -> None:
        with contextlib.suppress(RuntimeError):  # the workers end with the program
            for _ in it:
                time.sleep(0.034)

    threading.Thread(target=train, daemon=True).start()
    time.sleep(20)
    attachment = Attachment(server.url)
    return Session(None, target=attachment.name, attached=attachment)


SHOTS = {
    "view_running": Shot(open_running, {}, "[data-chart='Elements per second'] canvas", height=900),
    "view_elements": Shot(open_scenes, {"panel": "elements", "index": 12}, ".plots canvas", height=760),
    "view_batch": Shot(open_batches, {"panel": "elements", "index": 3}, ".strip[data-ready]", height=600),
    "view_tokens": Shot(open_tokens, {"panel": "elements", "index": 5}, ".decoded li", height=520),
    "view_pipeline": Shot(
        open_batches, {"panel": "pipeline"}, ".step:last-child .spec:not(:empty)", height=700, click="text=Measure"
    ),
    "view_origin": Shot(open_batches, {"panel": "origin", "index": 3}, "table.passages", height=820),
    "view_failure": Shot(open_failing, {"panel": "elements", "index": find_failing()}, ".records button", height=400),
    "view_robots": Shot(open_policy, {"row": 9}, ".curves .plot canvas", 1180, 860),
    "view_order": Shot(open_robots, {"panel": "order"}, ".sources .distances canvas", 1060, 800),
    "view_phone": Shot(open_policy, {"row": 9}, ".curves .plot canvas", 420, 760),
    "view_dark": Shot(open_scenes, {"panel": "elements", "index": 12}, ".plots canvas", 420, 760, dark=True),
}


def take(browser: Any, shot: Shot) -> bytes:
    """The picture of one page, as a PNG file."""
    with View(shot.make()) as view:
        scheme = "dark" if shot.dark else "light"
        size = {"width": shot.width, "height": shot.height}
        context = browser.new_context(viewport=size, color_scheme=scheme, device_scale_factor=1)
        page = context.new_page()
        page.goto(view.url + "".join(f"&{name}={value}" for name, value in shot.place.items()))
        page.wait_for_selector(shot.wait_for)
        if shot.click:
            page.locator(shot.click).first.click()
            page.wait_for_timeout(4000)
            page.mouse.move(0, 0)
        page.wait_for_timeout(500)
        taken = Image.open(io.BytesIO(page.screenshot()))
        context.close()
    out = io.BytesIO()
    taken.convert("RGB").quantize(160).save(out, "PNG", optimize=True)
    return out.getvalue()


def main(names: list[str]) -> None:
    """Writes the named pictures, or all of them."""
    from playwright.sync_api import sync_playwright

    found = filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    path = os.environ.get("BUSHEL_TEST_CHROMIUM") or next(found, None)
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for name in names or SHOTS:
            picture = take(browser, SHOTS[name])
            if len(picture) > LARGEST:
                raise SystemExit(f"{name}.png has {len(picture):,} bytes, more than {LARGEST:,}.")
            (IMAGES / f"{name}.png").write_bytes(picture)
            print(f"{name}.png: {len(picture):,} bytes")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
