"""One run on 4 hosts, then on 3, then on 1: every record is seen once, in the order of a single host.

The hosts are simulated: in a real run each is a process with `bushel.ShardByJaxProcess()`.
"""

import bushel
from bushel.experimental import ElasticIterator

RECORDS = 100
GLOBAL_BATCH = 12


def records():
    return bushel.MapDataset.range(RECORDS).seed(7).shuffle()


def run(count, state, steps):
    """Some steps on `count` hosts: the records of each global batch, and the state, which all hosts share."""
    hosts = [
        ElasticIterator(records(), GLOBAL_BATCH, bushel.ShardOptions(index, count), remainder="pad")
        for index in range(count)
    ]
    for host in hosts if state else ():
        host.set_state(state)
    seen = []
    for _ in range(steps):
        rows = [next(host, None) for host in hosts]
        if rows[0] is None:
            break
        # Row r of host h is row r * count + h of the global batch; the mask is False for what was filled in.
        batch = [rows[row % count][0][row // count] for row in range(GLOBAL_BATCH)]
        there = [rows[row % count][1][row // count] for row in range(GLOBAL_BATCH)]
        seen += [int(record) for record, real in zip(batch, there) if real]
    (state,) = {host.get_state()["global_next_index"]: host.get_state() for host in hosts}.values()
    print(f"{count} hosts of {GLOBAL_BATCH // count} rows: {len(seen)} records, now at {state['global_next_index']}")
    return seen, state


def main():
    seen, state = run(4, None, steps=3)
    more, state = run(3, state, steps=2)
    rest, state = run(1, state, steps=1000)
    seen += more + rest
    assert seen == list(records()), "not the order of a single host"
    assert sorted(seen) == list(range(RECORDS))
    print(f"All {RECORDS} records, each once, in the order of a single host.")


if __name__ == "__main__":
    main()
