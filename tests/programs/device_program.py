"""One of two processes that loop over global batches. The loop ends as the first argument says."""

import sys

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import bushel


def read(index):
    return {"x": np.full((64, 64), index, np.float32)}


def main():
    how, port, process = sys.argv[1:]
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=int(process))
    where = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
    ds = bushel.MapDataset.range(1000).map(read).repeat().batch(16)
    step = jax.jit(lambda batch: batch["x"].sum())
    value = 0
    for number, batch in enumerate(ds.to_device(where), 1):
        value = step(batch)
        if number == 3:
            # Waits for the step of all processes: one that has left cannot take part in it any more.
            print("running", float(value), flush=True)
            if how == "exit":
                sys.exit(3)
            if how == "step fails":
                raise RuntimeError("the step failed")
            if how == "break":
                break
    print(float(value) > 0)


if __name__ == "__main__":
    main()
