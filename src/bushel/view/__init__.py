"""A page in the browser that shows what a pipeline reads: `bushel.view(ds)`, and the command `bushel view`."""

from __future__ import annotations

import sys
import types
from typing import Any

from bushel.view.handle import View, view
from bushel.view.rerun_export import to_rerun

__all__ = ["View", "to_rerun", "view"]


class _CallableModule(types.ModuleType):
    """This package, which can also be called: `bushel.view(ds)` works after `import bushel.view.server`, too."""

    def __call__(self, target: Any, **options: Any) -> View:
        return view(target, **options)


sys.modules[__name__].__class__ = _CallableModule
