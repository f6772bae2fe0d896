"""Actors of a Ray cluster as an executor: what `ray_prefetch` and `RayOptions` ask for.

Ray is imported when an executor is made, and not before.
"""
