"""A page in the browser that shows what a pipeline reads: `bushel.view(ds)`, and the command `bushel view`."""

import sys as _sys
import types as _types

from bushel._src.view.rerun_export import to_rerun
from bushel._src.view.show_page import View, view

__all__ = ["View", "to_rerun", "view"]


class _CallableModule(_types.ModuleType):
    """This module, which can also be called: `bushel.view(ds)` works after `import bushel.view`, too."""

    __call__ = staticmethod(view)


_sys.modules[__name__].__class__ = _CallableModule
