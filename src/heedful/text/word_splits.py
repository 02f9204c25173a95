"""How byte-level vocabularies split text into words before bytes are merged, by the names that GGUF has.

A GGUF file names the way and does not describe it. Each of these is the `pre_tokenizer` of the models that
the name stands for: regular expressions, each applied to what the one before left whole.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from heedful.core.errors import InputError

Step = str | pre_tokenizers.PreTokenizer

ENDINGS = "'s|'t|'re|'ve|'m|'ll|'d"
GPT2 = ENDINGS + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LINES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = (
    rf"(?i:{ENDINGS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{LINES}"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*")  # camel|Case
MARKS_AND_LINES = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{LINES}"
# DeepSeek LLM lists letters that have a case one by one: all, but for a few blocks
LISTED = (
    r"[\p{Lu}\p{Ll}\p{Lt}&&[^\x{560}-\x{588}\x{10C7}-\x{10FF}\x{1C80}-\x{1C8F}\x{2D00}-\x{2D2D}"
    r"\x{A790}-\x{A7FA}\x{AB30}-\x{AB68}\x{10570}-\x{105BC}\x{10D50}-\x{10D8F}\x{16E40}-\x{16E7F}\x{1D400}-\x{1DFFF}]]"
)
IDEOGRAPHS, IDEOGRAPHS_OR_KANA = "[一-龥ࠀ-一가-퟿]+", "[一-龥぀-ゟ゠-ヿ]+"
DEEPSEEK3 = r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + LINES


@dataclass(frozen=True)
class WordSplit:
    """One way to split text into words, and what always goes with it.

    `composed`: text is brought into Unicode's form C first. `whole_words`: a word that the vocabulary has is
    used as it is, even if its bytes merge to another. `adds_bos`: texts begin with bos, unless told no.
    """

    names: tuple[str, ...]  # the first is written
    steps: tuple[Step, ...]
    composed: bool = False
    whole_words: bool = False
    adds_bos: bool = False

    def pre_tokenizer(self, prefix_space: bool = False) -> pre_tokenizers.PreTokenizer:
        """Return it as a part of the `tokenizers` library, which writes each word as letters for its bytes.

        `prefix_space` puts a space before a text; only words split as GPT-2's have one.
        """
        if self.steps == (GPT2,):
            return pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
        steps = [pre_tokenizers.Split(Regex(s), "isolated") if isinstance(s, str) else s for s in self.steps]
        if not any(isinstance(step, pre_tokenizers.ByteLevel) for step in steps):
            steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        return pre_tokenizers.Sequence(steps)


WORD_SPLITS = (
    WordSplit(("gpt-2", "phi-2", "jais", "roberta-bpe", "exaone4", "mellum", "trillion"), (GPT2,)),
    WordSplit(("olmo", "mpt", "modern-bert"), (GPT2,), composed=True),  # as GPT-NeoX
    WordSplit(
        ("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b"),
        (pre_tokenizers.Digits(individual_digits=True), GPT2),
    ),
    WordSplit(("command-r",), (pre_tokenizers.Digits(individual_digits=True), GPT2), composed=True),
    WordSplit(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        (LLAMA3,), whole_words=True, adds_bos=True,
    ),
    WordSplit(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), (LLAMA3,)),
    WordSplit(("qwen2", "stablelm2", "deepseek-r1-qwen", "megrez"), (QWEN2,), composed=True),
    WordSplit(
        ("gpt-4o", "llama4"),
        ("|".join([*(f"{cased}(?i:{ENDINGS})?" for cased in CASED), r"\p{N}{1,3}", MARKS_AND_LINES]),),
    ),
    WordSplit(
        ("tekken",), ("|".join([*CASED, r"\p{N}", MARKS_AND_LINES]),), whole_words=True, adds_bos=True
    ),
    WordSplit(
        ("falcon",),
        (
            pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False),
            pre_tokenizers.Digits(individual_digits=False), "[0-9][0-9][0-9]",
        ),
    ),
    WordSplit(("bloom", "gpt3-finnish", "poro-chat"), (r" ?[^(\s|.,!?…。，、।۔،)]+",)),
    WordSplit(
        ("deepseek-coder",),
        (
            r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", IDEOGRAPHS,
            pre_tokenizers.Digits(individual_digits=True),
        ),
    ),
    WordSplit(
        ("deepseek-llm",),
        (
            r"[\r\n]", rf"\s?{LISTED}+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", IDEOGRAPHS,
            pre_tokenizers.Digits(individual_digits=True),
        ),
    ),
    WordSplit(("deepseek-v3",), (r"\p{N}{1,3}", IDEOGRAPHS_OR_KANA, DEEPSEEK3)),
    # llama.cpp's own, for a file that does not say
    WordSplit(("default",), (r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
)  # fmt: skip
BY_NAME = {name: split for split in WORD_SPLITS for name in split.names}


def find_word_split(name: str) -> WordSplit:
    """Return the way to split text by its name in GGUF."""
    if name not in BY_NAME:
        hint = f"known: {', '.join(BY_NAME)}"
        raise InputError(f"tokenizer.ggml.pre={name!r}: how it splits words is unknown", hint=hint)
    return BY_NAME[name]
