"""One-off jobs on a Ray cluster: columns, tables and statistics of trajectories, saved and converted data sets.

Iterating on a cluster needs nothing from here: see `IterDataset.ray_prefetch`. Ray itself is imported when it is used.
"""

from bushel._src.datasets.cluster_jobs import convert, jobs_on_cluster

__all__ = [
    "convert",
    "jobs_on_cluster",
]
