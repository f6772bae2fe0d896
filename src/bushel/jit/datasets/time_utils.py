"""Windows over time series, with cyreal's function names: read a column of a CSV file, split it, cut out windows.

Time is the first axis of an array with one or two axes. An array with more axes is (batch, time, ...).
"""

from bushel._src.jit.datasets.time_series import (
    load_time_series_from_csv,
    load_value_column,
    make_sequence_disk_source,
    prepare_seq_to_seq_windows,
    prepare_time_series_windows,
    select_split,
    sliding_window_many,
)

__all__ = [
    "load_time_series_from_csv",
    "load_value_column",
    "make_sequence_disk_source",
    "prepare_seq_to_seq_windows",
    "prepare_time_series_windows",
    "select_split",
    "sliding_window_many",
]
