"""Frames of video files at any position: the same pixels as PyAV's own container gives, whatever the order."""

import multiprocessing
import pickle
import threading
from pathlib import Path

import av
import numpy as np
import pytest
from helpers.lerobot_folders import picture, read_row, write_video
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bushel._src.base.errors import DamagedFile
from bushel._src.sources import file_access
from bushel._src.trajectory import video_files, video_packets
from bushel._src.trajectory.video_files import VideoFiles
from bushel._src.trajectory.video_packets import PacketTables, read_packet_table

SIZE, COUNT, FPS = (48, 64), 31, 10
KINDS = {
    "h264": ("libx264", 2, {}),
    "h264 with frames out of order": ("libx264", 12, {"bf": "3"}),
    "h264 with open groups": ("libx264", 8, {"bf": "2", "x264-params": "open-gop=1:log-level=none"}),
    "h264 in one group": ("libx264", 250, {}),
    "hevc with open groups": ("libx265", 8, {"x265-params": "open-gop=1:keyint=8:bframes=3:log-level=none"}),
    "av1": ("libsvtav1", 2, {}),
    "mpeg4": ("mpeg4", 6, {}),
}


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    paths = {}
    for number, (name, (codec, group, options)) in enumerate(KINDS.items()):
        path = folder / f"{number}.mp4"
        write_video(path, [picture(row, SIZE) for row in range(COUNT)], FPS, codec, group, **options)
        paths[name] = str(path)
    return paths


def by_container(path):
    with av.open(path) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def opened(*paths):
    files = [file_access.open_file(path) for path in paths]
    tables = PacketTables.of([read_packet_table(file) for file in files])
    return VideoFiles(list(paths), tables, [file.size for file in files])


@pytest.mark.parametrize("kind", KINDS)
def test_each_frame_alone_and_all_at_once_equal_the_container(videos, kind):
    expected = by_container(videos[kind])
    files = opened(videos[kind])
    assert len(files.tables[0]) == len(expected) == COUNT
    np.testing.assert_array_equal(np.round(files.tables[0].times * FPS), np.arange(COUNT))
    np.testing.assert_array_equal(files.read([0] * COUNT, range(COUNT)), expected)
    for number in (0, 1, 7, 8, 9, 16, COUNT - 1):
        np.testing.assert_array_equal(files.read([0], [number])[0], expected[number])
        assert read_row(expected[number]) == number


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "mpeg4"])
def test_the_index_of_an_mp4_file_equals_that_of_the_demuxer(videos, kind):
    file = file_access.open_file(videos[kind])
    ours, theirs = video_packets.read_index(file), video_packets.demux(file)
    assert (ours.codec, ours.extradata, ours.height, ours.width) == (theirs.codec, theirs.extradata, *SIZE)
    np.testing.assert_array_equal(ours.times / ours.timescale, theirs.times / theirs.timescale)
    for name in ("offsets", "sizes", "is_key"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


def test_a_sound_track_between_the_pictures_is_not_read(tmp_path, monkeypatch):
    """Its packets lie between those of the video, and are larger: each picture is read by itself."""
    path = str(tmp_path / "sound.mov")
    with av.open(path, "w") as container:
        video, sound = container.add_stream("libx264", rate=FPS), container.add_stream("pcm_s16le", rate=48_000)
        video.height, video.width, video.pix_fmt, video.gop_size = *SIZE, "yuv420p", 250
        for row in range(COUNT):
            container.mux(video.encode(av.VideoFrame.from_ndarray(picture(row, SIZE), format="rgb24")))
            samples = av.AudioFrame.from_ndarray(np.full((1, 4800), row, np.int16), format="s16", layout="mono")
            samples.sample_rate, samples.pts = 48_000, 4800 * row
            container.mux(sound.encode(samples))
        container.mux(video.encode(None))
        container.mux(sound.encode(None))
    files, expected = opened(path), by_container(path)
    read_bytes: list[int] = []
    read_many = type(files.file(0)).read_many
    monkeypatch.setattr(
        type(files.file(0)),
        "read_many",
        lambda file, starts, lengths: read_bytes.append(sum(lengths)) or read_many(file, starts, lengths),
    )
    for wanted in (range(COUNT), [0, 17], [30, 3, 4]):
        np.testing.assert_array_equal(files.read([0] * len(wanted), wanted), [expected[number] for number in wanted])
    assert max(read_bytes) <= int(files.tables[0].sizes.sum())


def test_a_codec_or_container_that_our_index_does_not_know_is_read_by_the_demuxer(videos):
    with pytest.raises(video_packets.NotUnderstood):
        video_packets.read_index(file_access.open_file(videos["mpeg4"]))
    assert len(read_packet_table(file_access.open_file(videos["mpeg4"]))) == COUNT


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    wanted=st.lists(st.tuples(st.integers(0, len(KINDS) - 1), st.integers(0, COUNT - 1)), min_size=1, max_size=40),
)
def test_any_frames_of_any_files_in_any_order_equal_the_frames_one_by_one(videos, wanted):
    paths = list(videos.values())
    files = opened(*paths)
    expected = [by_container_cached(path) for path in paths]
    numbers, frames = zip(*wanted)
    for (number, frame), image in zip(wanted, files.read(numbers, frames)):
        np.testing.assert_array_equal(image, expected[number][frame])


_known: dict[str, list[np.ndarray]] = {}


def by_container_cached(path):
    if path not in _known:
        _known[path] = by_container(path)
    return _known[path]


def test_a_frame_that_is_asked_for_twice_is_decoded_once(videos, monkeypatch):
    files = opened(videos["h264"])
    asked = []
    plan = video_files._plan_runs
    monkeypatch.setattr(video_files, "_plan_runs", lambda *given: asked.append(plan(*given)) or asked[-1])
    images = files.read([0] * 6, [5, 4, 5, 20, 4, 5])
    assert [read_row(image) for image in images] == [5, 4, 5, 20, 4, 5]
    assert asked == [[(0, 2, 4, 6), (2, 3, 20, 21)]]  # two runs: packets 4 and 5, and packet 20


def test_threads_share_decoders_without_meeting(videos):
    files = opened(videos["h264"], videos["av1"])
    expected = [by_container(videos["h264"]), by_container(videos["av1"])]
    wrong: list[int] = []

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(10):
            numbers, frames = rng.integers(0, 2, 8), rng.integers(0, COUNT, 8)
            images = files.read(numbers, frames)
            wrong.extend(
                seed for n, f, image in zip(numbers, frames, images) if not np.array_equal(expected[n][f], image)
            )

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert 1 <= len(video_files._pools[files.tables.streams[0]]._idle) <= 4


def _read_in_child(files, connection):
    connection.send(files.read([0, 0], [3, 17]))


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*fork.*:RuntimeWarning")
def test_another_process_makes_decoders_of_its_own(videos, method):
    files = opened(videos["h264"])
    expected = files.read([0, 0], [3, 17])  # this process has decoders now
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    process = context.Process(target=_read_in_child, args=(files, there))
    process.start()
    assert here.poll(60)
    np.testing.assert_array_equal(here.recv(), expected)
    process.join()
    assert process.exitcode == 0


def test_tables_are_saved_and_mapped_and_pickled_by_their_folder(videos, tmp_path):
    files = opened(*videos.values())
    saved = files.tables.save(str(tmp_path / "tables"))
    assert not saved.times.flags.owndata and not saved.times.flags.writeable
    assert len(pickle.dumps(saved)) < 300
    again = pickle.loads(pickle.dumps(VideoFiles(files.paths, saved, files.sizes)))
    for number in range(len(videos)):
        np.testing.assert_array_equal(again.tables[number].starts, files.tables[number].starts)
    np.testing.assert_array_equal(again.read([1], [9]), files.read([1], [9]))


# Damage.


def changed(path, folder, change):
    content = bytearray(Path(path).read_bytes())
    (folder / "damaged.mp4").write_bytes(change(content))
    return str(folder / "damaged.mp4")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.99])
def test_a_file_that_was_cut_short_is_named(videos, tmp_path, share):
    path = changed(videos["h264"], tmp_path, lambda content: content[: int(len(content) * share)])
    with pytest.raises(DamagedFile, match=r"damaged\.mp4"):
        read_packet_table(file_access.open_file(path))


def test_a_file_whose_index_comes_first_and_was_cut_short_is_named(tmp_path):
    images = [picture(row, SIZE) for row in range(COUNT)]
    path = tmp_path / "fast.mp4"
    with av.open(str(path), "w", options={"movflags": "faststart"}) as container:
        stream = container.add_stream("libx264", rate=FPS)
        stream.height, stream.width, stream.pix_fmt = *SIZE, "yuv420p"
        for image in images:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())
    assert len(read_packet_table(file_access.open_file(str(path)))) == COUNT
    cut = changed(path, tmp_path, lambda content: content[:-200])
    with pytest.raises(DamagedFile, match=r"damaged\.mp4 is cut short: its index says that frames lie up to byte"):
        read_packet_table(file_access.open_file(cut))


def test_damaged_packets_raise_an_error_with_file_and_frame_and_spoil_no_decoder(videos, tmp_path):
    table = read_packet_table(file_access.open_file(videos["h264"]))

    def spoil(content):
        for packet in range(10, 14):
            begin, size = int(table.offsets[packet]), int(table.sizes[packet])
            content[begin : begin + size] = b"\xff" * size
        return content

    path = changed(videos["h264"], tmp_path, spoil)
    files = opened(path, videos["h264"])
    with pytest.raises(DamagedFile, match=r"damaged\.mp4: frame 1\d of 31 \(shown at 1\.\d+ s\) cannot be decoded"):
        files.read([0, 0], [10, 12])
    np.testing.assert_array_equal(files.read([1], [12])[0], by_container(videos["h264"])[12])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_bytes_changed_anywhere_give_frames_or_an_error_and_never_end_the_process(videos, tmp_path, data):
    name = data.draw(st.sampled_from(["h264", "av1"]))
    content = bytearray(Path(videos[name]).read_bytes())
    places = data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=6))
    for place in places:
        content[place] = data.draw(st.integers(0, 255))
    path = tmp_path / "changed.mp4"
    path.write_bytes(content)
    try:
        files = opened(str(path))
        files.read([0], [len(files.tables[0]) // 2])
    except (DamagedFile, ValueError, IndexError):
        pass


def test_a_file_that_became_another_is_refused(videos, tmp_path):
    path = tmp_path / "video.mp4"
    path.write_bytes(Path(videos["h264"]).read_bytes())
    files = opened(str(path))
    path.write_bytes(Path(videos["av1"]).read_bytes())
    with pytest.raises(DamagedFile, match=r"video\.mp4 has \d+ bytes, and had \d+ when its frames were indexed"):
        files.read([0], [0])


def test_a_video_that_claims_to_be_huge_is_refused_before_it_is_decoded(videos, tmp_path):
    size = SIZE[1].to_bytes(2, "big") + SIZE[0].to_bytes(2, "big")
    path = changed(
        videos["h264"], tmp_path, lambda content: content.replace(b"\0" * 16 + size, b"\0" * 16 + b"\xff" * 4)
    )
    with pytest.raises(DamagedFile, match="65535 x 65535"):
        read_packet_table(file_access.open_file(path))


def test_idle_decoders_stay_within_their_budget(tmp_path):
    paths = []
    for number in range(video_files._STREAMS + 2):
        path = tmp_path / f"{number}.mp4"
        size = (48, 64 + 16 * number)
        write_video(path, [picture(row, size) for row in range(3)], FPS)
        paths.append(str(path))
    files = opened(*paths)
    files.read(range(len(paths)), [1] * len(paths))
    assert len(video_files._pools) == video_files._STREAMS
    files.read(range(len(paths)), [2] * len(paths))
