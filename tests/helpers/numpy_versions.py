"""What differs between the versions of NumPy that are promised."""

from typing import Any

import numpy as np

STRING_DTYPES: list[Any] = [np.dtypes.StringDType()] if hasattr(np.dtypes, "StringDType") else []
"""The dtype of texts of any length, which NumPy has since 2.0."""
