"""LeRobot data sets for tests and benchmarks, written with PyAV and pyarrow alone: rows, videos and `meta`.

Each picture has its row as 8 bits in the top sixth, so that a wrong frame is seen without comparing pixels.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

CAMERAS = ("observation.images.front", "observation.images.wrist")
TASKS = ("pick up the cube", "open the drawer")


def picture(row: int, size: tuple[int, int], camera: int = 0) -> np.ndarray:
    """The picture of a row: moving stripes, and the row as 8 blocks of light and dark in the top sixth."""
    height, width = size
    y, x = np.mgrid[:height, :width]
    image = np.stack([(3 * x + 5 * row) % 256, (4 * y + 7 * camera * 31) % 256, (x + y + row) % 256], -1).astype(
        np.uint8
    )
    for bit in range(8):
        image[: height // 6, bit * width // 8 : (bit + 1) * width // 8] = 235 if row >> bit & 1 else 20
    return image


def read_row(image: np.ndarray) -> int:
    """The row that a decoded picture shows, modulo 256."""
    height, width = image.shape[:2]
    middles = [(2 * bit + 1) * width // 16 for bit in range(8)]
    return sum(int(image[height // 12, x].mean() > 128) << bit for bit, x in enumerate(middles))


def write_video(
    path: Path, images: Sequence[np.ndarray], fps: float, codec: str = "libx264", group: int = 2, **options: str
) -> None:
    """An MP4 file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=int(fps))
        stream.height, stream.width, stream.pix_fmt = *images[0].shape[:2], "yuv420p"
        stream.options = {"g": str(group), "crf": "30", **_QUIET.get(codec, {}), **options}
        for image in images:
            for packet in stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)


_QUIET = {"libx264": {"x264-params": "log-level=none"}, "libsvtav1": {"preset": "12"}}
_QUIET["libx265"] = {"x265-params": "log-level=none"}


def write_dataset(
    folder: Path,
    lengths: Sequence[int],
    *,
    version: int = 3,
    fps: int = 10,
    size: tuple[int, int] = (48, 64),
    codec: str = "libx264",
    group: int = 2,
    cameras: Sequence[str] = CAMERAS,
    per_file: int = 2,
    width: int = 3,
) -> Path:
    """A data set with episodes of these lengths. In version 3 `per_file` episodes share a file."""
    starts = np.cumsum([0, *lengths])
    rng = np.random.default_rng(0)
    columns = {
        "observation.state": rng.normal(size=(int(starts[-1]), width)).astype(np.float32),
        "action": rng.normal(size=(int(starts[-1]), width)).astype(np.float32),
        "timestamp": np.concatenate([np.arange(n) / fps for n in lengths]).astype(np.float32),
        "frame_index": np.concatenate([np.arange(n) for n in lengths]).astype(np.int64),
        "episode_index": np.repeat(np.arange(len(lengths)), lengths).astype(np.int64),
        "index": np.arange(starts[-1]),
        "task_index": np.repeat(np.arange(len(lengths)) % 2, lengths).astype(np.int64),
    }
    facts = [{"episode_index": e, "length": n, "tasks": [TASKS[e % 2]]} for e, n in enumerate(lengths)]
    for number, low in enumerate(range(0, len(lengths), per_file if version == 3 else 1)):
        own = range(low, min(low + (per_file if version == 3 else 1), len(lengths)))
        some = slice(int(starts[own[0]]), int(starts[own[-1] + 1]))
        name = f"file-{number:03d}" if version == 3 else f"episode_{low:06d}"
        _write_table(folder / f"data/chunk-000/{name}.parquet", {key: values[some] for key, values in columns.items()})
        for camera, key in enumerate(cameras):
            images = [picture(row, size, camera) for row in range(some.start, some.stop)]
            place = f"videos/{key}/chunk-000" if version == 3 else f"videos/chunk-000/{key}"
            if images:
                write_video(folder / place / f"{name}.mp4", images, fps, codec, group)
            for episode in own:
                begin, end = (int(starts[e]) - some.start for e in (episode, episode + 1))
                facts[episode] |= {f"videos/{key}/chunk_index": 0, f"videos/{key}/file_index": number}
                facts[episode] |= {f"videos/{key}/from_timestamp": begin / fps, f"videos/{key}/to_timestamp": end / fps}
        for episode in own:
            facts[episode] |= {"data/chunk_index": 0, "data/file_index": number}
            facts[episode] |= {"dataset_from_index": int(starts[episode]), "dataset_to_index": int(starts[episode + 1])}
    (folder / "meta").mkdir(parents=True, exist_ok=True)
    features: dict[str, Any] = {
        key: {"dtype": "video", "shape": [*size, 3], "names": ["height", "width", "channels"]} for key in cameras
    }
    for key, values in columns.items():
        features[key] = {"dtype": str(values.dtype), "shape": list(values.shape[1:]) or [1], "names": None}
    info = {
        "codebase_version": "v3.0" if version == 3 else "v2.1",
        "robot_type": None,
        "total_episodes": len(lengths),
        "total_frames": int(starts[-1]),
        "total_tasks": len(TASKS),
        "chunks_size": 1000,
        "fps": fps,
        "splits": {"train": f"0:{len(lengths)}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": features,
    }
    if version == 3:
        more = {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
        place = folder / "meta/episodes/chunk-000/file-000.parquet"
        place.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist([fact | more for fact in facts]), place)
        tasks = {"task_index": list(range(len(TASKS))), "__index_level_0__": list(TASKS)}
        kinds = {"task_index": ("task_index", "int64", "int64"), "__index_level_0__": (None, "unicode", "object")}
        described = [
            {"name": name, "field_name": field, "pandas_type": kind, "numpy_type": numpy, "metadata": None}
            for field, (name, kind, numpy) in kinds.items()
        ]
        index = {"index_columns": ["__index_level_0__"], "columns": described, "column_indexes": []}
        table = pa.table(tasks).replace_schema_metadata({"pandas": json.dumps(index | {"pandas_version": "2.0"})})
        pq.write_table(table, folder / "meta/tasks.parquet")
        info |= {"data_files_size_in_mb": 100, "video_files_size_in_mb": 200}
    else:
        info["data_path"] = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
        info["video_path"] = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
        lines = [{key: fact[key] for key in ("episode_index", "tasks", "length")} for fact in facts]
        (folder / "meta/episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        lines = [{"task_index": number, "task": task} for number, task in enumerate(TASKS)]
        (folder / "meta/tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "meta/info.json").write_text(json.dumps(info, indent=1))
    return folder


def _write_table(path: Path, columns: dict[str, np.ndarray]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for key, values in columns.items():
        flat = pa.array(values.ravel())
        arrays[key] = flat if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
    pq.write_table(pa.table(arrays), path)
