"""Pack Python's own library into rows for a language model: files in turn, as a stream, stopped and resumed.

Nothing needs to be known of the text beforehand. Where lengths can be known, packing by random access is better: see
the documents.
"""

import inspect
import json
from pathlib import Path

import numpy as np

import bushel
from bushel import MapDataset
from bushel.experimental import FirstFitPackIterDataset, InterleaveIterDataset

LENGTH = 512  # tokens of a row
BATCH = 8
STOP_AT = 5
LIBRARY = Path(inspect.getfile(inspect)).parent


def paragraphs(path):
    """The paragraphs of a file, read when its turn has come."""
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    return MapDataset.source([part for part in text.split("\n\n") if part.strip()])


def tokenise(paragraph):
    """Bytes as tokens: the simplest tokeniser there is."""
    return {"tokens": np.frombuffer(paragraph.encode()[:LENGTH], np.uint8).astype(np.int32)}


def pipeline():
    files = [str(path) for path in sorted(LIBRARY.glob("*.py"))[:40]]
    text = InterleaveIterDataset(MapDataset.source(files).shuffle(seed=1).map(paragraphs), cycle_length=8)
    sequences = text.window_shuffle(1000, seed=2).map(tokenise)
    packed = FirstFitPackIterDataset(sequences, length_struct={"tokens": LENGTH}, num_packing_bins=32)
    return packed.batch(BATCH, drop_remainder=True)


def main():
    ds = pipeline()
    print(ds)
    whole = list(ds)
    filled = np.mean([batch["tokens_segment_ids"] > 0 for batch in whole])
    sequences = sum(int(row.max()) for batch in whole for row in batch["tokens_segment_ids"])
    print(f"{len(whole)} batches of {BATCH} rows: {sequences} paragraphs, {filled:.1%} of the cells hold a token.")

    with iter(pipeline()) as it:
        head = [next(it) for _ in range(STOP_AT)]
        text = json.dumps(it.get_state())
    with iter(pipeline()) as it:  # another process, another day
        it.set_state(json.loads(text))
        tail = list(it)
    assert bushel.testing.same(head + tail, whole)
    print(f"Stopped after {STOP_AT} batches with a state of {len(text)} bytes, resumed: the same batches followed.")


if __name__ == "__main__":
    main()
