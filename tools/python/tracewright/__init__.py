"""Runs language models through IREE.

>>> import tracewright
>>> model = tracewright.Model("HuggingFaceTB/SmolLM2-135M-Instruct")   # doctest: +SKIP
>>> for piece in model.chat("Why is the sky blue?"):                   # doctest: +SKIP
...     print(piece, end="", flush=True)
"""

from ._native import Generation, Model, TracewrightError, __version__

__all__ = ["Generation", "Model", "TracewrightError", "__version__"]
