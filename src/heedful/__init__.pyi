__version__: str

import heedful.classroom.figures as view  # noqa: F401
from heedful import data as data
from heedful import nn as nn
from heedful.classroom.arithmetic.explain import explain as explain
from heedful.decode.check import check as check
from heedful.decode.fast import fast as fast
from heedful.decode.loop import generate as generate
from heedful.decode.loop import stream as stream
from heedful.decode.quantize import quantize as quantize
from heedful.models.counting import count as count
from heedful.models.plugins import register as register
from heedful.models.tensor_parallel import parallelize as parallelize
from heedful.nn.context import Watch as Watch
from heedful.tasks import Conversation as Conversation
from heedful.tasks.own_data import evaluate as evaluate
from heedful.tasks.own_data import finetune as finetune
from heedful.tasks.own_data import predict as predict
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
