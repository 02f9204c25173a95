"""Which weights of a pattern a figure shows: one head or all, by words, of one of two texts on the other."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from heedful.classroom.figures.token_labels import labels, spell_token
from heedful.core.errors import InputError
from heedful.interp.inputs import OPEN, is_pair
from heedful.models.base import Model

SPECIAL = re.compile(r"\[[A-Z0-9]+\]|<[^<>\s]+>|\S*endoftext\S*")
PART = re.compile(r"<[0-9A-F]{2}( [0-9A-F]{2})*>")  # bytes that are not a whole letter
MARKS = {"##": re.compile(r"##\w"), "</w>": re.compile(r".*</w>$"), " ": re.compile("[Ġ▁ ]")}
STARTS = ("Ġ", "▁", " ")
SAMPLE = 5000  # names of a vocabulary that show how it marks words
Data = Mapping[str, Any]
SIDES = {"aa": "A → A", "ab": "A → B", "ba": "B → A", "bb": "B → B"}


def marks(names: Sequence[str]) -> str:
    """How a vocabulary tells a word's first piece: "##" before the others, "</w>" behind the last, a space
    before the first; "" where every token is a word.
    """
    enough = max(1, len(names) // 100)  # a large vocabulary has "###" as well
    return next((m for m, look in MARKS.items() if sum(bool(look.match(n)) for n in names) >= enough), "")


def marks_of(model: Model) -> str:
    """Those of a model's vocabulary."""
    if model.tokenizer is None:
        return ""
    return marks(labels(model, range(min(SAMPLE, model.tables["tokens"].vocab, len(model.tokenizer)))))


def group_words(names: Sequence[str], mark: str) -> list[int]:
    """The word each token belongs to, counted from 0. A special token is its own word; so are marks of
    punctuation, and letters of scripts that put no spaces between words.
    """
    out: list[int] = []
    for i, name in enumerate(names):
        out.append(0 if i == 0 else out[-1] + (not mark or not continues(names[i - 1], name, mark)))
    return out


def continues(before: str, name: str, mark: str) -> bool:
    """Whether a token goes on with the word of the one before it."""
    if PART.fullmatch(name) and PART.fullmatch(before):
        return True
    if SPECIAL.fullmatch(name) or SPECIAL.fullmatch(before):
        return False
    if mark == "##":
        return name.startswith("##")
    if mark == "</w>":
        return not before.endswith("</w>")
    last, first = before[-1:], name[:1]
    wide = unicodedata.east_asian_width(first or "x") in "WF"
    return not name.startswith(STARTS) and not wide and last.isalnum() and first.isalnum()


def word_names(names: Sequence[str], words: Sequence[int]) -> list[str]:
    """The name of each word: its pieces as one; bytes that are a letter together as that letter."""
    joined = []
    for word in sorted(set(words)):
        first, *rest = pieces = [n for n, w in zip(names, words, strict=True) if w == word]
        if rest and all(map(PART.fullmatch, pieces)):
            text = "".join(pieces).replace("<", "").replace(">", " ")
            joined.append(bytes.fromhex(text).decode(errors="replace"))
        else:
            ends = "".join(n.removeprefix("##").removesuffix("</w>") for n in rest)
            joined.append(first.removesuffix("</w>") + ends)
    return joined


def by_words(values: np.ndarray, rows: Sequence[int], columns: Sequence[int]) -> np.ndarray:
    """p(i, j) = mean over the pieces t of word i of Σ over the pieces s of word j of p(t, s)

    A word receives the sum over its pieces and gives their mean, so that rows
    add up to what they did (Clark et al. 2019 §4).
    """
    take = np.array(rows)[None] == np.array(sorted(set(rows)))[:, None]  # (words, T)
    give = np.array(columns)[None] == np.array(sorted(set(columns)))[:, None]  # (words, S)
    mean = take / take.sum(-1, keepdims=True)
    return np.asarray(mean @ values @ give.T.astype(values.dtype), dtype=values.dtype)


def side(between: str) -> str:
    """ "A→B" in any spelling as "ab"; an error names the four."""
    short = re.sub(r"[^ab]", "", between.lower())
    if between and short not in SIDES:
        raise InputError(f"`between={between!r}` is unknown", hint="choose A→A, A→B, B→A or B→B")
    return short


@dataclass(frozen=True)
class SelectedPattern:
    """The matrix an attention figure shows (T, S), which of its cells a mask hides, what its rows and columns
    are, and where these stand: places of tokens, or of words where it is drawn by words.
    """

    values: np.ndarray
    masked: np.ndarray
    queries: list[str]
    keys: list[str]
    query_at: list[int]
    key_at: list[int]


def select_pattern(data: Data) -> SelectedPattern:
    """One head, or the mean or greatest of all; as `data` says without the first key, cut to one of two texts
    on the other, by words.
    """
    pattern = data["patterns"][data["pattern"]]
    values, head, second = pattern["values"], data["head"], pattern["second"]
    if head == "mean":
        matrix = values.mean(0)
    elif head == "max":
        matrix = np.take_along_axis(values, np.abs(values).argmax(0)[None], 0)[0]
    else:
        matrix = values[head]
    rows, columns = (list(range(n)) for n in matrix.shape)
    if data["hide_first"] and not pattern["cross"] and len(columns) > 1:
        # The sizes of each row add up to what they did; 0 where nothing else was seen.
        whole = np.abs(matrix).sum(-1, keepdims=True)
        left = np.abs(matrix[:, 1:]).sum(-1, keepdims=True)
        scale = np.divide(whole, left, out=np.zeros_like(whole), where=left > 1e-12)
        matrix, columns = np.asarray(matrix[:, 1:] * scale), columns[1:]
    if data["between"] and second is not None:
        # The marks around a text count with it: A ends before B's first word.
        sides = zip(data["between"], values.shape[1:], strict=True)
        asks, seen = (list(range(second) if side == "a" else range(second, n)) for side, n in sides)
        seen = [c for c in seen if c in columns]
        matrix = matrix[np.ix_(asks, [columns.index(c) for c in seen])]
        rows, columns = asks, seen
    queries, keys = [pattern["queries"][i] for i in rows], [pattern["keys"][i] for i in columns]
    masked = masked_cells(pattern)[np.ix_(rows, columns)]
    if not data["words"]:
        return SelectedPattern(matrix, masked, queries, keys, rows, columns)
    asking, asked = [pattern["query_words"][i] for i in rows], [pattern["key_words"][i] for i in columns]
    whole = by_words(matrix, asking, asked)
    hidden = by_words((~masked).astype(np.float64), asking, asked) == 0
    names = word_names(queries, asking), word_names(keys, asked)
    return SelectedPattern(whole, hidden, *names, sorted(set(asking)), sorted(set(asked)))


def masked_cells(pattern: Data) -> np.ndarray:
    """The cells (T, S) that a mask hides: keys after the query where nothing there has weight, and keys
    outside the layer's window.
    """
    T, S = pattern["values"].shape[1:]
    if pattern["cross"] or T != S:
        return np.zeros((T, S), dtype=bool)
    i, j, window = np.arange(T)[:, None], np.arange(S), pattern["window"]
    later = (j > i) & (T > 1 and not np.triu(pattern["values"], 1).any())
    return later if window is None else later | (j >= i + window) | (j <= i - window)


# Attention of models made elsewhere: anything that answers `model(**inputs, output_attentions=True)`.
#
# That is how models of `transformers` answer. The package itself is never imported here.


WRITE = 24  # tokens an encoder-decoder writes where no target is given


def figure_entry(
    name: str, values: Any, queries: Sequence[str], keys: Sequence[str], *, cross: bool = False,
    predicted_rows: bool = False, window: int | None = None, kind: str = "", mark: str | None = None,
    second: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """One layer's pattern (H, T, S) as a figure holds it.

    `predicted_rows` says that rows are the tokens predicted, not those read; `window` is how many positions a
    query sees. `mark` is how the vocabulary marks words, by default as these tokens do; `second` is where
    the second of two texts begins.
    """
    array = np.asarray(torch.as_tensor(values).detach().float().cpu().numpy())
    if array.ndim == 4 and len(array) == 1:
        array = array[0]
    if array.ndim != 3:
        raise InputError(
            f"{name} has shape {array.shape}", hint="a layer's pattern is (heads, queries, keys)"
        )
    if array.shape[1:] != (len(queries), len(keys)):
        wanted = f"{len(queries)} queries and {len(keys)} keys"
        raise InputError(
            f"{name} has shape {array.shape}, which does not fit {wanted}", hint="give a name to each"
        )
    if not np.isfinite(array).all():
        raise InputError(f"{name} has entries that are not finite numbers", hint="mask with 0, not with nan")
    kind = kind or ("effective" if array.min(initial=0.0) < 0 else "softmax")
    mark = marks([*queries, *keys]) if mark is None else mark
    return {
        "name": name, "kind": kind, "cross": cross, "queries": list(queries), "keys": list(keys),
        "written": predicted_rows, "window": window, "values": array, "second": None if cross else second,
        "query_words": group_words(queries, mark), "key_words": group_words(keys, mark),
    }  # fmt: skip


@contextmanager
def eager(model: Any) -> Iterator[None]:
    """Without fused kernels, which hold no weights, and without dropout; both are put back."""
    before = getattr(getattr(model, "config", None), "_attn_implementation", None)
    training = bool(getattr(model, "training", False))
    switch = before not in (None, "eager") and callable(getattr(model, "set_attn_implementation", None))
    if switch:
        model.set_attn_implementation("eager")
    if training:
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        if switch:
            model.set_attn_implementation(before)
        if training:
            model.train()


def inputs_of(model: Any, text: Any, tokenizer: Any) -> dict[str, Any]:
    """The arguments of the call: a text through its tokenizer, ids, or inputs as they are."""
    if isinstance(text, Mapping):
        return dict(text)
    if isinstance(text, str) or is_pair(text):
        if tokenizer is None:
            raise InputError(
                "a text needs the model's tokenizer: `view.attention(model, text, tokenizer=tok)`"
            )
        inputs = dict(tokenizer(*([text] if isinstance(text, str) else text), return_tensors="pt"))
        if not inputs["input_ids"].numel():
            raise InputError("the text is empty", hint="give at least one token")
    else:
        inputs = {"input_ids": torch.atleast_2d(torch.as_tensor(text)).long()}
    device = getattr(model, "device", torch.device("cpu"))
    return {name: value.to(device) for name, value in inputs.items()}


def token_names(tokenizer: Any, ids: torch.Tensor) -> list[str]:
    """The tokens of ids (1, T), those of a byte-level vocabulary spelled out."""
    if len(ids) != 1:
        raise InputError(f"one sequence at a time: ids must be (1, T); got {tuple(ids.shape)}")
    listed = ids[0].tolist()
    if tokenizer is None:
        return [str(i) for i in listed]
    names = [str(t) for t in tokenizer.convert_ids_to_tokens(listed)]
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    return [spell_token(t) for t in names] if type(decoder).__name__ == "ByteLevel" else names


def decoder_ids(model: Any, inputs: Mapping[str, Any], target: Any, tokenizer: Any) -> torch.Tensor:
    """The decoder's input: a target with the start token before it, ids, or what the model writes."""
    device = inputs["input_ids"].device
    if target is None:
        written: torch.Tensor = model.generate(**inputs, max_new_tokens=WRITE, do_sample=False, num_beams=1)
        return written
    if not isinstance(target, str):
        return torch.atleast_2d(torch.as_tensor(target, device=device)).long()
    if tokenizer is None:
        raise InputError("a target given as text needs `tokenizer=`", hint="or give its ids")
    ids = tokenizer(text_target=target, return_tensors="pt")["input_ids"].to(device)
    start = ids.new_full((1, 1), int(model.config.decoder_start_token_id))
    return torch.cat((start, ids), 1)


def attention_patterns(model: Any, text: Any, target: Any, tokenizer: Any) -> list[dict[str, Any]]:
    """Every pattern of one pass."""
    if not callable(model):
        raise InputError(
            f"a {type(model).__name__} is not a model", hint="give one, or `tokens=` and `pattern=`"
        )
    inputs = inputs_of(model, text, tokenizer)
    both = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    source = token_names(tokenizer, inputs["input_ids"])
    patterns: list[dict[str, Any]] = []

    def add(values: Any, name: str, queries: Sequence[str], keys: Sequence[str], **options: Any) -> None:
        """Add the patterns of a stack; a layer without attention has None."""
        layers = [(i, layer) for i, layer in enumerate(values or ()) if layer is not None]
        patterns.extend(figure_entry(name.format(i), x, queries, keys, **options) for i, x in layers)

    with eager(model):
        if both:
            inputs["decoder_input_ids"] = decoder_ids(model, inputs, target, tokenizer)
        out = model(**inputs, output_attentions=True)
    if both:
        read, logits = inputs["decoder_input_ids"], getattr(out, "logits", None)
        mine = token_names(tokenizer, read)
        written = [*mine[1:], OPEN]  # each position writes the next word, the last one the most likely
        if isinstance(logits, torch.Tensor) and logits.dim() == 3:
            written = token_names(tokenizer, torch.cat((read[:, 1:], logits[:, -1:].argmax(-1)), 1))
        add(getattr(out, "encoder_attentions", None), "encoder.{}", source, source)
        add(getattr(out, "decoder_attentions", None), "decoder.{}", mine, mine)
        cross = getattr(out, "cross_attentions", None)
        add(cross, "decoder.{}.cross", written, source, cross=True, predicted_rows=True)
    else:
        second = list(tokenizer(*text).sequence_ids(0)).index(1) if is_pair(text) else None
        add(getattr(out, "attentions", None), "layers.{}", source, source, second=second)
    if not patterns:
        hint = "load it with `attn_implementation='eager'`, or draw weights you have"
        hint += ": `view.attention(tokens=…, pattern=…)`"
        raise InputError(f"{type(model).__name__} gave no attentions", hint=hint)
    return patterns
