"""Instructions as tokens. It works on whole batches, on the host, with the package `tokenizers`.

Embedding texts is up to the training program, except with the Flax models that CrossFormer could load.
"""

from bushel._src.trajectory.text_processing import (
    CLIPTextProcessor,
    HFTokenizer,
    MuseEmbedding,
    TextProcessor,
    UniversalSentenceEncoder,
    process_text,
)

__all__ = [
    "CLIPTextProcessor",
    "HFTokenizer",
    "MuseEmbedding",
    "TextProcessor",
    "UniversalSentenceEncoder",
    "process_text",
]
