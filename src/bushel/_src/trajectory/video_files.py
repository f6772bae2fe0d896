"""`VideoFiles`: frames of many video files by (number of the file, number of the frame), each decoded once per call.

Needs PyAV. Decoders are kept for the next call. `video_packets.py` says where the packets lie.
"""

from __future__ import annotations

import collections
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bushel._src.base import redact
from bushel._src.base.errors import DamagedFile
from bushel._src.base.late_imports import import_package
from bushel._src.base.state_names import in_states
from bushel._src.sources import file_access
from bushel._src.sources.local_files import File, HandlePool
from bushel._src.sources.paths import Options
from bushel._src.trajectory.video_packets import PacketTable, PacketTables, Stream

DECODER_BYTES = 64 << 20
"""What the idle decoders of this process may take together, estimated."""
_STREAMS = 8
"""How many descriptions of streams have idle decoders."""
_SMALL_GAP = 2
"""A run goes on through so many packets that nobody wants: a new start costs as much."""

_SOFTWARE = {"av1": ("libdav1d", "libaom-av1")}
"""Decoders by codec, where FFmpeg's decoder of the same name needs special hardware."""

_pools: collections.OrderedDict[Stream, HandlePool[_FrameDecoder]] = collections.OrderedDict()
_lock = threading.Lock()


def _forget_decoders() -> None:
    """A forked process makes decoders of its own."""
    global _lock
    _lock = threading.Lock()
    _pools.clear()


os.register_at_fork(after_in_child=_forget_decoders)


def _find_pool(stream: Stream) -> HandlePool[_FrameDecoder]:
    with _lock:
        pool = _pools.get(stream)
        if pool is None:
            size = (2 << 20) + 6 * stream.height * stream.width  # measured: about 3 MB at 320 x 240, 4 at 640 x 480
            pool = HandlePool(lambda: _make_decoder(stream), max(1, DECODER_BYTES // _STREAMS // size))
            _pools[stream] = pool
        _pools.move_to_end(stream)
        while len(_pools) > _STREAMS:
            _pools.popitem(last=False)
    return pool


class _FrameDecoder:
    """A decoder and a converter to RGB. Both keep memory between frames, and serve one thread at a time."""

    def __init__(self, context: Any, converter: Any):
        self.context, self._converter = context, converter
        self._options = {"threads": 1} if "threads" in (converter.reformat.__doc__ or "") else {}  # since PyAV 17

    def convert(self, frame: Any, pixel_format: str) -> Any:
        """Return the frame in a pixel format, with the colours of swscale's defaults, as in torchcodec and lerobot."""
        return self._converter.reformat(frame, format=pixel_format, **self._options)


def _make_decoder(stream: Stream) -> _FrameDecoder:
    av: Any = import_package("av", "video", "Video files")
    for name in _SOFTWARE.get(stream.codec, (stream.codec,)):
        try:
            decoder = av.CodecContext.create(name, "r")
            break
        except av.codec.codec.UnknownCodecError:
            continue
    else:
        raise ValueError(f"This build of PyAV has no decoder for the video codec {stream.codec!r}.")
    decoder.thread_count, decoder.thread_type = 1, "NONE"  # more threads take up to twice the CPU time
    if stream.extradata:
        decoder.extradata = stream.extradata
    return _FrameDecoder(decoder, av.video.reformatter.VideoReformatter())


def decode_frames(
    file: File,
    table: PacketTable,
    numbers: Sequence[int] | np.ndarray,
    put: Callable[[int, Any], None],
    pixel_format: str = "rgb24",
) -> None:
    """Call `put(position in numbers, frame of PyAV)` once for each number, in any order.

    Frames are decoded in runs: from the packet where decoding must begin up to the last frame of the run.

    Args:
      file: the video file.
      table: its packet table.
      numbers: numbers of frames in the order in which they are shown, ascending, each once.
      put: must copy the pixels, since the decoder uses the memory of the frame again.
      pixel_format: of the frames, as FFmpeg calls it.
    """
    wanted = np.asarray(numbers, np.int64)
    runs = _plan_runs(table.packets[wanted].astype(np.int64), table.starts[wanted].astype(np.int64))
    blocks = _read_packets(file, table, runs)
    pool = _find_pool(table.stream)
    for (first, last, low, _), packets in zip(runs, blocks):
        places = {int(table.packets[wanted[place]]): place for place in range(first, last)}
        with pool.lend() as decoder:
            _decode_run(decoder, packets, low, places, file, table, put, pixel_format)


def _plan_runs(packets: np.ndarray, starts: np.ndarray) -> list[tuple[int, int, int, int]]:
    """Run (first, last wanted frame + 1, first packet, last packet + 1) that each decode without a jump."""
    runs: list[tuple[int, int, int, int]] = []
    for place, (packet, start) in enumerate(zip(packets.tolist(), starts.tolist())):
        if runs:
            first, _, low, high = runs[-1]
            if start <= high + _SMALL_GAP:
                runs[-1] = (first, place + 1, min(low, start), max(high, packet + 1))
                continue
        runs.append((place, place + 1, start, packet + 1))
    return runs


def _read_packets(file: File, table: PacketTable, runs: Sequence[tuple[int, int, int, int]]) -> list[list[bytes]]:
    """Return the packets of each run. Packets that lie one after another are read at once."""
    starts: list[int] = []
    lengths: list[int] = []
    cuts: list[tuple[int, list[int], list[int]]] = []
    for _, _, low, high in runs:
        offsets, sizes = table.offsets[low:high], table.sizes[low:high].astype(np.int64)
        begin, end = int(offsets.min()), int((offsets + sizes).max())
        if end - begin <= 2 * int(sizes.sum()) + 4096:
            cuts.append((len(starts), (offsets - begin).tolist(), sizes.tolist()))
            starts.append(begin)
            lengths.append(end - begin)
        else:  # other tracks lie between the packets
            cuts.append((len(starts), [], sizes.tolist()))
            starts += offsets.tolist()
            lengths += sizes.tolist()
    data = file.read_many(starts, lengths)
    blocks = []
    for place, offsets, sizes in cuts:
        if offsets:
            whole = data[place]
            blocks.append([whole[begin : begin + size] for begin, size in zip(offsets, sizes)])
        else:
            blocks.append(data[place : place + len(sizes)])
    return blocks


def _decode_run(
    decoder: _FrameDecoder,
    packets: Sequence[bytes],
    first: int,
    left: dict[int, int],
    file: File,
    table: PacketTable,
    put: Callable[[int, Any], None],
    pixel_format: str,
) -> None:
    """Decode packets, from number `first` on. `left` maps the packets of wanted frames to their positions."""
    av: Any = import_package("av", "video", "Video files")
    try:
        for number, content in enumerate(packets, first):
            packet = av.Packet(content)
            # A frame comes out with the time of its packet. Here this is the number of the packet, which names it.
            packet.pts = packet.dts = number
            for frame in decoder.context.decode(packet):
                if frame.pts in left:
                    put(left.pop(frame.pts), decoder.convert(frame, pixel_format))
        for frame in decoder.context.decode(None):  # frames that the decoder holds back to put them in order
            if frame.pts in left:
                put(left.pop(frame.pts), decoder.convert(frame, pixel_format))
        decoder.context.flush_buffers()
    except av.FFmpegError as error:
        raise DamagedFile(
            f"{file.name}: {_describe(left, table)} cannot be decoded ({type(error).__name__}: {error})."
        ) from error
    if left:
        raise DamagedFile(f"{file.name}: {_describe(left, table)} cannot be decoded: the decoder returned no picture.")


def _describe(left: dict[int, int], table: PacketTable) -> str:
    packet = min(left) if left else 0
    number = int(np.flatnonzero(table.packets == packet)[0]) if left else 0
    return f"frame {number} of {len(table)} (shown at {table.times[number]:.4f} s)"


_KEPT_FILES = 512


@in_states("video_files", {"_options": "video_files.options", "_files": None, "_lock": None})
class VideoFiles:
    """Video files whose packets are known. Any thread may read.

    A pickled object opens its files in the process that unpickles it. A file that has another size than when its packet
    table was made is refused.

    Args:
      paths: paths or URLs.
      tables: the packet table of each file.
      sizes: the size of each file in bytes when its table was made.
      options: options of the store of URLs.
    """

    def __init__(
        self, paths: Sequence[str], tables: PacketTables, sizes: Sequence[int], options: Options | None = None
    ):
        self.paths, self.tables, self.sizes = list(paths), tables, list(sizes)
        self._options = redact.Options(options or {})
        self._open()

    def _open(self) -> None:
        self._files: collections.OrderedDict[int, File] = collections.OrderedDict()
        self._lock = threading.Lock()

    def shape(self, number: int) -> tuple[int, int, int]:
        """Return the shape of the frames of a file: (height, width, 3)."""
        stream = self.tables.streams[int(self.tables.files[number, 0])]
        return stream.height, stream.width, 3

    def file(self, number: int) -> File:
        """Return an open file. The last 512 are kept; of local files the store keeps at most 256 descriptors."""
        with self._lock:
            file = self._files.get(number)
            if file is not None:
                self._files.move_to_end(number)
                return file
        file = file_access.open_file(self.paths[number], self._options)
        if file.size != self.sizes[number]:
            raise DamagedFile(
                f"{file.name} has {file.size} bytes, and had {self.sizes[number]} when its frames were indexed. Remove "
                "the cached table of the data set, or choose another cache_dir."
            )
        with self._lock:
            self._files[number] = file
            while len(self._files) > _KEPT_FILES:
                self._files.popitem(last=False)
        return file

    def read_into(
        self, files: Sequence[int] | np.ndarray, frames: Sequence[int] | np.ndarray, out: Sequence[np.ndarray]
    ) -> None:
        """Decode frames into arrays: frame `frames[i]` of file `files[i]` into `out[i]`.

        An array of uint8 (height, width, 3) gets colours. An array of uint16 (height, width, 1) gets grey of 12 bits.

        All frames are sorted by file and time first. Frames of one group of pictures are decoded in one pass, and a
        frame that is asked for several times is decoded once.
        """
        numbers, times = np.asarray(files, np.int64), np.asarray(frames, np.int64)
        order = np.lexsort((times, numbers))
        numbers, times = numbers[order], times[order]
        new = np.ones(len(order), dtype=bool)
        new[1:] = (numbers[1:] != numbers[:-1]) | (times[1:] != times[:-1])
        firsts = np.flatnonzero(new)
        lasts = [*firsts[1:].tolist(), len(order)]
        places = order.tolist()
        for low, high in _split(numbers[firsts]):
            number = int(numbers[firsts[low]])

            def put(position: int, frame: Any, low: int = low) -> None:
                begin, end = int(firsts[low + position]), lasts[low + position]
                target = out[places[begin]]
                _copy_pixels(frame, target)
                for place in places[begin + 1 : end]:
                    out[place][...] = target

            table = self.tables[number]
            wanted = times[firsts[low:high]]
            if wanted[0] < 0 or wanted[-1] >= len(table):
                raise IndexError(f"{self.file(number).name} has {len(table)} frames; frame {wanted[-1]} was asked for.")
            is_grey = out[places[int(firsts[low])]].dtype == np.uint16
            decode_frames(self.file(number), table, wanted, put, "gray12le" if is_grey else "rgb24")

    def read(self, files: Sequence[int] | np.ndarray, frames: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """Return frames as new arrays, uint8 (height, width, 3), in the given order."""
        out = [np.empty(self.shape(int(number)), np.uint8) for number in files]
        self.read_into(files, frames, out)
        return out

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_files", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()

    def __repr__(self) -> str:
        return f"VideoFiles({len(self.paths)} files)"


def _split(values: np.ndarray) -> list[tuple[int, int]]:
    """Return the runs of equal values: pairs (first, last + 1)."""
    cuts = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    return list(itertools.pairwise(cuts)) if len(values) else []


def _copy_pixels(frame: Any, out: np.ndarray) -> None:
    """Copy the pixels of a frame whose channels lie together. Its rows may be padded."""
    if (frame.height, frame.width) != out.shape[:2]:
        raise DamagedFile(f"A frame has {frame.height} x {frame.width} pixels, but its file says {out.shape[:2]}.")
    plane = frame.planes[0]
    rows = np.frombuffer(plane, out.dtype).reshape(-1, plane.line_size // out.itemsize)
    out.reshape(out.shape[0], -1)[...] = rows[: out.shape[0], : out.shape[1] * out.shape[2]]
