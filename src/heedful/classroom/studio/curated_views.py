"""Curated views: views worth opening, each set to the model, layer, head and row that show what it promises.

A curated view has a caption, which says what is shown, and a notice, which says what to look for. What they
say of the model is its promise, as a value: a test holds every promise against the model.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from heedful.classroom.arithmetic.explain import sentences


@dataclass(frozen=True)
class Looks:
    """In the head of the address, `query` gives its largest weight to `key`, and at least this much."""

    query: str
    key: str
    at_least: float


@dataclass(frozen=True)
class Predicts:
    """The likeliest word behind the text, or at its mask, with at least this probability."""

    word: str
    at_least: float


@dataclass(frozen=True)
class Falls:
    """Without the heads that the address switches off, a word's probability falls from one to the other."""

    word: str
    at_least: float
    at_most: float


@dataclass(frozen=True)
class Sharpens:
    """Without the division by √dₖ the largest weight of a row grows: from at most one, to at least other."""

    query: str
    at_most: float
    at_least: float


@dataclass(frozen=True)
class Answers:
    """The task of the address gives an answer that begins with this text, or has it as its first choice."""

    text: str


@dataclass(frozen=True)
class Ranks:
    """A word is among the first so many answers of the analogy."""

    word: str
    at_most: int


@dataclass(frozen=True)
class Works:
    """The page works out this exercise, or this topic of the model."""

    what: str


@dataclass(frozen=True)
class Moves:
    """Moving the tokens changes the prediction by at least this KL in nats; the encoding is of this type."""

    kind: str
    at_least: float


@dataclass(frozen=True)
class Echoes:
    """The lens at the embedding predicts the token itself at every position."""


@dataclass(frozen=True)
class Parallel:
    """The arrows of an analogy have at least this cosine in the picture, and that one in all dimensions."""

    in_picture: float
    in_space: float


@dataclass(frozen=True)
class Mixes:
    """Tokens of a model reach each other in this way."""

    model: str
    by: str


@dataclass(frozen=True)
class Reads:
    """A model reads the drawn text of the address, and looks farther right for each of its characters."""

    text: str


Promise = (
    Echoes | Looks | Predicts | Falls | Sharpens | Answers | Works | Moves | Mixes | Parallel | Ranks | Reads
)


@functools.cache
def example_texts() -> dict[str, str]:
    """The example sentences by their names."""
    return {id: row["text"] for id, row in sentences().items()}


@dataclass(frozen=True)
class CuratedView:
    """A view of the studio: `page` and `address` say where it is, `text` what is read there."""

    id: str
    title: str
    caption: str
    notice: str
    model: str
    page: str
    address: Mapping[str, str | int] = field(default_factory=dict)
    text: str = ""  # or the name of an example sentence
    promises: tuple[Promise, ...] = ()
    part: str = ""  # of the page that the caption speaks of; its first figure or answer by default

    @property
    def models(self) -> tuple[str, ...]:
        """The models that the view shows: Compare has two."""
        both = ("a", "b") if self.page == "compare" else ()
        return tuple(dict.fromkeys([self.model, *(str(self.address[side]) for side in both)]))

    def to_dict(self) -> dict[str, Any]:
        """Return the view as the page reads it; `with` is its whole address."""
        text = example_texts().get(self.text, self.text)
        here = {"x": text} if text else {}
        return {
            "id": self.id, "title": self.title, "caption": self.caption, "notice": self.notice,
            "question": self in QUESTIONS, "page": self.page, "part": self.part,
            "text": text,
            "with": {k: str(v) for k, v in ({"m": self.model} | here | dict(self.address)).items()},
        }  # fmt: skip


READS = "The old man reads a book."

# The questions that people come with.
QUESTIONS: tuple[CuratedView, ...] = (
    CuratedView(
        "tired", "What does “it” attend to?",
        "Layer 3, head 1 of a masked language model, the row of the query “it”. It reads both ways, so "
        "“it” sees the end of the sentence.",
        "“it” gives its largest weight to “animal”. Open the same sentence with “wide” at the end: the "
        "largest weight moves to “street”.",
        "masked", "attention", {"l": 3, "h": 1, "q": 10}, "tired", (Looks("it", "animal", 0.45),),
    ),
    CuratedView(
        "scale", "Why divide by √dₖ?",
        "One head twice: softmax(q·k / √dₖ) as the model computes it, and softmax(q·k) without the "
        "division, from the same queries and keys. dₖ is 32 here.",
        "Without the division the scores are √32 ≈ 5.7 times as large, and the softmax gives nearly all "
        "weight to one key: the query “it” has about half its weight on “animal” with the division and "
        "nearly all without. Where a softmax is saturated its gradient is nearly 0.",
        "masked", "attention", {"l": 3, "h": 1, "q": 10, "of": "unscaled"}, "tired",
        (Sharpens("it", 0.6, 0.98),),
    ),
    CuratedView(
        "masking", "What does masking do?",
        "A decoder over “She opened the”: the causal mask hides every key to the right of the query, "
        "the hatched cells. They have no weight at all.",
        "The first row has one key left, itself, and so weight 1. Put the pointer on a hatched cell. "
        "Because no token sees a later one, one pass predicts the next word at every position at once.",
        "prose", "attention", {"l": 4, "h": 0, "q": 0}, "She opened the", (Looks("She", "She", 0.999),),
    ),
    CuratedView(
        "without-head", "What happens without this head?",
        "Layer 4, head 0 is switched off. With it, “the” gives nearly all its weight to “opened”, and the "
        "likeliest next word is “door”.",
        "Read the table of the next words, before and after: the probability of “door” falls to less than "
        "half. Switch the head on again, or another one off.",
        "prose", "attention", {"l": 4, "h": 0, "q": 2, "off": "blocks.4.attn:0"}, "She opened the",
        (Looks("the", "opened", 0.85), Falls("door", 0.5, 0.25)),
    ),
    CuratedView(
        "alignment", "Bahdanau’s alignment of my sentence",
        "A recurrent encoder-decoder with Bahdanau’s attention translates into German. A row is the word "
        "that is written, a column a word of the source.",
        "“Mann” is written while the decoder looks at “man”, “Buch” at “book”. Type your own English "
        "sentence above and press Run.",
        "rnnsearch-en-de", "attention", {"words": "1"}, READS,
        (Looks("Mann", "man", 0.6), Looks("Buch", "book", 0.5)),
    ),
    CuratedView(
        "cross-attention", "Where does a Transformer look while it translates?",
        "Cross-attention of layer 3, head 2: queries from the decoder, keys and values from the encoder. "
        "A row is the word that is written.",
        "Each German word looks at its English one. Move the slider “Written token” to go through the "
        "translation word by word.",
        "translate-en-de", "attention", {"g": "decoder.cross", "l": 3, "h": 2, "q": 0}, READS,
        (Looks("Der", "The", 0.9), Looks("alte", "old", 0.8), Looks("Mann", "man", 0.9),
         Looks("liest", "read", 0.9), Looks("Buch", "book", 0.9)),
    ),
    CuratedView(
        "positions", "What does the positional encoding add?",
        "The sinusoids of a translator: one row per position, added to the vector of the token there.",
        "Low dimensions turn quickly, high ones slowly, so every row is different and near rows are alike. "
        "Below, the tokens are shuffled: the prediction moves by more than half a nat. With the vectors of "
        "positions set to 0 it does not move at all.",
        "translate-en-de", "positions", {}, "The student is eating an apple.", (Moves("sinusoidal", 0.5),),
    ),
    CuratedView(
        "hello", "How does an RNN read “hello”?",
        "A recurrent network with three cells reads h, e, l, l and says after each letter which one "
        "follows: every product and every sum of it.",
        "The new state hₜ is made of the letter and of the state before it, hₜ₋₁. That is how the second l "
        "leads to “o” and the first to “l”, although the letter is the same.",
        "prose", "steps", {"ex": "hello"}, "", (Works("hello"),),
    ),
    CuratedView(
        "analogy", "king − man + woman",
        "Word vectors of 64 dimensions, on the plane of the mean difference between man and woman, king and "
        "queen, and of the one between man and king, woman and queen.",
        "On this plane the arrow from “man” to “woman” is parallel to the one from “king” to “queen”. The "
        "word “queen” is among the three nearest to king − man + woman, those of the sum left out: the list "
        "beside the picture is found in all dimensions.",
        "words", "space", {"tab": "analogy", "a": "man", "b": "king", "c": "woman", "d": "queen"}, "",
        (Ranks("queen", 3), Parallel(0.98, 0.4)),
    ),
    CuratedView(
        "sampling", "What do temperature and top-k do?",
        "The next word behind “She opened the”: logits, divided by the temperature 0.7, cut to the 5 "
        "likeliest, made to sum to 1, and one drawn.",
        "Move the temperature: near 0 only “door” is left, above 1 rare words gain. Change the seed to "
        "draw again.",
        "prose", "predict", {"T": "0.7", "topk": 5}, "She opened the", (Predicts("door", 0.5),),
    ),
    CuratedView(
        "beams", "What does beam search weigh?",
        "A translation with 4 beams: at each step the 4 best beginnings are continued, and the 4 best of "
        "all continuations kept.",
        "Grey and dashed branches were pruned. The score of a branch is the sum of its log "
        "probabilities; of a finished one, divided by its length to the power that is named below.",
        "translate-en-de", "play", {"task": "translation", "beams": 4, "go": "1"}, READS,
        (Answers("Der alte Mann liest ein Buch."),), "search",
    ),
    CuratedView(
        "mamba", "Mamba against attention",
        "One text, read by a Transformer and by a Mamba of about as many weights, which learnt from half of "
        "the same novels. A Transformer looks at every earlier token in one step; a Mamba carries a state of "
        "fixed size along.",
        "The weights of the Transformer are positive and sum to 1 in each row; the effective attention of "
        "the Mamba is signed. Below stand their losses by position, the gradient by distance and, when you "
        "press the button, their speeds by length.",
        "prose", "compare", {"a": "prose", "b": "prose-mamba"}, "She opened the door and looked into the",
        (Mixes("prose", "attention"), Mixes("prose-mamba", "state space")),
    ),
    CuratedView(
        "picture", "Where does a model look in a picture?",
        "A vision encoder has cut a picture of “2026” into 24 patches; the decoder writes what it reads, "
        "one character after another, by cross-attention over the patches.",
        "The picture stands there once for each character, tinted where the model looks while it writes it: "
        "from left to right. Choose “Write by hand” and write a number of your own.",
        "digits", "play", {"task": "image-to-text", "go": "1"}, "2026", (Reads("2026"),),
    ),
)  # fmt: skip

# The example sentences that are not among the questions.
SENTENCES: tuple[CuratedView, ...] = (
    CuratedView(
        "wide", "What “it” attends to now",
        "Layer 3, head 1, the row of the query “it”: the same head as for “tired”, and one word changed.",
        "The largest weight is now on “street”, which is what can be too wide.",
        "masked", "attention", {"l": 3, "h": 1, "q": 10}, "wide", (Looks("it", "street", 0.3),),
    ),
    CuratedView(
        "cat", "From tokens to the next word",
        "What each layer of a small GPT-2 would predict behind every token, if it were the last layer.",
        "At the bottom each token predicts itself; towards the top the predictions become words that "
        "may follow.",
        "prose", "layers", {}, "cat", (Echoes(), Predicts("⏎", 0.2)),
    ),
    CuratedView(
        "cat-mask", "What a mask attends to",
        "Layer 2, head 1 of a masked language model, the row of the query [MASK].",
        "It looks at “sat” and “on”: somebody sat on something. The mask stands last, so nothing behind "
        "it helps.",
        "masked", "attention", {"l": 2, "h": 1, "q": 6}, "cat-mask", (Looks("[MASK]", "sat", 0.4),),
    ),
    CuratedView(
        "popcorn-mask", "A mask that needs what comes after it",
        "Layer 5, head 10 of a masked language model, the row of the query [MASK].",
        "The largest weights are on “eating” and “popcorn”, four and five tokens later. A decoder could "
        "not look there.",
        "masked", "attention", {"l": 5, "h": 10, "q": 5}, "popcorn-mask", (Looks("[MASK]", "eating", 0.2),),
    ),
    CuratedView(
        "fox", "A whole block, number by number",
        "One block of a small GPT-2 at its last token: norm, attention, the residual sum, norm, the "
        "feed-forward layers, the residual sum.",
        "The input goes around both parts: each only adds to it.",
        "prose", "steps", {"topic": "block"}, "fox", (Works("block"),),
    ),
    CuratedView(
        "orange", "“apple” beside an orange",
        "Layer 0, head 10, the row of the query “apple”.",
        "It looks at “orange”, three tokens later: what “apple” is here is told by its company.",
        "masked", "attention", {"l": 0, "h": 10, "q": 4}, "orange", (Looks("apple", "orange", 0.5),),
    ),
    CuratedView(
        "watch", "“apple” before a watch",
        "Layer 1, head 8, the row of the query “apple”.",
        "Nearly all its weight is on “watch”: the same word, another meaning, and so another vector.",
        "masked", "attention", {"l": 1, "h": 8, "q": 4}, "watch", (Looks("apple", "watch", 0.85),),
    ),
    CuratedView(
        "eating", "Ranked continuations",
        "The next word behind “I was eating”, by a small GPT-2 that has read Victorian novels.",
        "Articles come first: they can begin any meal. Drag the temperature down and up.",
        "prose", "predict", {}, "eating", (Predicts("the", 0.1),),
    ),
    CuratedView(
        "dragons", "Two heads, each over the whole text",
        "Layer 2, head 4, the row of the query “They”.",
        "This head looks at “Dragons”, the noun that “They” stands for. Choose layer 1, head 7: there "
        "the same query looks at “creatures”.",
        "masked", "attention", {"l": 2, "h": 4, "q": 5}, "dragons", (Looks("they", "dragons", 0.7),),
    ),
    CuratedView(
        "harry", "A story continued",
        "A GPT-2 of 1.5 million weights continues the text, the likeliest token at each step.",
        "Taking the likeliest token again and again soon repeats itself. Raise the temperature to 0.8 "
        "and run it again.",
        "prose", "play", {"task": "text-generation", "go": "1"}, "harry", (Answers(","),),
    ),
    CuratedView(
        "student", "Who eats whom: order (1)",
        "Layer 1, head 4, the row of the query “eating”.",
        "It looks at “apple”, behind the verb. Open the same words in the other order: it looks at "
        "“student” then.",
        "masked", "attention", {"l": 1, "h": 4, "q": 4}, "student", (Looks("eating", "apple", 0.4),),
    ),
    CuratedView(
        "apple", "Who eats whom: order (2)",
        "Layer 1, head 4, the row of the query “eating”: the same words as before, in another order.",
        "It looks at what stands behind the verb, now “student”. Only the positions differ.",
        "masked", "attention", {"l": 1, "h": 4, "q": 4}, "apple", (Looks("eating", "student", 0.5),),
    ),
    CuratedView(
        "dog", "dog bites man, man bites dog",
        "Sentences compared by the cosine of their vectors, as a small sentence encoder makes them.",
        "The same words in the other order come out nearest, nearer than a sentence that says the same: "
        "such vectors know little of who bites whom.",
        "all-minilm-l6-v2", "play",
        {"task": "sentence-similarity", "list": "man bites dog\na dog bit a man\ncat eats fish", "go": "1"},
        "dog", (Answers("man bites dog"),),
    ),
    CuratedView(
        "how", "Translated, word by word",
        "A Transformer with five layers on each side translates into German.",
        "“How are you?” has no German translation word by word: “Wie geht es dir?” is learnt as a whole. "
        "Follow the link Attention below the answer.",
        "translate-en-de", "play", {"task": "translation", "go": "1"}, "how", (Answers("Wie geht es dir?"),),
    ),
    CuratedView(
        "motel", "Nearest to a Seattle motel",
        "Sentences compared by the cosine of their vectors.",
        "“Seattle hotel” comes first: neither is a copy of the other, but they are used alike. As "
        "one-hot vectors, motel and hotel would have nothing in common.",
        "all-minilm-l6-v2", "play",
        {"task": "sentence-similarity", "list": "Seattle hotel\nBoston hotel\na bag of apples", "go": "1"},
        "motel", (Answers("Seattle hotel"),),
    ),
    CuratedView(
        "hotel", "Nearest to a Seattle hotel",
        "Sentences compared by the cosine of their vectors, the other way round.",
        "The cosine is the same in both directions.",
        "all-minilm-l6-v2", "play",
        {"task": "sentence-similarity", "list": "Seattle motel\nBoston motel\na bag of apples", "go": "1"},
        "hotel", (Answers("Seattle motel"),),
    ),
    CuratedView(
        "counselor", "Distance between words that interact",
        "Layer 3, head 1, the row of the query “frame”.",
        "The verb reaches its object “situation” in one step, whatever stands between. A recurrent "
        "network needs a step for every token between.",
        "masked", "attention", {"l": 3, "h": 1, "q": 4}, "counselor", (Looks("frame", "situation", 0.7),),
    ),
    CuratedView(
        "fickle", "Sentiment of a sentence",
        "A classifier of English sentences: positive or negative.",
        "One word decides: put “lovely” in the place of “fickle”.",
        "sentiment", "play", {"task": "text-classification", "go": "1"}, "fickle", (Answers("NEGATIVE"),),
    ),
)  # fmt: skip


def curated_views() -> list[CuratedView]:
    """Return every curated view: first the questions, then the other example sentences."""
    return [*QUESTIONS, *SENTENCES]
