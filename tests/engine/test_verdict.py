"""What a run is bound by, in one sentence, from the figures of its report."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bushel
from bushel._src.engine.measurements import DELIVERY, Pool, Stage, Transfer
from bushel._src.engine.report import Report, judge


def stage(call, where="workers", self_s=1.0, number=1, **more):
    return Stage(number, call, where, 100, self_s, 0, **more)


def report(*, stages=(), pools=(), elements=100, elapsed_s=10.0, waited_s=8.0, timed=True, transfers=()):
    return Report(timed, tuple(stages), tuple(pools), elements, elapsed_s, waited_s, tuple(transfers))


BUSY = [stage("range(9)", self_s=3.4), stage("map(decode)", self_s=16.6)]


def test_workers_that_cannot_keep_up():
    # A step takes 20 ms without waiting, an element 200 ms of worker time: 11 workers with some headroom.
    found = judge(report(stages=BUSY, pools=[Pool("workers", 2, "", busy_s=20.0, wait_s=8.0)]), 16)
    assert found.sentence == "input-bound: map(decode) takes 83 % of worker time; 9 more workers would do."
    assert (found.bound, found.more_workers) == ("input", 9)


def test_a_verdict_that_asks_for_one_worker_is_in_the_singular():
    found = judge(report(stages=BUSY, pools=[Pool("workers", 2, "", busy_s=20.0, wait_s=2.0)], waited_s=2.0), 16)
    assert found.sentence.endswith("; 1 more worker would do.")


def test_more_workers_than_cores():
    found = judge(report(stages=BUSY, pools=[Pool("workers", 2, "", busy_s=20.0, wait_s=8.0)]), 4)
    assert found.sentence == (
        "input-bound: map(decode) takes 83 % of worker time; to keep up with the step would take 11 workers, and there "
        "are 4 cores: make it cheaper, or store its output."
    )


def test_actors_of_a_cluster_are_not_bound_by_our_cores():
    pool = Pool("actors", 2, "", busy_s=20.0, wait_s=8.0, nodes=("a: 2 actors",))
    stages = [stage("map(decode)", "actors", 20.0)]
    assert judge(report(stages=stages, pools=[pool]), 1).sentence.endswith("; 9 more actors would do.")


def test_workers_that_are_idle_although_the_step_waits():
    found = judge(report(stages=BUSY, pools=[Pool("workers", 4, "", busy_s=20.0, wait_s=8.0)]), 16)
    assert "the workers are busy only 50 % of the time: let them work further ahead" in found.sentence


def test_a_loop_that_only_reads():
    found = judge(report(stages=BUSY, pools=[Pool("workers", 2, "", busy_s=20.0, wait_s=9.99)], waited_s=9.99), 16)
    assert found.sentence.endswith("and the step takes no time of its own: every further worker helps.")


@pytest.mark.parametrize(
    ("slowest", "sentence"),
    [
        (stage("map(decode)", "consumer", 9.0), "consumer time; 5 workers would do: put .mp_prefetch() after it."),
        (stage(DELIVERY, "consumer", 9.0), "consumer time: let the workers make larger batches of arrays."),
        (
            stage("pack()", "consumer", 9.0, marked=True),
            "in order: make it cheaper, or move its work on single elements into a map before or after it.",
        ),
    ],
)
def test_work_in_the_consumer(slowest, sentence):
    found = judge(report(stages=[slowest, stage("batch(2)", "consumer", 0.0)]), 16)
    assert found.sentence.endswith(sentence) and found.bound == "input"


def test_a_step_that_takes_its_time():
    found = judge(report(stages=BUSY, waited_s=0.3))
    assert found.bound == "compute"
    assert found.sentence.startswith("compute-bound: the step waits for data 3 % of its time")


def test_nothing_measured_and_nothing_delivered():
    assert judge(report(timed=False)).sentence.startswith("Stages are not timed.")
    assert judge(report(elements=0)).sentence == "No element has been delivered in this time."


def test_a_verdict_says_whether_the_transfer_or_the_input_limits():
    slow = Transfer("1 gpu", 100, 10**9, 10.0, 8.0, 0.0, 1.2e8, 0)
    assert judge(report(transfers=[slow])).sentence.startswith("transfer-bound: the step waits for data 80 % of its")
    fast = Transfer("1 gpu", 100, 10**9, 10.0, 8.0, 0.0, 1e12, 0)
    assert judge(report(timed=False, transfers=[fast])).bound == "input"
    assert judge(report(stages=BUSY, pools=[Pool("workers", 2, "", 20.0, 8.0)], transfers=[fast]), 16).more_workers == 9


positive = st.floats(1e-3, 1e4)


@given(size=st.integers(1, 64), busy=st.floats(0.7, 1.0), step=positive, wait=positive, cores=st.integers(1, 128))
def test_the_recommended_number_keeps_up_with_the_step(size, busy, step, wait, cores):
    elapsed = step + wait
    pool = Pool("workers", size, "", busy_s=busy * elapsed * size, wait_s=wait)
    stages = [stage("map(f)", self_s=pool.busy_s)]
    found = judge(report(stages=stages, pools=[pool], elapsed_s=elapsed, waited_s=wait), cores)
    assert found.bound in ("input", "compute") and found.sentence.endswith(".")
    if found.more_workers is not None:
        workers = size + found.more_workers
        assert pool.busy_s / workers <= step * 1.0001  # with so many, an element is there before the step asks
        assert ("more worker" in found.sentence) == (workers <= cores)


def wait_a_little(x):
    time.sleep(0.001)
    return x


def test_a_report_since_an_earlier_one_has_the_figures_of_the_time_between():
    ds = bushel.MapDataset.range(60).map(wait_a_little).to_iter_dataset()
    it = iter(ds.with_options(execution_tracking_mode="stage_timing"))
    for _ in range(10):
        next(it)
    first = it.report()
    rest = len(list(it))
    part = it.report().since(first)
    assert part.elements == rest == 50
    assert {stage.call: stage.elements for stage in part.stages}["map(wait_a_little)"] == 50
    assert 0 < part.waited_s <= part.elapsed_s < it.report().elapsed_s
    assert it.report().since(it.report()).elements == 0


def test_the_latest_skips_are_part_of_the_report():
    def fail(x):
        if x % 2:
            raise ValueError(f"no {x}")
        return x

    it = iter(bushel.MapDataset.range(200).map(fail).to_iter_dataset().with_options(on_error="skip"))
    assert len(list(it)) == 100
    found = it.report()
    assert found.skipped == 100 and len(found.skips) == 50
    assert "ValueError: no 199" in found.skips[-1].error and "element 199" in found.skips[-1].which
