"""Text that must have a form: one of several strings, what a regular expression matches, JSON of a schema.

A program that reads a model's answer needs JSON, not nearly JSON. So every token that would break the form
gets the probability zero before a token is chosen, and the model chooses among the rest: the result always
has the form, and the model decides only what the form leaves open. A guide says which tokens may come next.
Its states are values: a beam keeps one next to each hypothesis. Expressions and schemas are compiled by
llguidance, token by token over the whole vocabulary.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from heedful.core.errors import InputError
from heedful.core.lazy import import_optional
from heedful.decode.settings import CONSTRAINTS, GenerationSettings
from heedful.models.base import Model


class Guide(Protocol):
    """A rule that says which tokens may come next, (V,) bool, and what follows from one."""

    def start(self) -> Any:
        """The state before anything is written."""

    def allowed_tokens(self, state: Any) -> Tensor:
        """(V,) True for the tokens that may come next; the end of the text among them where it may end."""

    def next(self, state: Any, token: int) -> Any:
        """The state after one more token; the one before stays as it was."""

    def complete(self, state: Any) -> bool:
        """Whether nothing but the end can follow."""


@dataclass(eq=False)
class ChoiceNode:
    """A place in the tree of choices: where each token leads, and whether a choice ends here."""

    children: dict[int, ChoiceNode] = field(default_factory=dict)
    ends: bool = False
    mask: Tensor | None = None


class Choices:
    """One of several strings, as a tree of their tokens; each is token_ids as its tokenizer spells it."""

    def __init__(self, token_ids: Sequence[Sequence[int]], vocab: int, eos: frozenset[int]) -> None:
        self.root, self.vocab, self.eos = ChoiceNode(), vocab, eos
        for ids in token_ids:
            node = self.root
            for token in ids:
                node = node.children.setdefault(token, ChoiceNode())
            node.ends = True
            if not ids:
                raise InputError("choices has an empty text", hint="leave it out")
        if not eos and any(node.ends and node.children for node in all_nodes(self.root)):
            raise InputError(
                "one of the choices begins another, and this model has no end token",
                hint="give one with `eos=`",
            )

    def start(self) -> ChoiceNode:
        return self.root

    def allowed_tokens(self, state: ChoiceNode) -> Tensor:
        if state.mask is None:
            state.mask = torch.zeros(self.vocab, dtype=torch.bool)
            state.mask[[*state.children, *(self.eos if state.ends else ())]] = True
        return state.mask

    def next(self, state: ChoiceNode, token: int) -> ChoiceNode:
        return state.children.get(token, ChoiceNode(ends=True))  # what ends a choice leads nowhere

    def complete(self, state: ChoiceNode) -> bool:
        return not state.children


def all_nodes(node: ChoiceNode) -> list[ChoiceNode]:
    return [node, *(deeper for child in node.children.values() for deeper in all_nodes(child))]


@dataclass(eq=False)
class GrammarState:
    """A place in a grammar; the mask is computed once, also when several beams ask for it."""

    matcher: Any
    mask: Tensor | None = None


class Grammar:
    """A regular expression or a JSON schema, compiled by llguidance."""

    def __init__(self, tokenizer: Any, grammar: str, vocab: int, eos: frozenset[int], name: str) -> None:
        roles = (tokenizer.eos, tokenizer.pad, tokenizer.unk, tokenizer.bos, vocab - 1)
        stand_in = next(i for i in roles if i is not None)  # llguidance wants an end, also where none may be
        self.vocab, self.never = vocab, None if eos else stand_in
        self.first = import_llguidance().LLMatcher(
            guidance_tokenizer(tokenizer, vocab, eos or frozenset([stand_in])), grammar, log_level=0
        )
        if self.first.is_error():
            reason = str(self.first.get_error()).strip().splitlines()[0]
            raise InputError(f"{name} cannot be followed: {reason}")

    def start(self) -> GrammarState:
        return GrammarState(self.first.deep_copy())

    def allowed_tokens(self, state: GrammarState) -> Tensor:
        if state.mask is None:
            packed = np.frombuffer(state.matcher.compute_bitmask(), np.uint8)
            allowed = np.unpackbits(packed, bitorder="little")[: self.vocab]
            state.mask = torch.zeros(self.vocab, dtype=torch.bool)  # a model may have more rows than tokens
            state.mask[: len(allowed)] = torch.from_numpy(allowed.astype(bool))
            if self.never is not None:
                state.mask[self.never] = False
        return state.mask

    def next(self, state: GrammarState, token: int) -> GrammarState:
        matcher = state.matcher.deep_copy()
        matcher.consume_token(token)
        return GrammarState(matcher)

    def complete(self, state: GrammarState) -> bool:
        return bool(state.matcher.is_stopped())


def import_llguidance() -> Any:
    """Return llguidance; raise MissingPackage if it is not installed."""
    return import_optional("llguidance", "a regex or schema")


# As `json.dumps` writes. With free white space a model that has nothing to say would write blanks for ever.
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@functools.lru_cache(maxsize=4)  # about a second for a large vocabulary
def guidance_tokenizer(tokenizer: Any, vocab: int, eos: frozenset[int]) -> Any:
    """The tokens as llguidance wants them."""
    library = import_llguidance()
    try:
        return library.LLTokenizer(tokenizer.backend.to_str(), n_vocab=vocab, eos_token=sorted(eos))
    except ValueError as error:
        if "Metaspace" not in str(error):
            raise InputError(f"this tokenizer's pieces cannot be matched: {error}") from None
    return library.LLTokenizer(PieceTokenizer(tokenizer), n_vocab=vocab, eos_token=sorted(eos))


class PieceTokenizer:
    """Whole pieces with a mark for the space, as T5's; in the form llguidance asks of a tokenizer."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Any) -> None:
        names = [t.replace("▁", " ") for t in tokenizer.tokens(range(len(tokenizer)))]
        self.tokens = [name.encode() for name in names]
        self.ids = {name: i for i, name in enumerate(names)}
        self.longest = max(map(len, names))
        named = (tokenizer.id(t) for t in tokenizer.roles.values())
        self.special_token_ids = sorted({i for i in named if i is not None})
        self.eos_token_id, self.bos_token_id = tokenizer.eos or 0, tokenizer.bos

    def __call__(self, text: str) -> list[int]:
        """The longest pieces from the left: the tokenizer itself would put a space before the text."""
        ids: list[int] = []
        while text:
            sizes = range(min(len(text), self.longest), 0, -1)
            size = next((n for n in sizes if text[:n] in self.ids), 0)
            if not size:
                break
            ids.append(self.ids[text[:size]])
            text = text[size:]
        return ids


def constrain(model: Model, eos: frozenset[int], settings: GenerationSettings) -> Guide:
    """Return the guide of the form that the settings ask for."""
    given = [name for name in CONSTRAINTS if getattr(settings, name) is not None]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} cannot both be kept", hint="give one of them")
    if model.tokenizer is None:
        raise InputError(f"{given[0]} is about text, and this model has no tokenizer")
    vocab, choices, regex, schema = model.config.vocab, settings.choices, settings.regex, settings.schema
    if choices is not None:
        if isinstance(choices, str) or not choices:
            raise InputError(f"`choices={choices!r}` must be a list of texts, at least one")
        return Choices([model.tokenizer.encode(c, special=False) for c in choices], vocab, eos)
    matcher = import_llguidance().LLMatcher
    try:
        if regex is not None:
            return Grammar(
                model.tokenizer, matcher.grammar_from_regex(regex), vocab, eos, f"`regex={regex!r}`"
            )
        text = schema if isinstance(schema, str) else json.dumps(schema)
        if not isinstance(json.loads(text), dict):
            raise ValueError("it is not an object")
        grammar = matcher.grammar_from_json_schema(text, defaults=JSON_STYLE)
    except (TypeError, ValueError) as error:  # half a surrogate too, which is not text
        raise InputError(
            f"{given[0]} is no {'expression' if regex is not None else 'JSON'}: {error}"
        ) from None
    return Grammar(model.tokenizer, grammar, vocab, eos, "schema")
