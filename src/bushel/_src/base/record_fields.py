"""Names of the features that Grain keeps beside the data of a record."""

INDEX = "_index"
"""The global index of a record, which counts on from epoch to epoch."""
RECORD_KEY = "_record_key"
"""The number of a record in its source."""
DATASET_INDEX = "_dataset_index"
"""The number of the dataset in a mixture."""
EPOCH = "_epoch"
"""The number of the epoch, from 0."""
SEED = "_seed"
"""The seed of the random numbers of a record."""
RECORD = "_record"
"""The record itself, as the source gave it."""
META_FEATURES = frozenset({INDEX, RECORD_KEY, DATASET_INDEX, EPOCH, SEED, RECORD})
"""All of these names."""

__all__ = ["DATASET_INDEX", "EPOCH", "INDEX", "META_FEATURES", "RECORD", "RECORD_KEY", "SEED"]
