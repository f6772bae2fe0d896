"""A data loader inside `jax.jit`: pure functions over arrays that stay on the device."""

from bushel._src.base.late_imports import install_command as _install_command

try:
    import jax as _jax  # noqa: F401
except ImportError as error:
    raise ImportError(f"bushel.jit needs JAX: {_install_command('jax')}") from error
