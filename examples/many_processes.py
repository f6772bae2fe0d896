"""Trains on several processes, each with its own part of every batch. Kill it at any time, and resume on fewer.

    python examples/many_processes.py --processes 4 --checkpoints /tmp/run
    python examples/many_processes.py --processes 2 --checkpoints /tmp/run    # goes on from the last checkpoint

The processes run on this machine, with jax.distributed on loopback and one CPU device each. On real hosts a cluster
starts `train` on each of them, and `jax.distributed.initialize()` finds the others. Nothing else differs.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
import traceback

import numpy as np

BATCH = 24
RECORDS = 5000


def read(index):
    """One record: a point x, and y = w x + b. In a real run this function reads a file and decodes it."""
    rng = np.random.default_rng(index)
    x = rng.normal(size=8).astype(np.float32)
    return {"index": index, "x": x, "y": np.float32(x @ np.arange(8) + 3)}


def train(folder, steps, every):
    """The program of one process. All processes run it, and no line depends on which one it is."""
    import jax
    import jax.numpy as jnp
    import orbax.checkpoint as ocp
    from jax.sharding import NamedSharding, PartitionSpec

    import bushel

    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    rows, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    ds = bushel.MapDataset.range(RECORDS).seed(0).shuffle().map(read).repeat().batch(BATCH).to_device(rows)
    augmentation = bushel.device.keys(seed=1)

    @jax.jit
    def step(weights, batch):
        noise = jax.vmap(lambda key: jax.random.normal(key, (8,)))(augmentation(batch["index"]))

        def loss(weights):
            return jnp.mean((batch["x"] @ weights["w"] + weights["b"] - batch["y"] + 0.01 * noise.sum(1)) ** 2)

        value, slope = jax.value_and_grad(loss)(weights)
        checksum = jnp.sum(batch["index"] * jnp.arange(BATCH))  # integers: exact, in whatever order they are added
        return jax.tree.map(lambda weight, part: weight - 0.1 * part, weights, slope), value, checksum

    weights = jax.device_put({"w": np.zeros(8, np.float32), "b": np.float32(0)}, everywhere)
    options = ocp.CheckpointManagerOptions(max_to_keep=2, save_interval_steps=every)
    with iter(ds) as it, ocp.CheckpointManager(os.path.abspath(folder), options=options) as manager:
        done = manager.latest_step() or 0
        if done:
            saved = ocp.args.Composite(
                weights=ocp.args.StandardRestore(weights), data=bushel.checkpoint.CheckpointRestore(it)
            )
            weights = manager.restore(done, args=saved)["weights"]
        for number in range(done + 1, steps + 1):
            weights, value, checksum = step(weights, next(it))
            if jax.process_index() == 0:
                print(f"step {number:3d}  batch {int(checksum):8d}  loss {float(value):8.4f}", flush=True)
            manager.save(
                number,
                args=ocp.args.Composite(
                    weights=ocp.args.StandardSave(weights), data=bushel.checkpoint.CheckpointSave(it)
                ),
            )


def run_process(arguments):
    import jax

    address, count, number = arguments.process.split(",")
    if int(count) > 1:
        jax.distributed.initialize(address, num_processes=int(count), process_id=int(number))
    try:
        train(arguments.checkpoints, arguments.steps, arguments.every)
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # the usual end would wait for the other processes, which wait for this one
    if int(count) > 1:
        jax.distributed.shutdown()


def launch(arguments):
    """Starts all processes, and ends them all when one of them fails: the others would wait for it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    processes = []
    try:
        for number in range(arguments.processes):
            command = [sys.executable, *sys.argv, "--process", f"{address},{arguments.processes},{number}"]
            # Sessions of their own: Ctrl-C reaches this program alone, which then ends them.
            environment = os.environ | {"JAX_PLATFORMS": "cpu"}
            processes.append(subprocess.Popen(command, env=environment, start_new_session=True))
        print(f"{arguments.processes} processes: {' '.join(str(process.pid) for process in processes)}", flush=True)
        while None in (codes := [process.poll() for process in processes]) and not any(codes):
            time.sleep(0.05)
        failed = next((number for number, code in enumerate(codes) if code), None)
        if failed is not None:
            sys.exit(f"Process {failed} has ended with code {codes[failed]}. Start again to go on from the checkpoint.")
    except KeyboardInterrupt:
        sys.exit("Stopped. Start again to go on from the last checkpoint.")
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def main():
    parser = argparse.ArgumentParser(description="Trains on several processes; kill it, and resume on fewer.")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--checkpoints", required=True, help="a folder; a run goes on from the last checkpoint in it")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=5, help="steps between two checkpoints")
    parser.add_argument("--process", help=argparse.SUPPRESS)  # set in the processes that this program starts
    arguments = parser.parse_args()
    (run_process if arguments.process else launch)(arguments)


if __name__ == "__main__":
    main()
