"""Tokenizer: one published vocabulary and the rules that go with it."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import tokenizers

from heedful.core.errors import HeedfulError, InputError

NO_LIMIT = int(1e30)  # what transformers says of a tokenizer that sets none
ROLES = ("bos", "eos", "pad", "unk", "mask", "cls", "sep")
LONG_TEXT = 10_000  # characters that take the library milliseconds
USUAL_CHARACTERS, MAX_CHARACTERS = 8, 128  # per token: more than prose has, and more than anything but spaces
CHANGED_TOKENS = 128  # that a cut may change before it: those of one word, which WordPiece reads up to 100 of


class Piece(NamedTuple):
    """One token of a text: its id, its name in the vocabulary, and which characters it stands for."""

    id: int
    token: str
    start: int
    end: int


class SpecialId:
    """The id of the special token that its owner has for a role, or None."""

    def __set_name__(self, owner: type, role: str) -> None:
        self.role = role

    def __get__(self, tokenizer: Tokenizer, owner: type | None = None) -> int | None:
        token = tokenizer.roles.get(self.role)
        return None if token is None else tokenizer.id(token)


class Tokenizer:
    """text ↔ ids. `roles` names the special tokens by what they are for: {"bos": "<s>", …}; others are None.

    A tokenizer never cuts or pads: that is the business of whoever makes the batch.
    """

    bos = SpecialId()  # begins a text
    eos = SpecialId()  # ends a text
    pad = SpecialId()  # fills up a batch
    unk = SpecialId()  # stands for what the vocabulary does not have
    mask = SpecialId()  # hides a word
    cls = SpecialId()  # its vector stands for the whole text
    sep = SpecialId()  # stands between two texts

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        roles: Mapping[str, str] | None = None,
        chat_template: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend, self.chat_template = backend, chat_template
        self.roles = {
            r: t for r, t in (roles or {}).items() if r in ROLES and backend.token_to_id(t) is not None
        }
        self.settings = dict(settings or {})  # the tokenizer_config.json it came with

    def __len__(self) -> int:
        """How many ids there are, added tokens included."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def __repr__(self) -> str:
        kind = type(self.backend.model).__name__
        roles = ", ".join(f"{role}={token!r}" for role, token in self.roles.items())
        return f"Tokenizer({kind}, {len(self):,} tokens, {roles})"

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Return the ids of a text; `special` adds what its model was trained with ([CLS] … [SEP])."""
        return self.encoding(text, special=special).ids

    def __call__(
        self, text: str | Sequence[str], text_pair: str | None = None, *, add_special_tokens: bool = True
    ) -> dict[str, Any]:
        """Return {"input_ids", "attention_mask"} of a text, of two, or lists of these for a list of texts.

        For code that comes from transformers, to look at ids; ours says `encode`. With two texts, or if the
        model reads them, there are "token_type_ids" too.
        """
        if not isinstance(text, str):
            rows = [self(one, add_special_tokens=add_special_tokens) for one in text]
            return {name: [row[name] for row in rows] for name in (rows[0] if rows else ("input_ids",))}
        encoding = self.encoding(text, text_pair, add_special_tokens)
        fields = {"input_ids": encoding.ids, "attention_mask": encoding.attention_mask}
        typed = text_pair is not None or "token_type_ids" in self.settings.get("model_input_names", ())
        return fields | ({"token_type_ids": encoding.type_ids} if typed else {})

    def encode_pair(self, first: str, second: str, special: bool = True) -> tuple[list[int], list[int]]:
        """Return the ids of two texts as one sequence, and the text each belongs to (BERT's token types)."""
        encoding = self.encoding(first, second, special)
        return encoding.ids, encoding.type_ids

    def beginning(self, text: str, max_tokens: int) -> str:
        """Return a beginning of a text with more than `max_tokens` tokens, or the whole text if it is short.

        A text of megabytes takes seconds and gigabytes to encode, while a model reads a few hundred tokens of
        it. The first `max_tokens` tokens of the beginning are those of the text. The beginning never has more
        than 128 characters per token, so spaces without end, which some tokenizers drop, are bounded as well.
        """
        tokens = max_tokens + CHANGED_TOKENS
        size = USUAL_CHARACTERS * tokens
        while len(text) > size:
            start = text[:size]
            if size >= MAX_CHARACTERS * tokens or len(self.encode(start, special=False)) >= tokens:
                return start
            size *= 4
        return text

    def encode_all(self, texts: Iterable[str], special: bool = True) -> list[list[int]]:
        """Return the ids of many texts, encoded on all cores."""
        try:
            return [e.ids for e in self.backend.encode_batch_fast(list(texts), add_special_tokens=special)]
        except BaseException as error:
            raise _encoding_failure(error, "these texts cannot be encoded") from None

    def split(self, text: str, special: bool = True) -> list[Piece]:
        """Return the pieces of a text: ids, tokens and offsets. An added special token has an empty span."""
        e = self.encoding(text, special=special)
        try:
            return [Piece(i, t, *span) for i, t, span in zip(e.ids, e.tokens, e.offsets, strict=True)]
        except ValueError as error:  # a post-processor that names more tokens than ids
            raise _encoding_failure(error, f"{text!r:.40} cannot be split") from None

    def offsets(self, text: str, special: bool = True) -> list[tuple[int, int]]:
        """Return the first character of each piece and the one after its last."""
        return self.encoding(text, special=special).offsets

    def encoding(self, text: str, pair: str | None = None, special: bool = True) -> tokenizers.Encoding:
        """Return the library's own record of a text, or of two: ids, tokens, offsets, token types."""
        for value in (text, "" if pair is None else pair):
            if not isinstance(value, str):
                raise InputError(
                    f"encode takes one string, not {type(value).__name__}", hint="for many use encode_all"
                )
        try:
            if len(text) + len(pair or "") <= LONG_TEXT:
                return self.backend.encode(text, pair, add_special_tokens=special)
            # A batch of one gives up the interpreter's lock, which `encode` keeps until it is done.
            one = text if pair is None else (text, pair)
            return self.backend.encode_batch([one], add_special_tokens=special)[0]
        except TypeError:  # its word for a lone surrogate, what Python makes of bytes that are no UTF-8
            raise InputError(f"{text!r:.40} holds half a character", hint="give valid UTF-8") from None
        except BaseException as error:
            raise _encoding_failure(error, f"{text!r:.40} cannot be encoded") from None

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Return the text of ids."""
        self._check(ids)
        try:
            return str(self.backend.decode(list(ids), skip_special_tokens=skip_special))
        except BaseException as error:
            raise _encoding_failure(error, f"the ids {ids!s:.40} cannot be decoded") from None

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the names of ids in the vocabulary: "Ġworld", "##ing", "▁the"."""
        self._check(ids)
        # Some vocabularies have holes that the model's table was rounded up over.
        return [str(t) if (t := self.backend.id_to_token(i)) is not None else f"<{i}>" for i in ids]

    def _check(self, ids: Sequence[int]) -> None:
        try:
            low = min(map(operator.index, ids), default=0)
        except TypeError:
            raise InputError(f"ids are a list of whole numbers, not {str(ids)[:40]!r}") from None
        if low < 0:
            hint = f"they are 0 … {len(self) - 1}; was a loss's padding left in?"
            raise InputError(f"{low} is not a token id", hint=hint)

    def id(self, token: str) -> int | None:
        """Return the id of a token by its name in the vocabulary; None if it is not there."""
        number = self.backend.token_to_id(token)
        return None if number is None else int(number)

    if not TYPE_CHECKING:  # for code that comes from transformers; ours says `mask` and `roles["mask"]`

        def __getattr__(self, name: str) -> int | str | None:
            """What transformers calls mask_token, eos_token_id … and model_max_length."""
            if name == "model_max_length":
                return int(self.settings.get(name) or NO_LIMIT)
            role, separator, end = name.partition("_token")
            if role not in ROLES or not separator or end not in ("", "_id"):
                raise AttributeError(f"a Tokenizer has no {name!r}")
            return getattr(self, role) if end else self.roles.get(role)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], generation_prompt: bool = True, **values: Any
    ) -> str:
        """Return a conversation as the text its model was trained on; `generation_prompt` opens the answer.

        `values` are what else its template reads: tools, documents, enable_thinking …
        Encode the result with special=False: the template writes the special tokens itself.
        """
        if self.chat_template is None:
            raise InputError("this tokenizer has no chat template: its model was not trained to converse")
        from heedful.text.chat_templates import render_chat  # Jinja is for those who converse

        return render_chat(
            self.chat_template, messages=list(messages), add_generation_prompt=generation_prompt,
            **{f"{role}_token": token for role, token in self.roles.items()}, **values,
        )  # fmt: skip


def typed_failure(
    error: BaseException, kind: type[HeedfulError], message: str, hint: str | None = None
) -> BaseException:
    """Return `kind` with the reason of the `tokenizers` library; an error of ours comes back as it is.

    The library raises bare Exception; and a limit it runs into (of a regular expression, say) is a panic,
    which is not an Exception and would pass every handler up to the terminal.
    """
    panicked = type(error).__name__ == "PanicException"
    own = isinstance(error, HeedfulError | OSError | MemoryError)
    if own or not (panicked or isinstance(error, Exception)):
        return error
    reason = " ".join(str(error).split()) or type(error).__name__
    return kind(f"{message} ({reason!r:.200})", hint=hint)


def _encoding_failure(error: BaseException, message: str) -> BaseException:
    """Return the error of well-formed text or ids that the library cannot take: its rules are at fault."""
    hint = "its tokenizer files are damaged, or lack a token for what is unknown"
    return typed_failure(error, InputError, message, hint)
