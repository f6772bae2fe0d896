"""What states, caches and columns know our classes by: constants. A private class may be renamed or moved."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import renamed_classes

from bushel import MapDataset
from bushel._src.base import state_names
from bushel._src.graph.node import Node
from bushel._src.graph.select import Rule
from bushel.checkpoint import CheckpointHandler

pytest.importorskip("jax")  # the states of loaders inside jit are pinned, too

PINNED = Path(__file__).parents[1] / "state_names.json"
PROGRAM = renamed_classes.__file__


def describe_fields(entry: state_names.StateName) -> list[str]:
    """What of an object with this constant reaches a digest, by the keys there."""
    kind = entry.named
    if not isinstance(kind, type):
        return []
    if issubclass(kind, enum.Enum):
        return [f"{member.name}={member.value!r}" for member in kind]
    if dataclasses.is_dataclass(kind):
        own = [field for field in dataclasses.fields(kind) if field.metadata.get("identity", True)]
        names = [field.name for field in own if "Node" not in str(field.type)]
        return sorted(state_names.rename_keys(kind, dict.fromkeys(names)))
    return sorted(key for key in entry.keys.values() if key is not None)


def list_jit_states() -> dict[str, list[str]]:
    """The fields of what jitted loaders keep, which a checkpoint of JAX arrays names."""
    from bushel._src.jit import chunk_loader, compiled_loader, gymnax_source, replay_buffer, source

    kinds = [
        chunk_loader.Chunk,
        compiled_loader.LoaderState,
        gymnax_source.GymnaxSourceState,
        replay_buffer.PriorityState,
        replay_buffer.SumTree,
        replay_buffer.BufferState,
        replay_buffer.ReplayState,
        source.PrecomputedEpochs,
        source.IndexedState,
        replay_buffer.TrajectoryState,
        source.StreamState,
    ]
    return {f"jit {kind.__name__}": list(kind._fields) for kind in kinds}


def describe_all() -> dict[str, list[str]]:
    loaded = {module.__name__ for module in renamed_classes.load_all()}  # not the viewer, whose states nobody keeps
    ours = [entry for entry in state_names.list_entries() if entry.named.__module__ in loaded]
    named = {entry.name: describe_fields(entry) for entry in ours if entry.name != "Example"}
    return dict(sorted((named | list_jit_states()).items()))


def test_the_names_and_fields_in_digests_are_pinned():
    """A changed line in the file refuses the states of earlier versions."""
    now, pinned = describe_all(), json.loads(PINNED.read_text())
    changed = {name: (pinned.get(name), now.get(name)) for name in pinned | now if pinned.get(name) != now.get(name)}
    assert not changed, (
        f"Names or fields that digests are made of have changed (pinned, now): {changed}. If a private field was "
        "renamed, give `in_states` the old key. If the name is new, or states shall change their meaning (see "
        "docs/releases.md), run `PYTHONPATH=tests python tests/state/test_state_names.py`."
    )


def subclasses(kind: type) -> set[type]:
    return {kind}.union(*(subclasses(below) for below in kind.__subclasses__()))


def test_each_operation_has_a_constant():
    renamed_classes.load_all()
    kinds = [kind for kind in subclasses(Node) | subclasses(Rule) if kind.__module__.partition(".")[0] == "bushel"]
    named = {entry.named for entry in state_names.list_entries()}
    leaves = [kind for kind in kinds if not kind.__subclasses__() and not inspect.isabstract(kind)]
    missing = {kind.__qualname__ for kind in leaves if kind not in named and not getattr(kind, "transparent", False)}
    assert not missing
    assert len(leaves) > 40


def test_a_class_with_the_constant_of_another_one_is_refused():
    @state_names.in_states("one of a test")
    class One:
        pass

    assert state_names.find_name(One) == "one of a test"
    with pytest.raises(AssertionError, match="cannot both be 'one of a test' in states"):
        state_names.in_states("one of a test")(type("Two", (), {}))


def run(step: str, folder: Path) -> str:
    done = subprocess.run([sys.executable, PROGRAM, step, str(folder)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("states")
    run("first", folder)
    return folder


@pytest.mark.slow
def test_states_and_what_is_kept_survive_new_names_of_all_private_classes(saved):
    found = json.loads(run("later", saved))
    assert found["wrong"] == {}
    assert found["renamed"] > 300
    assert found["restored"] > 60


@pytest.mark.slow
def test_no_state_holds_the_name_of_a_private_module(saved):
    text = (saved / "states.json").read_text()
    public = {module.__name__ for module in renamed_classes.load_all() if hasattr(module, "__all__")}
    private = {name for name in re.findall(r"\bbushel\.[A-Za-z_][\w.]*", text) if name not in public}
    assert not private
    assert '"identity' in text.replace("\\", "")


def test_a_checkpoint_names_the_public_handler(tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")
    from bushel.checkpoint import CheckpointSave

    assert CheckpointHandler.typestr() == "bushel.checkpoint.CheckpointHandler"
    with ocp.CheckpointManager(tmp_path / "checkpoints") as manager:
        manager.save(1, args=ocp.args.Composite(data=CheckpointSave(iter(MapDataset.range(10).map(str)))))
        manager.wait_until_finished()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    named = {name for path in files for name in re.findall(rb"\bbushel\.[A-Za-z_][\w.]*", path.read_bytes())}
    assert files
    assert named <= {b"bushel.checkpoint.CheckpointHandler"}


if __name__ == "__main__":
    lines = [f"  {json.dumps(name)}: {json.dumps(fields)}" for name, fields in describe_all().items()]
    PINNED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
