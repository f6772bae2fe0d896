"""Integer arithmetic of pipelines: functions from index arrays to index arrays. No data, no threads.

Each function takes the array namespace as `xp` where JAX shares it: `numpy` with 64-bit indices, or
`jax.numpy` with 32-bit words for lengths below 2**31.
"""
