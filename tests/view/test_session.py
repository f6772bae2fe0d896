"""What the viewer reads: elements after any step, streams, failures, checkpoints, and no more than it shows."""

import json
import sys
import threading
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest
from helpers.golden_trajectories import GOLDEN
from helpers.lerobot_folders import write_dataset
from helpers.robots import mixture, prepared

import bushel
from bushel import DataLoader, IterDataset, MapDataset, MultiprocessingOptions
from bushel._src.display.describe import describe_tokens
from bushel._src.view import session as stream_reader
from bushel._src.view.panels import elements
from bushel._src.view.session import BadQuery, Query, Session
from bushel._src.view.targets import open_session
from bushel.samplers import IndexSampler
from bushel.trajectory import get_dataloader
from bushel.transforms import Batch


class Counted:
    """10**9 records that count which of them are read."""

    def __init__(self, length=10**9):
        self.length, self.reads = length, []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.reads.append(index)
        return {"x": np.full(4, index)}

    def __repr__(self):
        return f"Counted({self.length})"


def test_elements_after_each_step():
    ds = MapDataset.range(10).map(lambda x: x * x).batch(3)
    session = Session(ds)
    assert [step.node.call() for step in session.steps] == ["range(10)", "map(<lambda>)", "batch(3)"]
    assert session.read(0, 4).element == 4
    assert session.read(1, 4).element == 16
    assert session.read(2, 1).element.tolist() == [9, 16, 25]
    assert session.read(-1, 4).element.tolist() == session.read(2, 4).element.tolist()  # the next epoch
    assert [step.length for step in session.steps] == [10, 10, 4]


def test_a_step_that_two_others_read_is_listed_once():
    base = MapDataset.range(10)
    session = Session(MapDataset.concatenate([base.map(str), base.map(float)]))
    assert [step.parents for step in session.steps] == [[], [0], [0], [1, 2]]


def test_a_billion_elements_open_without_a_scan():
    source = Counted()
    ds = MapDataset.source(source).seed(1).shuffle().map(lambda r: r["x"] + 1).batch(4)
    session = open_session(ds)
    session.describe()
    assert source.reads == [] and session.last.length == 250_000_000
    element = session.read(-1, 123_456_789).element
    records = session.origin(-1, 123_456_789).records
    assert sorted(source.reads) == sorted(record.record for record in records)
    assert sorted(element[:, 0].tolist()) == sorted(record + 1 for record in source.reads)


def test_an_element_that_fails_is_part_of_the_answer():
    session = Session(MapDataset.range(10).map(lambda x: 1 // (x - 3)))
    failed = session.read(-1, 3)
    assert (
        failed.error.startswith("ZeroDivisionError") and "element 3" in failed.error and "test_session" in failed.trace
    )
    assert not failed.has_element
    assert session.read(-1, 4).element == 1


def test_what_a_filter_has_dropped_is_missing():
    session = Session(MapDataset.range(10).filter(lambda x: x % 2 == 0))
    assert session.read(-1, 3).missing and session.read(-1, 4).element == 4


def test_none_as_an_element_is_shown():
    assert Session(MapDataset.source([None, 1])).read(-1, 0).has_element


def test_an_empty_dataset():
    session = Session(MapDataset.source([]))
    assert session.read(-1, 0).ended == 0 and session.last.length == 0


def test_numbers_of_steps_that_do_not_exist():
    with pytest.raises(BadQuery, match="steps 0 to 0"):
        Session(MapDataset.range(3)).step(1)
    with pytest.raises(BadQuery, match="No data set"):
        Session(None).step(0)


def test_a_users_own_dataset_in_later_epochs():
    class Own(MapDataset):
        def __len__(self):
            return 3

        def __getitem__(self, index: Any) -> Any:
            return "abc"[index]

    assert Session(Own()).read(-1, 4).element == "b"


def filtered():
    return MapDataset.range(1000).seed(0).shuffle().to_iter_dataset().filter(lambda x: x % 3 == 0).batch(4)


@pytest.mark.parametrize(
    "stream",
    [
        filtered(),
        MapDataset.range(100).to_iter_dataset().map(lambda x: x + 1).batch(3),
        MapDataset.range(100).to_iter_dataset().window_shuffle(10, seed=1),
        IterDataset.mix([MapDataset.range(50).to_iter_dataset(), MapDataset.range(100, 140).to_iter_dataset()]),
        MapDataset.range(100).to_iter_dataset().mp_prefetch(MultiprocessingOptions(2)),
    ],
    ids=["filter", "seekable", "window", "mix", "workers"],
)
def test_streams_are_read_at_any_position_forwards_and_backwards(stream, monkeypatch):
    expected = [np.asarray(element).tolist() for element in stream]
    session = Session(stream)
    monkeypatch.setattr(stream_reader, "_KEPT_ELEMENTS", 2)
    monkeypatch.setattr(stream_reader, "_KEPT_STATES", 4)
    for index in [0, 1, 30, 5, 4, 4, 31, 2, 0]:
        assert np.asarray(session.read(-1, index).element).tolist() == expected[index], index
    past = session.read(-1, len(expected) + 5)
    assert past.ended == len(expected) and session.read(-1, 3).has_element
    session.close()


def test_a_long_way_forward_is_answered_with_its_progress(monkeypatch):
    monkeypatch.setattr(stream_reader, "BUDGET_S", 0.0)
    session = Session(filtered())
    first = session.read(-1, 50)
    assert first.progress.at == 1 and first.progress.wanted == 50
    reading = first
    for _ in range(60):
        reading = session.read(-1, 50)
        if reading.progress is None:
            break
    assert reading.element.tolist() == list(filtered())[50].tolist()


def test_a_stream_goes_on_after_an_element_that_fails():
    def fail_at_9(x):
        if x == 9:
            raise ValueError("nine")
        return x

    seekable = Session(MapDataset.range(20).to_iter_dataset().map(fail_at_9))
    assert seekable.read(-1, 9).error.startswith("ValueError: nine") and seekable.read(-1, 10).element == 10
    session = Session(MapDataset.range(20).to_iter_dataset().filter(lambda x: x % 2).map(fail_at_9))
    assert session.read(-1, 4).error and session.read(-1, 5).error and session.read(-1, 3).element == 7
    assert [session.read(-1, n, skips=True).element for n in range(9)] == [1, 3, 5, 7, 11, 13, 15, 17, 19]


def test_a_function_that_returns_none_leaves_gaps():
    stream = MapDataset.range(9).map(lambda x: None if x % 3 == 1 or x > 6 else x).to_iter_dataset()
    for order in (range(9), reversed(range(9)), (5, 4, 4, 5, 0, 8, 7, 6)):
        session = Session(stream)
        for index in order:
            reading = session.read(-1, index)
            gap = index % 3 == 1 or index > 6
            assert (reading.missing, reading.element) == ((True, None) if gap else (False, index)), index
        assert session.read(-1, 9).ended == 9
    batches = list(stream.batch(2))
    session = Session(stream.batch(2))
    for index in (2, 0, 1, 2):
        assert session.read(-1, index).element.tolist() == batches[index].tolist(), index
    assert session.read(-1, 3).ended == len(batches) == 3


def test_a_stream_that_waits_for_its_next_element_lets_other_requests_go_on(monkeypatch):
    monkeypatch.setattr(stream_reader, "BUDGET_S", 0.05)
    begun, go_on = threading.Event(), threading.Event()

    def wait(x):
        begun.set()
        assert go_on.wait(60)
        return x

    session = Session(MapDataset.range(10).map(wait).to_iter_dataset().filter(lambda x: x > 3))
    first = threading.Thread(target=session.read, args=(-1, 0))
    first.start()
    assert begun.wait(60)
    assert session.read(-1, 0).progress.at == 0  # the page asks again
    assert session.read(0, 7).element == 7  # and may look at another step
    go_on.set()
    first.join(60)
    assert session.read(-1, 0).element == 4


def test_a_function_that_exits_does_not_end_the_viewer():
    session = Session(MapDataset.range(3).map(lambda x: sys.exit("bye")))
    assert session.read(-1, 0).error.startswith("SystemExit: bye")


def test_origin_of_an_element_of_a_stream():
    stream = MapDataset.range(100).seed(1).shuffle().to_iter_dataset().batch(4)
    records = [record.record for record in Session(stream).origin(-1, 3).records]
    assert records == list(stream)[3].tolist()
    with pytest.raises(ValueError, match="ends before element 25"):
        Session(stream).origin(-1, 25)
    with pytest.raises(ValueError, match="depend on what was read before"):
        Session(filtered()).origin(-1, 3)


def test_a_tokenizer_from_its_file(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[PAD]": 0, "one": 1, "two": 2}, unk_token="[PAD]"))
    words.add_special_tokens(["[PAD]"])
    words.save(str(tmp_path / "tokenizer.json"))
    session = open_session(MapDataset.range(3), tokenizer=tmp_path / "tokenizer.json")
    (row,) = describe_tokens(np.array([1, 2, 0]), tokenizer=session.tokenizer)["rows"]
    assert row["pieces"] == ["one", "two", "[PAD]"] and row["texts"][0]["text"].split() == ["one", "two"]


def test_no_worker_processes_are_started(monkeypatch):
    started = "bushel._src.engine.processes.executor.Processes.__init__"
    monkeypatch.setattr(started, lambda *a, **k: pytest.fail("a worker started"))
    stream = MapDataset.range(10).map(lambda x: x + 1).to_iter_dataset().mp_prefetch(MultiprocessingOptions(2))
    assert Session(stream).read(-1, 5).element == 6


# Checkpoints.


def batches():
    return MapDataset.range(1000).seed(0).shuffle().batch(8).repeat().to_iter_dataset()


def run(dataset, steps):
    """What a run sees at steps 1, 2, ..., and its state after each step."""
    it = iter(dataset)
    seen, states = {}, {}
    for step in range(1, steps + 1):
        seen[step], states[step] = next(it), it.get_state()
    return seen, states


@pytest.mark.parametrize("make", [batches, filtered], ids=["seekable", "filter"])
def test_what_the_model_saw_at_a_step(make, tmp_path):
    seen, states = run(make(), 12)
    for step in (4, 8):
        (tmp_path / "run" / str(step) / "data").mkdir(parents=True)
        (tmp_path / "run" / str(step) / "data" / "process_0-of-1.json").write_text(json.dumps(states[step]))
    for step in (5, 8, 9, 12):
        session = open_session(make(), checkpoint=tmp_path / "run", training_step=step)
        assert session.read(-1, session.start).element.tolist() == seen[step].tolist(), step
        assert f"Step {step}" in session.checkpoint.about
    session = open_session(make(), checkpoint=tmp_path / "run")  # the last one: what comes next
    assert session.read(-1, session.start).element.tolist() == seen[9].tolist()
    with pytest.raises(ValueError, match="no checkpoint of step 2"):
        open_session(make(), checkpoint=tmp_path / "run", training_step=2)


def test_a_step_before_the_only_checkpoint(tmp_path):
    """A pipeline that can seek shows the step of the checkpoint itself; another one cannot go back."""
    for make in (batches, filtered):
        _, states = run(make(), 4)
        (tmp_path / make.__name__ / "4").mkdir(parents=True)
        (tmp_path / make.__name__ / "4" / "process_0-of-1.json").write_text(json.dumps(states[4]))
    session = open_session(batches(), checkpoint=tmp_path / "batches", training_step=4)
    assert session.read(-1, session.start).element.tolist() == run(batches(), 4)[0][4].tolist()
    with pytest.raises(ValueError, match="only be read forward"):
        open_session(filtered(), checkpoint=tmp_path / "filtered", training_step=4)


def test_a_checkpoint_of_orbax(tmp_path):
    data = iter(batches())
    for _ in range(5):
        next(data)
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        model = ocp.args.StandardSave({"w": np.zeros(3)})
        manager.save(5, args=ocp.args.Composite(model=model, data=bushel.checkpoint.CheckpointSave(data)))
    session = open_session(batches(), checkpoint=tmp_path / "run", training_step=6)
    assert session.read(-1, session.start).element.tolist() == next(data).tolist()


def test_states_of_other_kinds():
    ds = MapDataset.range(100).batch(4)
    it = iter(ds)
    next(it)
    assert open_session(ds, checkpoint=it.get_state()).start == 1  # training iterates over the MapDataset
    with_workers = batches().mp_prefetch(MultiprocessingOptions(1))
    _, states = run(batches(), 3)
    assert open_session(with_workers, checkpoint=states[3]).start == 3

    def loader():
        sampler = IndexSampler(100, shuffle=True, num_epochs=1, seed=0)
        return DataLoader(data_source=range(100), sampler=sampler, operations=[Batch(5)])

    it = iter(loader())
    for _ in range(2):
        next(it)
    session = open_session(loader(), checkpoint=it.get_state())
    assert session.read(-1, session.start).element.tolist() == next(it).tolist()


def test_checkpoints_that_cannot_be_opened(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        open_session(batches(), checkpoint=tmp_path / "nowhere")
    with pytest.raises(ValueError, match="holds no state"):
        open_session(batches(), checkpoint=tmp_path)
    with pytest.raises(bushel.StateMismatch, match="another pipeline"):
        open_session(batches(), checkpoint=iter(MapDataset.range(3)).get_state())
    with pytest.raises(ValueError, match="at which step"):
        open_session(batches(), checkpoint=iter(batches()).get_state(), training_step=3)
    with pytest.raises(ValueError, match="needs a checkpoint"):
        open_session(batches(), training_step=3)
    (tmp_path / "state.json").write_text("no")
    with pytest.raises(ValueError, match="not JSON"):
        open_session(batches(), checkpoint=tmp_path / "state.json")


# Targets.


def test_python_objects_by_name(tmp_path, monkeypatch):
    (tmp_path / "train_of_view.py").write_text(
        "from bushel import MapDataset\n"
        "ds = MapDataset.range(7)\n"
        "def make():\n    return ds.map(str)\n"
        "class config:\n    nested = ds.batch(2)\n"
        "records = ['a', 'b']\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    path = f"{tmp_path}/train_of_view.py"
    assert open_session(f"{path}:ds").read(-1, 3).element == 3
    assert open_session(f"{path}:make").read(-1, 3).element == "3"
    assert open_session("train_of_view:config.nested").read(-1, 0).element.tolist() == [0, 1]
    assert open_session("train_of_view:records").read(-1, 1).element == "b"
    for target, message in [
        (f"{path}:number", "got int"),
        (f"{path}:nothing", "has no 'nothing'"),
        (f"{tmp_path}/other.py:ds", "does not exist"),
    ]:
        with pytest.raises((TypeError, ValueError, FileNotFoundError), match=message):
            open_session(target)


def test_a_session_opens_files_and_folders(tmp_path):
    MapDataset.range(5).map(lambda x: {"x": np.full(2, x)}).save(tmp_path / "saved", format="bagz")
    assert open_session(tmp_path / "saved").read(-1, 3).element["x"].tolist() == [3, 3]
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    session = open_session(str(tmp_path / "lines.txt"))
    assert session.read(-1, 1).element in (b"two", "two") and session.target.endswith("lines.txt")
    (tmp_path / "parts").mkdir()
    for number in range(2):
        (tmp_path / "parts" / f"{number}.jsonl").write_text(f'{{"n": {number}}}\n' * 3)
    assert open_session(tmp_path / "parts").last.length == 6
    np.save(tmp_path / "a.npy", np.arange(12).reshape(6, 2))
    assert open_session(tmp_path / "a.npy").read(-1, 2).element.tolist() == [4, 5]
    with pytest.raises(FileNotFoundError, match=r"nothing\.xyz does not exist"):
        open_session(tmp_path / "nothing.xyz")
    (tmp_path / "some.xyz").write_text("x")
    with pytest.raises(ValueError, match="does not know the format"):
        open_session(tmp_path / "some.xyz")


@pytest.mark.parametrize("path", [GOLDEN / "tfds" / "synth_rlds", GOLDEN / "tfds" / "synth_rlds" / "1.0.0"])
def test_robot_data_of_rlds(path):
    session = open_session(path)
    assert session.episodes.name == "synth_rlds" and session.last.length == 8
    assert len(session.read(-1, 1).element["action"]) == 40


def test_robot_data_of_lerobot(tmp_path):
    session = open_session(write_dataset(tmp_path / "arm", [5, 7]))
    assert [len(session.read(-1, episode).element["action"]) for episode in range(2)] == [5, 7]
    assert session.episodes is not None


def test_robot_data_of_robomimic(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "demos.hdf5", "w") as file:
        for number in range(3):
            file[f"data/demo_{number}/actions"] = np.full((4, 2), number)
            file[f"data/demo_{number}/obs/position"] = np.zeros((4, 3))
            file[f"data/demo_{number}"].attrs["num_samples"] = 4
    session = open_session(tmp_path / "demos.hdf5")
    assert session.episodes is not None and session.read(-1, 2).element["action"][0, 0] == 2


def test_a_loader_of_robots_and_its_checkpoint(tmp_path):
    loader = get_dataloader(mixture(prepared(tmp_path, "arm", "gripper")))
    with iter(loader) as it:
        next(it)
        state, expected = it.get_state(), next(it)
    session = open_session(loader, checkpoint=state)
    assert session.start == 1 and session.given is loader
    assert np.array_equal(session.read(-1, 1).element["action"], expected["action"])


def test_one_image_is_not_a_batch_of_rows():
    images = bushel.MapDataset.range(3).map(lambda n: np.full((40, 30, 3), n, np.uint8))
    windows = bushel.MapDataset.range(3).map(lambda n: np.full((5, 40, 30, 3), n, np.uint8))
    for ds, rows in ((images, None), (windows, 5), (images.batch(2), 2), (images.map(lambda x: {"x": x}), None)):
        assert elements.routes(Session(ds))["read"](Query({}))["rows"] == rows
