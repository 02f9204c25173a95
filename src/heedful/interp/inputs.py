"""The input of a model: one way to run any model on a text or on ids, with the names of its tokens.

Every function of `interp` takes a text, a pair of texts, ids or an image. `reading` turns it into an `Input`,
which knows how to run the model with a `Watch` and what its tokens are called. The other functions here find
things by their names: a token by its text, an answer by its label, a part by its path in the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from heedful.core.checks import position_of as position_of
from heedful.core.errors import InputError, nearest
from heedful.core.progress import report_progress
from heedful.decode.loop import generate
from heedful.models.base import LM, DualEncoder, MediaLM, Model, Seq2Seq, evaluation_mode
from heedful.models.calls import ForwardOptions
from heedful.nn.attention.attentive import Decoding
from heedful.nn.attention.multi_head import CrossAttention
from heedful.nn.block import Stack
from heedful.nn.context import Part, Watch
from heedful.nn.embedding import Embedding, MediaEmbedding
from heedful.nn.head import Head, NoHead

WRITTEN_TOKENS = 24  # of a target that nobody gave, at most


@dataclass(frozen=True)
class Input:
    """One sequence for a model; an encoder-decoder also has a target, as its decoder reads it.

    The tokens of an image are its patches, by row and column.
    """

    ids: Tensor  # (1, S); of an image its pixels, (1, C, H, W)
    tokens: tuple[str, ...]
    target: Tensor | None = None  # (1, T)
    target_tokens: tuple[str, ...] = ()
    types: Tensor | None = None  # (1, S) which of two texts a token is of, if the model minds
    second: int | None = None  # where the second text begins

    @property
    def read(self) -> Tensor:
        """The ids on the side that predicts: the target's, or the only ones."""
        return self.ids if self.target is None else self.target

    @property
    def names(self) -> tuple[str, ...]:
        """The tokens on the side that predicts."""
        return self.tokens if self.target is None else self.target_tokens

    def run(self, model: Model, watch: Watch | None = None, *, repeat: int = 1) -> Tensor:
        """Return what `run_batch` returns; `repeat` makes a batch of copies."""
        target, types = (
            None if rows is None else rows.expand(repeat, -1) for rows in (self.target, self.types)
        )
        ids = self.ids.expand(repeat, *self.ids.shape[1:])
        return run_batch(model, ids, target, types=types, watch=watch)

    def record(self, model: Model, *names: str) -> Watch:
        """Run the model once and return the watch that recorded the values of these names."""
        watch = Watch(*names)
        self.run(model, watch)
        return watch


# Two texts are read by encoders, as one sequence. A model that reads images is given a path, or any image.
Text = str | tuple[str, str] | Sequence[int] | Tensor | Input | Any


def run_batch(
    model: Model, ids: Tensor, target: Tensor | None = None, *, types: Tensor | None = None,
    valid: Tensor | None = None, target_valid: Tensor | None = None, watch: Watch | None = None,
) -> Tensor:  # fmt: skip
    """Return the logits of a batch; the last hidden states of a model without a head."""
    bare = isinstance(model.head, NoHead)
    with evaluation_mode(model):
        if isinstance(model, Seq2Seq):
            decode: Callable[..., Tensor] = model.hidden if bare else model
            return decode(ids, target, valid=valid, target_valid=target_valid, watch=watch)
        options: ForwardOptions = {"valid": valid, "watch": watch}
        if types is not None:
            options["types"] = types
        encode = cast(LM, model).encode if bare else model
        return cast(Tensor, encode(ids, **options))


def reading(model: Model, text: Text, target: Text | None = None) -> Input:
    """The input of `model` for a text or ids. An encoder-decoder without a target writes its own, greedily.

    A target given as text gets the start token before it; ids are taken as the decoder reads them. A pair of
    texts is read by an encoder as it was trained to: [CLS] first [SEP] second [SEP].
    """
    check_one_input(model)
    if isinstance(text, Input):
        return text
    if is_pair(text):
        return pair(model, *cast(tuple[str, str], text))
    processor = model.processor
    ids = ids_of(model, text) if processor is None else processor(text).to(model.device)
    if not isinstance(model, Seq2Seq):
        if target is not None:
            raise InputError("only an encoder-decoder has a target", hint="leave it out")
        return Input(ids, names_of(model, ids))
    if target is None:
        if isinstance(model.head, NoHead):
            raise InputError("a model without a head generates no text", hint="give a target")
        (generated,) = generate(model, ids, max_tokens=WRITTEN_TOKENS, fast=False, details=True)
        # A generated token need not fit into the context, but here all are read.
        read = [model.start_token, *generated.ids][: model.decoder_embed.context]
        written = torch.tensor([read], device=model.device)
    else:
        written = ids_of(model, target)
        if isinstance(target, str):
            written = torch.cat((written.new_full((1, 1), model.start_token), written), 1)
    return Input(ids, names_of(model, ids), written, names_of(model, written))


def check_one_input(model: Model) -> None:
    """Raise InputError for a model that reads a text and an image at once."""
    if isinstance(model, DualEncoder):
        raise InputError(
            f"a {model.family.name} model reads a text and an image",
            hint="take one of its encoders: model.text or model.image",
        )


def probe_input(model: Model) -> Input:
    """Return two or three tokens that any model reads, to see what comes out."""
    check_one_input(model)
    if isinstance(model, MediaLM):
        return reading(model, model.embed.blank(1, 1))
    largest = min(table.vocab for table in model.tables.values()) - 1
    ids = [min(i, largest) for i in (5, 6, 7)]
    source = model.embed.blank(1, 1) if isinstance(model.embed, MediaEmbedding) else ids
    return reading(model, source, ids[:2] if isinstance(model, Seq2Seq) else None)


def check_names(names: Sequence[str]) -> None:
    """Raise InputError for one name, whose letters would else be taken for names, and for no name."""
    if isinstance(names, str) or not len(names):
        hint = f"give [{names!r}]" if isinstance(names, str) else "model.names() lists them"
        raise InputError(f"names of values must be a list; got {names!r}", hint=hint)
    for name in names:
        if not isinstance(name, str):
            hint = "model.names() lists them, such as 'blocks.3.output'"
            raise InputError(f"the name of a value is a text; got {name!r}", hint=hint)


def check_texts(texts: Any, what: str = "texts") -> None:
    """Raise InputError for one text, whose letters would else be taken for texts, and for no text."""
    if isinstance(texts, str | Tensor | Input) or (isinstance(texts, Sized) and not len(texts)):
        raise InputError(
            f"{what} must be a list of texts; got {texts!r:.60}", hint='give several: ["…", "…"]'
        )


def is_pair(text: Any) -> bool:
    """Whether two texts are given."""
    return isinstance(text, tuple) and len(text) == 2 and all(isinstance(t, str) for t in text)


def pair(model: Model, first: str, second: str) -> Input:
    """Two texts as one sequence, with the types that tell them apart where the model has a table of them."""
    if not isinstance(model, LM) or model.causal or model.tokenizer is None:
        raise InputError("two texts at once are for an encoder with a tokenizer", hint="join them into one")
    encoding = model.tokenizer.encoding(first, second)
    if 1 not in encoding.sequence_ids or 0 not in encoding.sequence_ids:
        raise InputError("one of the two texts is empty", hint="give a word to each, or one text alone")
    ids = torch.tensor([encoding.ids], device=model.device)
    type_count = 0 if model.embed.types is None else model.embed.types.num_embeddings
    has_types = 0 < max(encoding.type_ids) < type_count
    types = torch.tensor([encoding.type_ids], device=model.device) if has_types else None
    return Input(ids, names_of(model, ids), types=types, second=encoding.sequence_ids.index(1))


def ids_of(model: Model, text: Text) -> Tensor:
    """The ids (1, T) of a text, or of ids in any form."""
    if isinstance(text, str):
        if model.tokenizer is None:
            raise InputError(
                "this model has no tokenizer",
                hint="give it ids such as [5, 9, 2], or put a tokenizer.json or vocabulary into its folder",
            )
        encoded = model.tokenizer.encode(text)
        if not encoded:
            raise InputError("the text is empty", hint="give at least one token")
        return torch.tensor([encoded], device=model.device)
    ids = torch.as_tensor(text, device=model.device)
    ids = ids[None] if ids.dim() == 1 else ids
    if ids.dim() != 2 or len(ids) != 1:
        raise InputError(f"one sequence at a time: ids must be (T,) or (1, T); got {tuple(ids.shape)}")
    return ids.long()


def names_of(model: Model, ids: Tensor | Sequence[int]) -> tuple[str, ...]:
    """The names of ids in the vocabulary; the ids themselves without a tokenizer; of an image its
    patches.
    """
    if isinstance(ids, Tensor) and ids.is_floating_point():
        return cast(MediaEmbedding, model.embed).piece_names()
    listed = [int(i) for i in (ids.flatten() if isinstance(ids, Tensor) else ids)]
    if model.tokenizer is None:
        return tuple(map(str, listed))
    return tuple(model.tokenizer.tokens(listed))


def token_id(model: Model, token: int | str) -> int:
    """The id of a token given by its id, its name in the vocabulary, or a text that is one token."""
    if isinstance(token, int):
        return token
    if model.tokenizer is None:
        raise InputError("this model has no tokenizer", hint=f"give the id of {token!r}")
    number = model.tokenizer.id(token)
    if number is None:
        pieces = model.tokenizer.encode(token, special=False)
        if len(pieces) != 1:
            spaced = f" {token}"
            one = len(model.tokenizer.encode(spaced, special=False)) == 1
            way = f"name one, such as {spaced!r} with the space before it" if one else "name one"
            cut = " ".join(names_of(model, pieces[:8])) + (" …" if len(pieces) > 8 else "")
            raise InputError(f"{token!r} is {len(pieces)} tokens of this model, {cut}", hint=way)
        number = pieces[0]
    return int(number)


def label_names(model: Model) -> list[str] | None:
    """Return the names of a head's labels; None if it speaks of words."""
    kind = cast(Head, model.head).kind
    named = {"next": ["follows", "random"], "span": ["start", "end"], "detect": ["replaced"]}
    if kind in ("classify", "tag"):
        return model.label_names
    return named.get(kind)


def answer_id(model: Model, answer: int | str | None, scores: Tensor) -> int:
    """The number of a token or a label among those that `scores` (C,) are of; by default of the highest."""
    if answer is None:
        return int(scores.argmax())
    labels, count = label_names(model), len(scores)
    if isinstance(answer, str):
        if labels is None:
            return token_id(model, answer)
        if answer not in labels:
            hint = nearest(answer, labels) or f"there are {', '.join(labels)}"
            raise InputError(f"{answer!r} is not a label of this model", hint=hint)
        return labels.index(answer)
    if not 0 <= answer < count:
        what = "token of the vocabulary" if labels is None else "label"
        names = "" if labels is None else f": {', '.join(labels)}"
        raise InputError(f"{answer} is not a {what}", hint=f"choose 0 … {count - 1}{names}")
    return int(answer)


def choices(model: Model, logits: Tensor, position: int) -> Tensor:
    """Return what a head chooses from, (B, C): at a position, or for the whole text if it has one answer."""
    head = cast(Head, model.head)
    if isinstance(head, NoHead):
        raise InputError("this model has no head, so it has no answer", hint="load one with a head")
    if head.positions is None:
        return logits
    scores = logits if head.positions == -2 else logits[..., None]  # one score per token
    return scores[:, position]


def token_vectors(embed: Embedding) -> Tensor:
    """The token vectors (V, D); of a table in whole numbers what they stand for."""
    if embed.table.is_floating_point():
        return embed.table
    return cast(Tensor, embed.token(torch.arange(embed.vocab, device=embed.table.device)))


def part_at(model: Model, path: str) -> Part:
    """The part that shows its values under `path`; layers that share weights are one part at many depths."""
    module: nn.Module = model
    for word in path.split("."):
        if isinstance(module, Stack) and word.isdigit() and int(word) < len(module):
            module = module[int(word)]
            continue
        children = dict(module.named_children())
        if word not in children:
            words = [str(i) for i in range(len(module))] if isinstance(module, Stack) else list(children)
            close = nearest(word, words) or f"there are {', '.join(words[:8]) or 'none'}"
            if isinstance(module, Stack) and word.isdigit():
                close = f"they are 0 … {len(module) - 1}"
            raise InputError(f"no part {path!r}: there is no {word!r}", hint=close)
        module = children[word]
    return cast(Part, module)


def output_matrix(model: Model, path: str) -> nn.Module | None:
    """Return the module that turns what the heads of a part say, side by side, into what the part adds."""
    part = part_at(model, path)
    matrix = getattr(part, "o", None)
    return matrix if part.pattern_kind is not None and isinstance(matrix, nn.Module) else None


def stacks_of(model: Model) -> dict[str, Stack]:
    """Return the stacks by name, in the order they run."""
    if isinstance(model, Seq2Seq):
        return {"encoder": model.encoder, "decoder": model.decoder}
    return {"blocks": cast(LM, model).blocks}


def stack_of(model: Model) -> tuple[str, Stack]:
    """The stack that predicts, and its name: blocks, or the decoder."""
    return list(stacks_of(model).items())[-1]


def word_head(model: Model) -> Head:
    """The head that speaks of words; an error where the model has another."""
    return cast(Head, model.head).words


# What a row of a pattern stands for: the token that is read, or the word that is written. A row of
# self-attention belongs to the token it reads. A row of cross-attention that reads y_{t−1} chooses what y_t
# is made from, so it is labelled y_t, as in figure 3 of Bahdanau et al. 2015. All figures are labelled so.

Side = Literal["tokens", "target", "written"]
OPEN = "…"  # the last row of a model that predicts no words


def attends_to_source(part: nn.Module) -> bool:
    """Whether the keys of a part are an encoder's: cross-attention, or alignment in a recurrent decoder."""
    return isinstance(part, CrossAttention | Decoding)


def row_side(path: str, part: nn.Module, *, has_target: bool) -> Side:
    """Return whose tokens name the rows of the pattern at `path`."""
    if attends_to_source(part):
        return "written"
    return "target" if has_target and not path.startswith("encoder") else "tokens"


def key_side(path: str, part: nn.Module, *, has_target: bool) -> Side:
    """Return whose tokens name the columns."""
    return "tokens" if attends_to_source(part) else row_side(path, part, has_target=has_target)


def written_ids(model: Model, inputs: Input, output: Tensor | None) -> list[int | None]:
    """Return the word each target position writes: the next one of the target, and at the last position the
    most likely by `output`, the logits (1, T, V); None there if the head predicts no words.
    """
    following: list[int | None] = inputs.read[0, 1:].tolist()
    try:
        word_head(model)
    except InputError:
        output = None
    return [*following, None if output is None else int(output[0, -1].argmax())]


def written_names(model: Model, inputs: Input, output: Tensor | None) -> tuple[str, ...]:
    """Return the names of `written_ids` in the vocabulary."""
    return tuple(OPEN if i is None else names_of(model, [i])[0] for i in written_ids(model, inputs, output))


def layer_names(model: Model, *, predicting: bool = False) -> list[str]:
    """Return the names of the outputs of the embedding and of every layer that reads the text.

    With `predicting`, those of the side that predicts: an encoder-decoder's decoder.
    """
    where, stack = list(stacks_of(model).items())[-1 if predicting else 0]
    embed = "target_embed" if where == "decoder" else "embed"
    return [f"{embed}.output", *(f"{where}.{i}.output" for i in range(len(stack)))]


Item = TypeVar("Item")


def with_progress(items: Iterable[Item], unit: str, total: int) -> Iterator[Item]:
    """Yield the items, and report how many are done before each of them and at the end."""
    for done, item in enumerate(items):
        report_progress(unit, done, total)
        yield item
    report_progress(unit, total, total)


# All results of this package become JSON in the same way.


class Result:
    """A frozen dataclass as plain values: its fields, and the properties that are named in `also`."""

    also: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        names = [*(field.name for field in fields(self)), *self.also]  # type: ignore[arg-type]
        return {name: to_plain(getattr(self, name)) for name in names}


def to_plain(value: Any) -> Any:
    """Return tensors and tuples as lists, results and mappings as dictionaries, all else as it is."""
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, Tensor):
        return value.detach().cpu().double().tolist()
    if isinstance(value, Mapping):
        return {key: to_plain(v) for key, v in value.items()}
    return [to_plain(v) for v in value] if isinstance(value, list | tuple) else value
