"""heedful: the Transformer family made real.

The public names and nothing else. They are loaded when first used (PEP 562), so that importing the package
costs nothing and `heed --help` never imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_WHERE = {
    "Conversation": "heedful.tasks",
    "TrainConfig": "heedful.train.config",
    "Watch": "heedful.nn.context",
    "Word2Vec": "heedful.word2vec",
    "build": "heedful.weights.loading",
    "check": "heedful.decode.check",
    "count": "heedful.models.counting",
    "data": "heedful.data",
    "embed": "heedful.weights.pooling",
    "explain": "heedful.classroom.arithmetic.explain",
    "export_gguf": "heedful.weights.exporting",
    "export_onnx": "heedful.weights.exporting",
    "fast": "heedful.decode.fast",
    "fit": "heedful.train.fit",
    "generate": "heedful.decode.loop",
    "load": "heedful.weights.loading",
    "lora": "heedful.weights.adapters",
    "merge": "heedful.weights.adapters",
    "pipeline": "heedful.tasks",
    "quantize": "heedful.decode.quantize",
    "save": "heedful.weights.saving",
    "stream": "heedful.decode.loop",
    "train_tokenizer": "heedful.text.tokenizer_training",
    "view": "heedful.classroom.figures",
}

__all__ = sorted([*_WHERE, "__version__"])

if TYPE_CHECKING:
    from heedful import data as data
    from heedful.classroom import figures as view  # noqa: F401
    from heedful.classroom.arithmetic.explain import explain as explain
    from heedful.decode.check import check as check
    from heedful.decode.fast import fast as fast
    from heedful.decode.loop import generate as generate
    from heedful.decode.loop import stream as stream
    from heedful.decode.quantize import quantize as quantize
    from heedful.models.counting import count as count
    from heedful.nn.context import Watch as Watch
    from heedful.tasks import Conversation as Conversation
    from heedful.tasks.registry import pipeline as pipeline
    from heedful.text.tokenizer_training import train_tokenizer as train_tokenizer
    from heedful.train.config import TrainConfig as TrainConfig
    from heedful.train.fit import fit as fit
    from heedful.weights.adapters import lora as lora
    from heedful.weights.adapters import merge as merge
    from heedful.weights.exporting import export_gguf as export_gguf
    from heedful.weights.exporting import export_onnx as export_onnx
    from heedful.weights.loading import build as build
    from heedful.weights.loading import load as load
    from heedful.weights.pooling import embed as embed
    from heedful.weights.saving import save as save
    from heedful.word2vec import Word2Vec as Word2Vec


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"heedful has no public name {name!r}; it offers {', '.join(__all__)}")
    module = importlib.import_module(_WHERE[name])
    return module if name in ("data", "view") else getattr(module, name)


def __dir__() -> list[str]:
    return __all__
