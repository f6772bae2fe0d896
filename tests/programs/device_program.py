"""A loop over batches on devices. It ends as its first argument says, in one process or in one of several."""

import functools
import json
import sys

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import bushel


def read(index, fails):
    if index == 64 and fails:
        raise ValueError(f"record {index} is damaged")
    return {"x": np.full((64, 64), index, np.float32)}


def main():
    job = json.loads(sys.argv[2])
    jax.config.update("jax_num_cpu_devices", 4)
    if job["count"] > 1:
        jax.distributed.initialize(f"127.0.0.1:{job['port']}", num_processes=job["count"], process_id=job["process"])
    where = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
    ds = (
        bushel.MapDataset.range(1000)
        .map(functools.partial(read, fails=sys.argv[1] == "element fails"))
        .repeat()
        .batch(16)
        .to_iter_dataset()
    )
    if job["workers"]:
        ds = ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=job["workers"]))
    step = jax.jit(lambda batch: batch["x"].sum())
    it = iter(ds.to_device(where))
    for number, batch in enumerate(it, 1):
        value = step(batch)
        if number == 3:
            print("running", flush=True)
            if sys.argv[1] == "exit":
                sys.exit(3)
            if sys.argv[1] == "step fails":
                raise RuntimeError("the step failed")
            if sys.argv[1] == "break":
                break
    print(float(value) > 0)
    del it


if __name__ == "__main__":
    main()
