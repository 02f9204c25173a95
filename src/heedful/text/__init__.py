"""Text to ids and back: the tokenizers that published models came with, on the `tokenizers` library.

tokenizer.py            Tokenizer: encode, decode, pieces with offsets, special ids, chat
chat_templates.py       conversations as text, by a model's Jinja template, within limits of time and memory
tokenizer_files.py      from a folder to a Tokenizer, and back
vocabularies.py         WordPiece, byte-level BPE and GPT's word BPE from plain vocabulary files
sentencepiece.py        SentencePiece models (BPE and Unigram)
gguf.py                 from the metadata of a GGUF file, and back
tokenizer_training.py   learned from text: BPE, WordPiece, Unigram, words, characters
bpe.py                  byte-pair encoding step by step, and the letters that stand for bytes
"""

from __future__ import annotations

from heedful.text.tokenizer import Piece, Tokenizer
from heedful.text.tokenizer_files import load_tokenizer, save_tokenizer

__all__ = ["Piece", "Tokenizer", "load_tokenizer", "save_tokenizer"]
