"""Iterators in Orbax checkpoints, with the manager and with the handler, and two of them at a time."""

import pathlib
import tempfile

import grain
import numpy as np
import orbax.checkpoint as ocp

folder = pathlib.Path(tempfile.mkdtemp())
dataset = grain.MapDataset.range(30).seed(5).shuffle().map(lambda x: x * 2).batch(4).to_iter_dataset()
loader = grain.load(list(range(30)), num_epochs=2, shuffle=True, seed=3, batch_size=4)

train, other = iter(dataset), iter(loader)
manager = ocp.CheckpointManager(folder / "run")
seen = []
for step in range(5):
    seen.append((next(train).tolist(), np.asarray(next(other)).tolist()))
    if step == 2:
        manager.save(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardSave({"w": np.arange(3.0)}),
                train=grain.checkpoint.CheckpointSave(train),
                other=grain.checkpoint.CheckpointSave(other),
            ),
        )
manager.wait_until_finished()
manager.close()

manager = ocp.CheckpointManager(folder / "run")
train, other = iter(dataset), iter(loader)
restored = manager.restore(
    manager.latest_step(),
    args=ocp.args.Composite(
        params=ocp.args.StandardRestore({"w": np.zeros(3)}),
        train=grain.checkpoint.CheckpointRestore(train),
        other=grain.checkpoint.CheckpointRestore(other),
    ),
)
print(manager.latest_step(), restored["params"]["w"].tolist(), restored["train"] is train)
again = [(next(train).tolist(), np.asarray(next(other)).tolist()) for _ in range(2)]
print(again, again == seen[3:])
print(sorted(path.name for path in (folder / "run" / "2" / "train").iterdir() if path.suffix == ".json"))
manager.close()

checkpointer = ocp.Checkpointer(grain.checkpoint.CheckpointHandler())
checkpointer.save(folder / "alone", train)
fresh = iter(dataset)
checkpointer.restore(folder / "alone", item=fresh)
print(next(fresh).tolist() == next(train).tolist())
