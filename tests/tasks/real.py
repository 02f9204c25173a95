"""Trained models that installed packages carry, loaded once; and a tiny one with room for a prompt."""

from __future__ import annotations

import functools

import heedful
from heedful.models.base import Model
from tests.decode.toy import letters
from tests.properties.tiny import tiny


@functools.cache
def smol() -> Model:
    return heedful.load("smollm2-135m-instruct")


@functools.cache
def minilm() -> Model:
    return heedful.load("all-minilm-l6-v2")


@functools.cache
def scribbler() -> Model:
    """A tiny LLaMA that writes bytes, up to 512 of them."""
    model = tiny("llama", vocab=260, context=512)
    model.tokenizer = letters()
    return model
