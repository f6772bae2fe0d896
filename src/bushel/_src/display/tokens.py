"""Rows of tokens: ids with their packed segments, positions and masks, decoded by a tokenizer."""

from __future__ import annotations

from typing import Any

import numpy as np

ROWS = 8
"""How many rows are shown."""
TOKENS = 1_024
"""How many tokens of a row are shown."""


def describe_tokens(
    ids: np.ndarray,
    *,
    segments: Any = None,
    positions: Any = None,
    mask: np.ndarray | None = None,
    tokenizer: Any = None,
) -> dict[str, Any]:
    """Rows of tokens for the page.

    Args:
      ids: [tokens] or [rows, tokens].
      segments: which packed sequence each token belongs to; 0 is padding.
      positions: the position of each token in its sequence.
      mask: False where a token is hidden, for example from the loss.
      tokenizer: an object with `decode(ids)`.
    """

    def as_rows(values: Any) -> np.ndarray | None:
        values = None if values is None else np.asarray(values)
        if values is None or values.shape != ids.shape:
            return None
        return values.reshape(-1, ids.shape[-1])[:ROWS, :TOKENS]

    all_rows = as_rows(ids)
    assert all_rows is not None
    segment_rows, position_rows, mask_rows = as_rows(segments), as_rows(positions), as_rows(mask)
    rows = []
    for number, row in enumerate(all_rows):
        shown: dict[str, Any] = {"ids": row.tolist()}
        if segment_rows is not None:
            shown["segments"] = segment_rows[number].tolist()
        if position_rows is not None:
            shown["positions"] = position_rows[number].tolist()
        if mask_rows is not None:
            shown["kept"] = mask_rows[number].astype(int).tolist()
        if tokenizer is not None:
            shown["pieces"] = [_decode_one(tokenizer, token) for token in row.tolist()]
            shown["texts"] = _decode_segments(tokenizer, row, None if segment_rows is None else segment_rows[number])
        rows.append(shown)
    total = ids.size // ids.shape[-1]
    return {"rows": rows, "rows_left_out": total - len(rows), "left_out": max(0, ids.shape[-1] - TOKENS)}


def _decode_segments(tokenizer: Any, row: np.ndarray, segments: np.ndarray | None) -> list[dict[str, Any]]:
    """The text of each segment, in the order in which they begin. Padding (segment 0) is left out."""
    if segments is None:
        return [{"segment": None, "text": decode(tokenizer, row.tolist())}]
    _, first = np.unique(segments, return_index=True)
    present = [int(segments[place]) for place in sorted(first.tolist()) if segments[place] != 0]
    return [{"segment": one, "text": decode(tokenizer, row[segments == one].tolist())} for one in present]


def _decode_one(tokenizer: Any, token: int) -> str:
    text = decode(tokenizer, [token])
    if not text and hasattr(tokenizer, "id_to_token"):  # a special token, which `decode` leaves out
        return tokenizer.id_to_token(token) or ""
    return text


def decode(tokenizer: Any, ids: list[int]) -> str:
    """The text of some tokens. A tokenizer refuses ids that it does not know; these are shown as numbers."""
    try:
        return str(tokenizer.decode(ids))
    except Exception as error:  # each tokenizer has errors of its own
        return f"⟨{', '.join(map(str, ids[:4]))}{', …' if len(ids) > 4 else ''}: {type(error).__name__}⟩"
