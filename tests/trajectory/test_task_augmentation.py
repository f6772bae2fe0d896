"""Goals and instructions that are deleted or rephrased: the outputs of the original, and where texts come from."""

import json
import pickle

import numpy as np
import pytest
from helpers.golden_trajectories import assert_same_tree, manifest, tree
from helpers.numpy_versions import STRING_DTYPES
from hypothesis import given, settings
from hypothesis import strategies as st

from bushel._src.trajectory.task_augmentation import delete_conditioning, rephrase
from bushel.trajectory import get_dataset, write_rlds
from bushel.trajectory.task_augmentation import (
    Rephraser,
    delete_and_rephrase,
    delete_task_conditioning,
    rephrase_instruction,
)
from bushel.trajectory.traj_transforms import add_pad_mask_dict

INPUTS = manifest()["task_aug/delete_task_conditioning_p01"]["inputs"]


def strings(texts):
    return np.array([text.encode() for text in texts], object)


def conditioned(language, primary, secondary, timestep=None):
    length = len(language)
    task = {
        "language_instruction": strings(language),
        "image_primary": strings(primary),
        "image_secondary": strings(secondary),
        "proprio_arm": np.ones((length, 2), np.float32),
        "timestep": np.arange(length, dtype=np.int32) if timestep is None else np.array(timestep, np.int32),
    }
    return add_pad_mask_dict({"observation": {}, "task": task, "action": np.zeros((length, 7), np.float32)})


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_deletions_of_the_original(name, probability):
    traj = conditioned(*INPUTS[name], timestep=[2, 3, 3, 4, 5, 5])
    theirs = tree("task_aug/delete_task_conditioning_p01", f"{name}/p{probability}")
    assert_same_tree(delete_task_conditioning(traj, probability, compat="crossformer")["task"], theirs)
    if name != "img_some":
        assert_same_tree(delete_task_conditioning(traj, probability)["task"], theirs)


def test_a_step_without_an_image_keeps_its_words():
    task = delete_task_conditioning(conditioned(["go"] * 2, ["I", ""], ["", ""], [1, 1]), 1.0)["task"]
    assert task["language_instruction"].tolist() == [b"", b"go"]
    assert task["image_primary"].tolist() == [b"I", b""]
    faulty = delete_task_conditioning(conditioned(["go"] * 2, ["I", ""], ["", ""]), 1.0, compat="crossformer")["task"]
    assert faulty["language_instruction"].tolist() == [b"", b""]


texts = st.sampled_from(["", "a"])


@settings(deadline=None)
@given(st.lists(st.tuples(texts, texts, texts), min_size=1, max_size=9), st.floats(0, 1), st.integers(0, 99))
def test_each_step_keeps_one_way_to_tell_the_task(steps, probability, seed):
    traj = conditioned(*zip(*steps))
    length = len(steps)
    lengths = np.arange(length) + 50
    draws = np.random.default_rng(seed).random(length)
    task = delete_conditioning(traj["task"], draws, lengths, probability)
    for row, (language, primary, secondary) in enumerate(steps):
        images = bool(primary or secondary)
        keeps_images = images and (not language or draws[row] < probability)
        assert task["language_instruction"][row] == (b"" if keeps_images else language.encode())
        assert task["image_primary"][row] == (primary.encode() if keeps_images else b"")
        assert task["timestep"][row] == (row if keeps_images else lengths[row] - 1)
    assert_same_tree(
        add_pad_mask_dict(traj | {"task": task})["task"]["pad_mask_dict"], task["pad_mask_dict"]
    )  # the masks are what they would be if made anew
    alone = [
        delete_conditioning(
            {k: v[row : row + 1] for k, v in traj["task"].items() if k != "pad_mask_dict"}
            | {"pad_mask_dict": {k: v[row : row + 1] for k, v in traj["task"]["pad_mask_dict"].items()}},
            draws[row : row + 1],
            lengths[row : row + 1],
            probability,
        )
        for row in range(length)
    ]
    assert [one["image_primary"][0] for one in alone] == task["image_primary"].tolist()  # rows do not see each other


def test_nothing_to_delete():
    language = {"language_instruction": strings(["go"])}
    for task in (language, {"image_0": strings(["I"])}):
        assert delete_task_conditioning({"task": task, "action": np.zeros((1, 7))}, 0.5)["task"] == task
    images = language | {"image_0": np.ones((1, 4, 4, 3), np.uint8)}
    task = images | {"pad_mask_dict": {name: np.ones(1, bool) for name in images}}
    deleted = delete_conditioning(task, np.array([0.9]), 5, 0.5)  # decoded images, no goal time
    assert not deleted["image_0"].any() and deleted["image_0"].dtype == np.uint8 and "timestep" not in deleted
    with pytest.raises(ValueError, match=r"A task has no 'pad_mask_dict', only .*add_pad_mask_dict makes it"):
        delete_task_conditioning({"task": images, "action": np.zeros((1, 7))}, 0.5)
    with pytest.raises(ValueError, match=r"pad_mask_dict has no 'image_0', only \['language_instruction'\]"):
        delete_conditioning(language | {"image_0": strings(["I"]), "pad_mask_dict": language}, np.array([0.9]), 5, 0.5)
    with pytest.raises(ValueError, match=r"keep_image_prob must be between 0 and 1, got 1\.5"):
        delete_conditioning(task, np.array([0.9]), 5, 1.5)


PARAPHRASES = {"lift": "raise.pick up", "open it.": "unlock it."}


def spoken(*texts):
    return {"task": {"language_instruction": strings(texts)}, "action": np.zeros((len(texts), 7))}


def language(traj):
    return traj["task"]["language_instruction"].tolist()


def test_paraphrases_from_files_and_dicts(tmp_path):
    (tmp_path / "p.pkl").write_bytes(pickle.dumps(PARAPHRASES))
    (tmp_path / "p.json").write_text(json.dumps(PARAPHRASES))
    traj = spoken(*["lift"] * 30)
    wanted = language(rephrase_instruction(traj, PARAPHRASES, 1.0, rng=0))
    assert set(wanted) == {b"lift", b"raise", b"pick up"}
    for given_ in (Rephraser(tmp_path / "p.pkl", allow_pickle=True), str(tmp_path / "p.json"), Rephraser(PARAPHRASES)):
        assert language(rephrase_instruction(traj, given_, 1.0, rng=0)) == wanted
    assert language(rephrase_instruction(traj, tmp_path / "p.pkl", 1.0, rng=0, allow_pickle=True)) == wanted
    (tmp_path / "p.json").write_text(json.dumps({"lift": "heave"}))  # a file that has changed is read again
    assert b"heave" in language(rephrase_instruction(traj, str(tmp_path / "p.json"), 1.0, rng=0))
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"list\.json must hold a dict .*, it holds a list"):
        Rephraser(tmp_path / "list.json")
    with pytest.raises(TypeError, match=r"must be strings, got \['raise'\]"):
        Rephraser({"lift": ["raise"]})
    with pytest.raises(FileNotFoundError):
        rephrase_instruction(traj, str(tmp_path / "none.pkl"), 1.0)


class Opens:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("strategy", ["rephrase_instruction", "delete_and_rephrase"])
@pytest.mark.parametrize("name", ["p.pkl", "p.pickle", "p.json.pkl", "p", "p.JSON"])
def test_a_pickle_is_not_read_unless_code_says_so(tmp_path, strategy, name):
    (tmp_path / name).write_bytes(pickle.dumps({"lift": Opens(tmp_path / "ran")}))
    function = {"rephrase_instruction": rephrase_instruction, "delete_and_rephrase": delete_and_rephrase}[strategy]
    more = {} if strategy == "rephrase_instruction" else {"keep_image_prob": 0.5}
    told = rf"{name} is read as a pickle, which can run any code.*convert it to JSON once: .*json\.dump\(pickle\.load"
    with pytest.raises(ValueError, match=told):
        function(spoken("lift"), tmp_path / name, rephrase_prob=1.0, **more)
    for extra in ({}, {"allow_pickle": True}):  # a configuration cannot say so either
        kwargs = {"pickle_file_path": str(tmp_path / name), "rephrase_prob": 1.0, **more, **extra}
        config = {"task_augment_strategy": strategy, "task_augment_kwargs": kwargs}
        (tmp_path / "config.json").write_text(json.dumps(written_config(tmp_path, config)))
        with pytest.raises(ValueError, match=r"is read as a pickle|task_augmentation: \w+ takes \["):
            get_dataset(tmp_path / "config.json")
    assert not (tmp_path / "ran").exists()


def written_config(folder, traj_transform_kwargs):
    steps = {
        "observation": {"state": np.ones((5, 3), np.float32)},
        "action": np.zeros((5, 2), np.float32),
        "text": np.array(["lift"] * 5, object),
    }
    if not (folder / "mine").exists():
        write_rlds({"train": [{"steps": steps}] * 4}, name="mine", data_dir=folder)
    own = {"name": "mine", "data_dir": str(folder), "train_split": "train", "cache_dir": str(folder)}
    return {"datasets": [{**own, "language_key": "text"}], "traj_transform_kwargs": traj_transform_kwargs}


def test_a_configuration_names_paraphrases_in_json(tmp_path):
    (tmp_path / "p.json").write_text(json.dumps(PARAPHRASES))
    kwargs = {"pickle_file_path": str(tmp_path / "p.json"), "rephrase_prob": 1.0}
    config = {"task_augment_strategy": "rephrase_instruction", "task_augment_kwargs": kwargs}
    (tmp_path / "config.json").write_text(json.dumps(written_config(tmp_path, config)))
    frames = get_dataset(tmp_path / "config.json").iterator()
    assert {next(frames)["task"]["language_instruction"] for _ in range(60)} == {b"lift", b"raise", b"pick up"}


def in_the_hubs_cache(folder, repo, name, data):
    """A file as `hf download` leaves it."""
    place = folder / f"datasets--{repo.replace('/', '--')}"
    (place / "snapshots" / "a1b2").mkdir(parents=True)
    (place / "snapshots" / "a1b2" / name).write_bytes(data)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("a1b2")


def test_paraphrases_by_octos_names(tmp_path, monkeypatch):
    traj, data = spoken(*["lift"] * 30), pickle.dumps(PARAPHRASES)
    wanted = language(rephrase_instruction(traj, PARAPHRASES, 1.0, rng=0))
    (tmp_path / "p.json").write_text(json.dumps(PARAPHRASES))
    own = {"paraphrases_repo": str(tmp_path), "paraphrases_filename": "p.json"}
    assert language(rephrase_instruction(traj, **own, rephrase_prob=1.0, rng=0)) == wanted
    hub = {"paraphrases_repo": "rail-berkeley/OXE_paraphrases", "paraphrases_filename": "paraphrases_oxe.pkl"}
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(FileNotFoundError, match=r"not on this machine.*hf download rail-berkeley/OXE_paraphrases"):
        rephrase_instruction(traj, **hub, rephrase_prob=1.0)
    in_the_hubs_cache(tmp_path / "hub", *hub.values(), data)
    with pytest.raises(ValueError, match=r"is read as a pickle.*convert it to JSON once"):
        rephrase_instruction(traj, **hub, rephrase_prob=1.0)
    hub["allow_pickle"] = True
    assert language(rephrase_instruction(traj, **hub, rephrase_prob=1.0, rng=0)) == wanted
    both = delete_and_rephrase(traj, **hub, rephrase_prob=1.0, keep_image_prob=0.5, rng=0)
    assert language(both) == wanted  # there is no image to delete


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "Give either pickle_file_path, or paraphrases_repo and paraphrases_filename"),
        ({"pickle_file_path": {}, "paraphrases_repo": "a/b"}, "Give either pickle_file_path"),
        ({"paraphrases_repo": "a/b"}, "paraphrases_filename must be a text, got None.*go together"),
        ({"paraphrases_repo": "a/b/c", "paraphrases_filename": "p.pkl"}, "neither a folder nor a name on the hub"),
        ({"paraphrases_repo": ".", "paraphrases_filename": "none.pkl"}, r"The folder \. .* has no file 'none.pkl'"),
    ],
)
def test_paraphrases_that_are_nowhere_are_told(given, sentence):
    with pytest.raises((TypeError, FileNotFoundError), match=sentence):
        rephrase_instruction(spoken("lift"), **given, rephrase_prob=1.0)
    with pytest.raises(TypeError, match="needs rephrase_prob"):
        rephrase_instruction(spoken("lift"), **given)


def test_what_is_never_rephrased():
    for traj in (spoken("lift", ""), spoken("wave", "wave"), spoken("", ""), spoken()):
        assert language(rephrase_instruction(traj, PARAPHRASES, 1.0)) == language(traj)
    traj = spoken("lift", "lift")
    assert language(rephrase_instruction(traj, PARAPHRASES, 0.0)) == [b"lift", b"lift"]
    assert language(rephrase_instruction(traj, {}, 1.0)) == [b"lift", b"lift"]
    assert rephrase_instruction({"task": {}}, PARAPHRASES, 1.0) == {"task": {}}
    with pytest.raises(ValueError, match=r"rephrase_prob must be between 0 and 1, got -1"):
        rephrase_instruction(traj, PARAPHRASES, -1)


def test_one_draw_decides_for_a_trajectory_and_each_step_draws_its_words():
    changed = [
        language(rephrase_instruction(spoken(*["lift"] * 20), PARAPHRASES, 0.5, rng=seed)) for seed in range(400)
    ]
    touched = [set(words) != {b"lift"} for words in changed]
    assert abs(sum(touched) - 200) < 50
    words = [word for words, hit in zip(changed, touched) if hit for word in words]
    for form in (b"lift", b"raise", b"pick up"):
        assert abs(words.count(form) / len(words) - 1 / 3) < 0.05


def test_all_steps_get_forms_of_the_first_instruction():
    changed = language(rephrase_instruction(spoken("lift", *["wave"] * 30), PARAPHRASES, 1.0, rng=0))
    assert set(changed) <= {b"lift", b"raise", b"pick up"}


@pytest.mark.parametrize("kind", [object, "S", "U", *STRING_DTYPES])
def test_instructions_are_bytes_rephrased_or_not(kind):
    traj = {"task": {"language_instruction": np.array(["lift"] * 30).astype(kind)}}
    for probability, wanted in ((0.0, {b"lift"}), (1.0, {b"lift", b"raise", b"pick up"})):
        assert set(language(rephrase_instruction(traj, PARAPHRASES, probability, rng=0))) == wanted


def test_a_full_stop_at_the_end_is_left_out_of_a_rephrasing():
    assert Rephraser(PARAPHRASES).forms(b"open it.") == [b"open it.", b"unlock it"]
    assert Rephraser(PARAPHRASES, "crossformer").forms(b"open it.") == [b"open it", b"", b"unlock it", b""]
    assert Rephraser(PARAPHRASES, "crossformer").forms(b"a.b") == [b"a", b"b"]
    assert Rephraser(PARAPHRASES).forms(b"a.b") == [b"a.b"]


def test_rows_of_several_episodes():
    rows = strings(["lift", "lift", "", "wave"])
    made = rephrase(rows, np.array([0.1, 0.9, 0.1, 0.1]), np.array([0.4, 0.4, 0.4, 0.4]), Rephraser(PARAPHRASES), 0.5)
    assert made.tolist() == [b"raise", b"lift", b"", b"wave"]
    assert rows.tolist() == [b"lift", b"lift", b"", b"wave"]


def test_two_augmentations_of_tasks_draw_one_after_the_other():
    traj = conditioned(["lift"] * 9, ["I"] * 9, [""] * 9)
    rng = np.random.default_rng(5)
    by_hand = delete_task_conditioning(rephrase_instruction(traj, PARAPHRASES, 0.9, rng=rng), 0.5, rng=rng)
    assert_same_tree(delete_and_rephrase(traj, PARAPHRASES, 0.9, 0.5, rng=5), by_hand)
