"""One policy for two robots: data, statistics, a mixture, training; stopped halfway, resumed, compared bit for bit.

    python examples/robot_policy.py

A scene has a red and a green target and a robot, which drives to the one that it is told. The arm has two cameras and
actions of three numbers (the way to go, in centimetres, and the gripper), the rover one camera and actions of two (in
metres). The policy sees two frames, and as its task either a goal image or words; it gives the next four actions.
Needs flax, optax, and the extras orbax and robots.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx

import bushel
from bushel.trajectory import make_interleaved_dataset, unnormalize, write_rlds

jax.config.update("jax_platforms", "cpu")  # the network is too small to be worth an accelerator

BATCH = 32
WINDOW, HORIZON = 2, 4
SIZE = 16  # of the images that the policy sees
COLOURS = ("red", "green")

# What is known of a robot: how far one unit of its action goes, and the size of its images.
ROBOTS = {"arm": {"unit": 0.01, "pixels": 32}, "rover": {"unit": 1.0, "pixels": 24}}


# The data: episodes as a robot's recorder would write them.


def drawn(points, pixels):
    """A picture of points in the unit square, one in each channel: red and green are targets, blue is the robot."""
    grid = (np.arange(pixels) + 0.5) / pixels
    picture = np.zeros((pixels, pixels, 3), np.uint8)
    for channel, (x, y) in enumerate(points):
        distance = np.hypot(grid[:, None] - y, grid[None, :] - x)
        picture[..., channel] = 255 * np.clip(1.5 - 8 * distance, 0, 1)
    return picture


def episode(robot, rng):
    """A robot on its way to one of two targets, 8 to 14 steps."""
    unit, pixels = ROBOTS[robot]["unit"], ROBOTS[robot]["pixels"]
    targets, place, wanted = rng.random((2, 2)), rng.random(2), int(rng.integers(2))
    frames = []
    for _ in range(rng.integers(8, 15)):
        way = targets[wanted] - place
        move = 0.2 * way
        picture = drawn([*targets, place], pixels)
        words = f"drive to the {COLOURS[wanted]} target".encode()
        if robot == "arm":
            closed = float(np.linalg.norm(way) < 0.1)
            seen = {"image": picture, "wrist": picture[8:24, 8:24], "state": np.append(place, closed)}
            frames.append({"observation": seen, "action": np.append(move / unit, closed), "words": words})
        else:
            frames.append({"observation": {"image": picture, "pose": place}, "command": move / unit, "words": words})
        place = place + move
    steps = jax.tree.map(lambda *leaves: np.stack(leaves), *frames)
    steps["words"] = steps["words"].astype(object)
    return {"steps": steps}


def write(folder, episodes):
    for number, robot in enumerate(ROBOTS):
        rng = np.random.default_rng(number)
        splits = {"train": episodes, "val": 30}
        made = {split: [episode(robot, rng) for _ in range(count)] for split, count in splits.items()}
        write_rlds(made, name=robot, data_dir=folder)


# What the policy gets of them.


def rover_to_standard(trajectory):
    """What the rover's recorder calls a command is the action."""
    return trajectory | {"action": trajectory["command"]}


def mixture(folder, *, train):
    """Batches of both robots without end. What a robot lacks is padding, and masks say so."""
    common = {
        "data_dir": folder,
        "language_key": "words",
        "cache_dir": f"{folder}/cache",  # by default in the home folder: these data are gone in a minute
    }
    arm = {
        "name": "arm",
        "image_obs_keys": {"primary": "image", "wrist": "wrist"},
        "proprio_obs_keys": {"arm": "state"},
        "action_normalization_mask": [True, True, False],  # the gripper stays as it is
    }
    rover = {
        "name": "rover",
        "standardize_fn": rover_to_standard,
        "image_obs_keys": {"primary": "image"},
        "proprio_obs_keys": {"rover": "pose"},
    }
    return make_interleaved_dataset(
        [common | arm, common | rover],
        sample_weights=[0.6, 0.4],
        train=train,
        traj_transform_kwargs={
            "window_size": WINDOW,
            "action_horizon": HORIZON,
            "goal_relabeling_strategy": "uniform",
            "task_augment_strategy": "delete_task_conditioning",
            "task_augment_kwargs": {"keep_image_prob": 0.5},
        },
        frame_transform_kwargs={
            "resize_size": (SIZE, SIZE),
            "image_augment_kwargs": {
                "augment_order": ["random_brightness", "random_contrast"],
                "random_brightness": [0.1],
                "random_contrast": [0.9, 1.1],
            },
        },
        batch_size=BATCH,
        seed=0,
    )


def numbers(batch):
    """What the network takes of a batch: numbers, with zeros where there is padding."""
    observation, task = batch["observation"], batch["task"]
    words = task["language_instruction"]
    told = np.array([[colour.encode() in text for colour in COLOURS] for text in words], np.float32)
    seen = [observation["image_primary"], observation["image_wrist"], task["image_primary"][:, None]]
    pixels = np.concatenate(seen, axis=1).astype(np.float32) / 255
    state = [observation["proprio_arm"].reshape(len(words), -1), observation["proprio_rover"].reshape(len(words), -1)]
    present = [observation["pad_mask_dict"]["image_wrist"], task["pad_mask_dict"]["image_primary"][:, None]]
    return {
        "pixels": pixels,  # [B, images, height, width, 3]
        "rest": np.concatenate([told, *state, *present], axis=1, dtype=np.float32),
        "action": batch["action"][:, -1],  # the chunk of the window's last frame
        "mask": batch["action_pad_mask"][:, -1],
    }


# The policy and its training.


class Policy(nnx.Module):
    """Sees where things are in each image (the mean place of each channel), and thinks about it in two layers."""

    def __init__(self, example, rngs):
        images, channels = example["pixels"].shape[1], 8
        self.see = nnx.Conv(3, channels, (3, 3), rngs=rngs)
        self.first = nnx.Linear(2 * images * channels + example["rest"].shape[-1], 256, rngs=rngs)
        self.second = nnx.Linear(256, 256, rngs=rngs)
        self.last = nnx.Linear(256, HORIZON * example["action"].shape[-1], rngs=rngs)

    def __call__(self, batch):
        seen = self.see(batch["pixels"])
        weight = nnx.softmax(16 * seen, axis=(-3, -2))
        line = jnp.linspace(-1, 1, SIZE)
        places = [jnp.sum(weight * line[:, None, None], (-3, -2)), jnp.sum(weight * line[:, None], (-3, -2))]
        known = [place.reshape(len(seen), -1) for place in places]
        hidden = nnx.relu(self.first(jnp.concatenate([*known, batch["rest"]], axis=1)))
        return self.last(nnx.relu(self.second(hidden))).reshape(batch["action"].shape)


@nnx.jit
def train_step(policy, optimizer, batch):
    def loss_fn(policy):
        error = jnp.square(policy(batch) - batch["action"])
        return jnp.sum(error * batch["mask"]) / jnp.sum(batch["mask"])  # only where there is an action to learn

    loss, grads = nnx.value_and_grad(loss_fn)(policy)
    optimizer.update(policy, grads)
    return loss


def train(folder, checkpoints, *, steps, until, workers=0):
    """Trains up to step `until` of `steps`, from the last checkpoint on if there is one. Returns policy and losses."""
    batches = mixture(folder, train=True)
    policy = Policy(numbers(batches[0]), nnx.Rngs(0))
    optimizer = nnx.Optimizer(policy, optax.adamw(optax.cosine_decay_schedule(5e-3, steps)), wrt=nnx.Param)
    losses = []
    with batches.iterator(workers=workers) as data, ocp.CheckpointManager(checkpoints) as manager:
        start = manager.latest_step() or 0
        if start:
            restored = manager.restore(
                start,
                args=ocp.args.Composite(
                    weights=ocp.args.StandardRestore(nnx.to_pure_dict(nnx.state((policy, optimizer)))),
                    data=bushel.checkpoint.CheckpointRestore(data),
                ),
            )
            state = nnx.state((policy, optimizer))
            nnx.replace_by_pure_dict(state, restored["weights"])
            nnx.update((policy, optimizer), state)
        for step in range(start + 1, until + 1):
            losses.append(float(train_step(policy, optimizer, numbers(next(data)))))
            if step % 20 == 0:
                print(f"step {step:4d}   loss {np.mean(losses[-20:]):.3f}", flush=True)
        manager.save(
            until,
            args=ocp.args.Composite(
                weights=ocp.args.StandardSave(nnx.to_pure_dict(nnx.state((policy, optimizer)))),
                data=bushel.checkpoint.CheckpointSave(data),
            ),
        )
    return policy, losses


def errors(policy, folder):
    """For each robot, in its own units: how far a predicted move is from the true one, and how long moves are."""
    held_out = mixture(folder, train=False)
    found = {robot: [] for robot in ROBOTS}
    for index in range(8):
        batch = held_out[index]
        robots, inputs = batch["dataset_name"], numbers(batch)
        predicted = np.asarray(policy(inputs))
        for robot in ROBOTS:
            facts = held_out.dataset_statistics[robot]["action"]
            width = len(facts["mean"])

            def moves(actions, facts=facts, width=width):
                return unnormalize(actions[..., :width], facts, "normal")[..., :2]

            rows = robots == robot.encode()
            real = inputs["mask"][rows][..., 0]
            true = moves(inputs["action"][rows])[real]
            off = moves(predicted[rows])[real] - true
            found[robot].append(np.linalg.norm([off, true], axis=-1))
    return {robot: np.concatenate(parts, axis=1).mean(axis=1) for robot, parts in found.items()}


def main():
    parser = argparse.ArgumentParser(description="Trains one policy for two robots, twice: whole, and in two parts.")
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--episodes", type=int, default=150, help="for each robot")
    options = parser.parse_args()
    steps, half = options.steps, options.steps // 2
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write(folder / "data", options.episodes)
        print(f"Wrote {options.episodes} episodes of each of {len(ROBOTS)} robots, in RLDS's form.\n")
        for robot, facts in mixture(folder / "data", train=True).dataset_statistics.items():
            spread = np.round(facts["action"]["std"], 3).tolist()
            print(f"{robot}: {facts['num_transitions']} frames to train on, standard deviations of actions {spread}")
        print("\nUninterrupted:")
        whole, losses = train(folder / "data", folder / "whole", steps=steps, until=steps)
        print(f"\nStopped after {half} steps:")
        train(folder / "data", folder / "parts", steps=steps, until=half)
        print("\nResumed from its checkpoint, with data from two worker processes:")
        resumed, rest = train(folder / "data", folder / "parts", steps=steps, until=steps, workers=2)
        weights, again = (jax.tree.leaves(nnx.state(policy)) for policy in (whole, resumed))
        same = rest == losses[half:] and all(map(np.array_equal, weights, again))
        print(f"\n{'Equal' if same else 'NOT equal'} to the uninterrupted run, losses and weights, bit for bit.")
        print(f"Loss of the first 10 steps {np.mean(losses[:10]):.2f}, of the last 10 {np.mean(losses[-10:]):.2f}.")
        for robot, (off, length) in errors(whole, folder / "data").items():
            print(f"{robot}: predicted moves are off by {off:.3g}; moves are {length:.3g} long, in its own units.")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
