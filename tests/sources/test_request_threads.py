"""Many requests at once in threads that all callers share, and which ranges become one request."""

import concurrent.futures
import signal
import threading
import time

import numpy as np
import pytest
from helpers.waiting import SOON_S
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bushel._src.sources import remote_requests
from bushel._src.sources.remote_requests import RequestThreads


@pytest.mark.parametrize("count", [0, 1, 3, 50])
def test_results_are_in_the_order_of_the_items(count):
    threads = RequestThreads("order", 4)
    assert threads.map(str, range(count)) == [str(number) for number in range(count)]
    with concurrent.futures.ThreadPoolExecutor(8) as callers:
        found = list(callers.map(lambda first: threads.map(lambda x: x, range(first, first + count)), range(40)))
    assert found == [list(range(first, first + count)) for first in range(40)]


def test_as_many_requests_at_once_as_there_may_be():
    together = threading.Barrier(5)
    assert RequestThreads("all", 5).map(lambda x: together.wait(SOON_S) >= 0, range(10)) == [True] * 10


def test_no_more_requests_at_once_than_there_may_be():
    lock, busy, most = threading.Lock(), 0, 0
    again = threading.Event()

    def request(number):
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        again.wait(0.001)
        with lock:
            busy -= 1

    threads = RequestThreads("few", 3)
    with concurrent.futures.ThreadPoolExecutor(8) as callers:
        list(callers.map(lambda _: threads.map(request, range(20)), range(8)))
    assert 1 < most <= 3


def test_the_first_item_that_fails_is_raised_and_the_rest_is_not_tried():
    sixth, fifth = threading.Event(), threading.Event()
    tried = []

    def request(number):
        tried.append(number)
        if number == 5:
            sixth.wait(SOON_S)
            time.sleep(0.01)  # now the sixth has probably failed before it
            fifth.set()
            raise ValueError("item 5")
        if number == 6:
            sixth.set()
            raise ValueError("item 6")
        if number > 6:
            fifth.wait(SOON_S)
            time.sleep(0.01)

    threads = RequestThreads("fail", 3)
    with pytest.raises(ValueError, match="item 5"):
        threads.map(request, range(300))
    assert len(tried) < 300
    assert threads.map(abs, [-1, -2]) == [1, 2]


def test_a_caller_that_is_interrupted_does_not_wait_and_begins_no_other_requests():
    over, tried = threading.Event(), []

    def request(number):
        tried.append(number)
        over.wait(SOON_S)

    def give_up(number, frame):
        raise KeyboardInterrupt

    threads = RequestThreads("interrupt", 2)
    before = signal.signal(signal.SIGALRM, give_up)
    try:
        with pytest.raises(KeyboardInterrupt):  # behind it, an interrupt would end pytest
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            threads.map(request, range(300))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        over.set()
    assert threads.map(abs, [-1, -2, -3]) == [1, 2, 3]
    assert len(tried) <= 2


@settings(max_examples=300, deadline=None)
@example(ranges=[(0, 20_000_000), (5_000_000, 10)])
@example(ranges=[(number << 20, 1 << 20) for number in range(12)])
@given(
    ranges=st.lists(
        st.tuples(
            st.one_of(st.integers(0, 300_000), st.integers(0, 30_000_000)),
            st.one_of(st.integers(0, 1000), st.integers(0, 2_000_000)),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_near_ranges_become_one_request_of_a_bounded_size(ranges):
    starts, lengths = np.array([low for low, _ in ranges]), np.array([length for _, length in ranges])
    lows, highs, which = remote_requests.merge_ranges(starts, lengths)
    assert sorted(set(which)) == list(range(len(lows)))
    assert lows == sorted(lows)
    for number, (low, high) in enumerate(zip(lows, highs)):
        inside = sorted((start, start + length) for (start, length), where in zip(ranges, which) if where == number)
        assert (low, high) == (inside[0][0], max(end for _, end in inside))  # covers its ranges, and nothing else
        assert inside[-1][0] - low < remote_requests._MERGED_BYTES
        for place in range(1, len(inside)):  # gaps that are read in vain are small
            assert inside[place][0] <= max(end for _, end in inside[:place]) + remote_requests._MERGE_BYTES
    for number in range(1, len(lows)):  # two requests are apart, or together too large for one
        near = lows[number] <= max(highs[:number]) + remote_requests._MERGE_BYTES
        last = max(start for (start, _), where in zip(ranges, which) if where == number)
        assert not near or last - lows[0] >= remote_requests._MERGED_BYTES
