"""Transforms of the images of one frame: decode and resize, drop some, augment the others. Pixels are in `pixels.py`.

A frame is a dict `obs` with `image_*` and `depth_*`, and `pad_mask_dict`, which says for each image whether it is data
or padding. The functions do not change their arguments. With images of JAX, or a `jax.random` key as the seed, results
are arrays of JAX, also inside `jit` and `vmap`.
"""

from bushel._src.trajectory.obs_transforms import augment, decode_and_resize, image_dropout

__all__ = [
    "augment",
    "decode_and_resize",
    "image_dropout",
]
