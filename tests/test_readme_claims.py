"""What README's table "Compared with other loaders" says about Grain's workers and PyTorch's `StatefulDataLoader`.

`make test-all` runs it for Grain, and `make test-libraries` for PyTorch.
"""

from __future__ import annotations

import os
import signal

import grain
import pytest
from absl import flags

COUNT, SIZE = 200, 10

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata asks torch for it
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),  # on a machine with few cores
]


class Numbers:
    """A data set as PyTorch wants it."""

    def __init__(self, count: int = COUNT, first: int = 0):
        self.count, self.first = count, first

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return self.first + index


def make_loader(workers, dataset=None, stateful=True):
    torch = pytest.importorskip("torch")
    stateful_dataloader = pytest.importorskip("torchdata.stateful_dataloader")
    make = stateful_dataloader.StatefulDataLoader if stateful else torch.utils.data.DataLoader
    generator = torch.Generator()
    generator.manual_seed(0)
    context = "fork" if workers else None
    return make(
        dataset or Numbers(),
        batch_size=SIZE,
        shuffle=True,
        num_workers=workers,
        generator=generator,
        multiprocessing_context=context,
    )


def read(loader):
    return [batch.tolist() for batch in loader]


def save_after_seven_batches(workers):
    loader = make_loader(workers)
    batches = iter(loader)
    for _ in range(7):
        next(batches)
    return loader.state_dict()


def test_torch_gives_the_same_batches_for_any_number_of_workers_but_none():
    assert read(make_loader(2)) == read(make_loader(3))
    assert read(make_loader(2)) != read(make_loader(0))
    assert read(make_loader(2, stateful=False)) == read(make_loader(0, stateful=False))


@pytest.mark.parametrize("workers", [0, 2])
def test_torch_resumes_with_the_same_number_of_workers_also_with_other_data(workers):
    state = save_after_seven_batches(workers)
    again = make_loader(workers)
    again.load_state_dict(state)
    assert read(again) == read(make_loader(workers))[7:]
    other = make_loader(workers, Numbers(first=5_000))
    other.load_state_dict(state)
    assert read(other) == [[n + 5_000 for n in batch] for batch in read(make_loader(workers))[7:]]


@pytest.mark.parametrize(("saved", "restored"), [(2, 3), (2, 0), (0, 2)])
def test_torch_refuses_a_state_of_another_number_of_workers(saved, restored):
    loader = make_loader(restored)
    loader.load_state_dict(save_after_seven_batches(saved))
    with pytest.raises(AssertionError):
        next(iter(loader))


def test_a_killed_worker_of_torch_is_an_error():
    batches = iter(make_loader(2, Numbers(100_000)))
    next(batches)
    os.kill(batches._workers[0].pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        read(batches)


def test_a_killed_worker_of_grain_is_an_error():
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    dataset = grain.MapDataset.range(1_000_000).map(kill_at_the_tenth).to_iter_dataset()
    with pytest.raises(RuntimeError, match="process"):
        list(dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=2)))


def kill_at_the_tenth(number):
    if number == 10:
        os.kill(os.getpid(), signal.SIGKILL)
    return number
