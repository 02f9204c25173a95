"""From tokens to text while they arrive: no character cut in half, no stop string shown."""

from __future__ import annotations

from collections.abc import Sequence

from heedful.models.base import Model, Seq2Seq, Tokenizer

HALF = "\ufffd"  # what decoders write for bytes that are no character yet


class Detokenizer:
    """The text of one row, token by token.

    A token's text depends on its neighbours (bytes of one character, spaces between pieces), so the newest
    few are decoded with and without it, and the difference is new. What ends in half a character waits, and
    so does what may be the beginning of a stop string. `prompt` only gives the first token a neighbour.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, prompt: Sequence[int] = (), stop: Sequence[str] = ()
    ) -> None:
        self.tokenizer, self.stop = tokenizer, tuple(stop)
        self.ids = list(prompt[-8:])  # those whose text is out, as neighbours, and then those that wait
        self.out = len(self.ids)
        self.shown = self._decode(self.ids).rstrip(HALF)  # a prompt may end in half a character
        self.held = ""  # decoded, but perhaps part of a stop string
        self.stopped = False

    def _decode(self, ids: list[int]) -> str:
        return "" if self.tokenizer is None else self.tokenizer.decode(ids)

    def push(self, token: int) -> str:
        """One more token; the text that is certain now."""
        if self.tokenizer is None:
            return ""
        self.ids.append(token)
        text = self._decode(self.ids)
        if len(text) <= len(self.shown) or text.endswith(HALF):
            return ""
        return self._release(self._advance(text))

    def _advance(self, text: str) -> str:
        new = text[len(self.shown) :]
        self.ids = self.ids[self.out :]  # the newest are neighbours enough for the next
        self.out, self.shown = len(self.ids), self._decode(self.ids)
        return new

    def _release(self, new: str) -> str:
        """Return what may be shown of the text so far; the rest may turn out to be a stop string."""
        if not self.stop:
            return new
        text = self.held + new
        found = [at for s in self.stop if (at := text.find(s)) >= 0]
        if found:
            self.stopped, self.held = True, ""
            return text[: min(found)]
        keep = max(overlap(text, s) for s in self.stop)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """The row is done: what was held back, half characters included."""
        if self.tokenizer is None:
            return ""
        text = self._decode(self.ids)
        tail = self._release(self._advance(text)) if len(text) > len(self.shown) else ""
        held, self.held = self.held, ""
        return tail + held


def decode_after(model: Model, prompt: Sequence[int], ids: Sequence[int]) -> str:
    """Return the text of ids that a model wrote after a prompt; an encoder-decoder's follow nothing."""
    text = Detokenizer(model.tokenizer, () if isinstance(model, Seq2Seq) else prompt)
    return "".join([*map(text.push, ids), text.finish()])


def overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that begins `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
