"""What is in a file, a folder or a pipeline: for `bushel inspect`, `stats`, `bench` and `report`."""
