"""A policy trained on a LeRobot data set: recorded by simulation, stopped halfway, resumed, compared bit for bit.

    python examples/lerobot_policy.py

A hand drives to a cube. Two cameras see it: one looks at the table, one sits on the hand. The episodes are written as a
LeRobot v3 data set, with videos. The policy sees two frames of each camera and the position of the hand, and predicts
the next eight moves. The last part mixes this data set with an RLDS data set of a robot that has only one camera.
Needs optax, and the extras jax, parquet, video and robots.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import bushel
from bushel.trajectory import LeRobotSource, convert_episodes, make_interleaved_dataset, write_rlds

jax.config.update("jax_platforms", "cpu")  # the network is too small to be worth an accelerator

FPS, PIXELS, BATCH, HORIZON = 10, 48, 32, 8
TOP, HAND = "observation.images.top", "observation.images.hand"


# The data: episodes as a recorder would write them.


def draw(points):
    """A picture of points in the unit square: the cube is red, the hand is blue."""
    grid = (np.arange(PIXELS) + 0.5) / PIXELS
    picture = np.full((PIXELS, PIXELS, 3), 30, np.uint8)
    for channel, (x, y) in zip((0, 2), points):
        distance = np.hypot(grid[:, None] - y, grid[None, :] - x)
        picture[..., channel] = 30 + 220 * np.clip(1.5 - 8 * distance, 0, 1)
    return picture


def simulate(rng):
    """A hand on its way to a cube, 12 to 20 steps."""
    cube, hand = rng.uniform(0.1, 0.9, (2, 2))
    steps = []
    for _ in range(rng.integers(12, 21)):
        move = 0.2 * (cube - hand)
        near = draw([0.5 + 0.5 * (cube - hand), (0.5, 0.5)])
        steps.append({"top": draw([cube, hand]), "hand": near, "state": hand, "action": move / 0.1})
        hand = hand + move
    return jax.tree.map(lambda *leaves: np.stack(leaves), *steps)


def record(folder, episodes):
    """Writes the episodes of a hand as a LeRobot data set, and those of a rover with one camera as an RLDS data set."""
    rng = np.random.default_rng(0)
    (folder / "recorded").mkdir(parents=True)
    for number in range(episodes):
        episode = {
            key: value.astype(np.float32) if value.dtype == float else value for key, value in simulate(rng).items()
        }
        np.savez(folder / "recorded" / f"{number}.npz", **episode)
    convert_episodes(
        folder / "recorded", folder / "hand", format="lerobot", source_format="npz", fps=FPS, task="go to the cube"
    )
    rover = []
    for _ in range(episodes // 4):
        steps = simulate(rng)
        observation = {"camera": steps["top"], "position": steps["state"].astype(np.float32)}
        words = np.array([b"drive to the cube"] * len(steps["action"]), object)
        rover.append(
            {"steps": {"observation": observation, "action": steps["action"].astype(np.float32), "words": words}}
        )
    write_rlds({"train": rover}, name="rover", data_dir=folder)


# Batches.


def open_batches(folder):
    """Windows of the LeRobot data set without end, shuffled over all rows: two frames, eight actions."""
    past, future = [-1 / FPS, 0.0], [step / FPS for step in range(HORIZON)]
    source = LeRobotSource(
        folder / "hand", delta_timestamps={TOP: past, HAND: past, "action": future}, cache_dir=folder / "cache"
    )
    return bushel.MapDataset.source(source).seed(0).shuffle().repeat().batch(BATCH)


def mix(folder):
    """Samples of both robots without end, three of the hand for one of the rover. What the rover lacks is masked."""
    common = {"data_dir": str(folder), "train_split": "train", "proprio_obs_keys": {"arm": "state"}}
    hand = {"name": "hand", "format": "lerobot", "image_obs_keys": {"primary": "images.top", "wrist": "images.hand"}}
    rover = {"name": "rover", "image_obs_keys": {"primary": "camera"}, "proprio_obs_keys": {"arm": "position"}}
    rover["language_key"] = "words"
    return make_interleaved_dataset(
        [common | {"language_key": "language_instruction"} | hand, common | rover],
        sample_weights=[3, 1],
        train=True,
        traj_transform_kwargs={"window_size": 2, "action_horizon": HORIZON},
        frame_transform_kwargs={"resize_size": (PIXELS, PIXELS)},
        batch_size=BATCH,
        cache_dir=str(folder / "cache"),
        seed=0,
    )


# The policy and its training.


def see(pixels):
    """Where the red and the blue thing are in each picture: the mean place of each channel, and how much there is."""
    light = jax.nn.relu(pixels.astype(jnp.float32)[..., ::2] / 255 - 0.2) + 1e-6  # uint8 until it is on the device
    weight = light / light.sum((-3, -2), keepdims=True)
    line = jnp.linspace(-1, 1, PIXELS)
    places = [(weight * line[:, None, None]).sum((-3, -2)), (weight * line[:, None]).sum((-3, -2))]
    return jnp.concatenate([*places, light.mean((-3, -2))], axis=-1).reshape(len(pixels), -1)


def predict(params, batch):
    """The next moves."""
    known = jnp.concatenate([see(batch[TOP]), see(batch[HAND]), batch["observation.state"]], axis=1)
    for layer in params[:-1]:
        known = jax.nn.relu(known @ layer["w"] + layer["b"])
    return (known @ params[-1]["w"] + params[-1]["b"]).reshape(batch["action"].shape)


def make_params():
    widths = [26, 128, 128, 2 * HORIZON]
    keys = jax.random.split(jax.random.key(0), len(widths) - 1)
    return [
        {"w": jax.random.normal(key, (low, high)) / low**0.5, "b": jnp.zeros(high)}
        for key, low, high in zip(keys, widths, widths[1:])
    ]


OPTIMIZER = optax.adam(3e-3)


@jax.jit
def train_step(params, state, batch):
    def loss_fn(params):
        real = ~batch["action_is_pad"][..., None]  # moves after the end of the episode are not learned
        return jnp.sum(real * jnp.square(predict(params, batch) - batch["action"])) / (2 * jnp.sum(real))

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, state = OPTIMIZER.update(grads, state)
    return optax.apply_updates(params, updates), state, loss


def train(folder, *, steps, resumed=None, workers=0):
    """Trains for some steps, from a checkpoint if there is one. Returns a checkpoint and the losses."""
    params = make_params()
    state, losses = OPTIMIZER.init(params), []
    batches = open_batches(folder).to_iter_dataset(bushel.ReadOptions(0, 0))
    with iter(batches.mp_prefetch(bushel.MultiprocessingOptions(workers))) as data:
        if resumed is not None:
            params, state = resumed["params"], resumed["state"]
            data.set_state(resumed["data"])
        for _ in range(steps):
            batch = {key: value for key, value in next(data).items() if key != "task"}
            params, state, loss = train_step(params, state, batch)
            losses.append(float(loss))
        return {"params": params, "state": state, "data": data.get_state()}, losses


def main():
    parser = argparse.ArgumentParser(
        description="Trains a policy on a LeRobot data set, twice: whole, and in two parts."
    )
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--episodes", type=int, default=60)
    options = parser.parse_args()
    half = options.steps // 2
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "data"
        record(folder, options.episodes)
        print(f"Wrote {options.episodes} episodes as a LeRobot data set.")
        whole, losses = train(folder, steps=options.steps)
        print(f"Loss of the first 10 steps {np.mean(losses[:10]):.3f}, of the last 10 {np.mean(losses[-10:]):.3f}.")
        stopped, _ = train(folder, steps=half)
        again, rest = train(folder, steps=options.steps - half, resumed=stopped, workers=2)
        weights, other = jax.tree.leaves(whole["params"]), jax.tree.leaves(again["params"])
        same = rest == losses[half:] and all(map(np.array_equal, weights, other))
        print(f"{'Equal' if same else 'NOT equal'} to the uninterrupted run after a stop at step {half}, bit for bit.")
        with mix(folder).iterator() as mixed:
            batch = next(mixed)
        robots, wrist = batch["dataset_name"], batch["observation"]["pad_mask_dict"]["image_wrist"]
        shares = {robot.decode(): int(count) for robot, count in zip(*np.unique(robots, return_counts=True))}
        print(f"The samples of a batch of the mixture: {shares}.")
        masked = bool((wrist.all(axis=1) == (robots == b"hand")).all())
        print(f"The camera that the rover lacks is {'masked' if masked else 'NOT masked'}.")
    return 0 if same and masked else 1


if __name__ == "__main__":
    sys.exit(main())
