"""Where records come from. A source is any object with a length and `source[i]`; see `RandomAccessDataSource`."""
