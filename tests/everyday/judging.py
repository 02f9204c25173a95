"""What each task answers on everyday inputs, and whether a person would call it right.

Every list is a table beside this file: inputs with what is accepted. The lists were written before the
models were trained, and nothing is chosen by them; no English sentence of the translation lists is in the
Tatoeba pairs. `python -m tests.everyday.judging [TASK …]` prints the wrong answers and the shares.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import heedful

FOLDER = Path(__file__).parent
NUMBER_WORDS = {
    "2": "two", "3": "three", "4": "four", "5": "five", "6": "six", "7": "seven", "8": "eight", "9": "nine",
    "10": "ten", "20": "twenty", "50": "fifty", "60": "sixty", "80": "eighty", "90": "ninety",
    "200": "two hundred", "300": "three hundred", "400": "four hundred", "500": "five hundred",
    "5,000": "five thousand",
}  # fmt: skip


@dataclass(frozen=True)
class Judgement:
    """One everyday input, the answer, what is accepted, and whether the answer is right."""

    question: str
    answer: str
    accepted: str
    right: bool


def read_table(name: str) -> list[dict[str, str]]:
    """Return the rows of a list by the names of its columns."""
    head, *lines = (FOLDER / f"{name}.tsv").read_text(encoding="utf-8").splitlines()
    columns = head.split("\t")
    return [dict(zip(columns, line.split("\t"), strict=True)) for line in lines]


def plain(text: str) -> str:
    """Return a text in lower case, its words parted by single spaces, without punctuation around them."""
    return " ".join(re.findall(r"[\w'’-]+", text.lower()))


def has_word(text: str, word: str) -> bool:
    """Return whether a word or phrase stands in a text as a whole, whatever its case."""
    return re.search(rf"(?<!\w){re.escape(word.strip())}(?!\w)", text, re.IGNORECASE) is not None


def judge_sentiment() -> list[Judgement]:
    """Compare the label of each sentence."""
    rows = read_table("sentiment")
    found = heedful.pipeline("sentiment-analysis")([row["text"] for row in rows])
    return [
        Judgement(row["text"], one["label"], row["label"], one["label"] == row["label"])
        for row, one in zip(rows, found, strict=True)
    ]


def judge_questions() -> list[Judgement]:
    """Compare the answer with each accepted one, case and punctuation aside."""
    rows = read_table("questions")
    ask, out = heedful.pipeline("question-answering"), []
    for row in rows:
        answer = ask(question=row["question"], context=row["context"])["answer"]
        accepted = [plain(one) for one in row["answers"].split(";")]
        out.append(
            Judgement(
                f"{row['context']} {row['question']}", answer, row["answers"], plain(answer) in accepted
            )
        )
    return out


def judge_entities() -> list[Judgement]:
    """All entities of a sentence, with their types and no others; a title before a name does not matter."""
    out, tag = [], heedful.pipeline("ner", aggregation_strategy="first")
    for row in read_table("entities"):
        found = [(one["entity_group"], one["word"]) for one in tag(row["text"])]
        named = {(kind, re.sub(r"^(The|the|Mr\.?|Dr\.?) ", "", word).strip(" .")) for kind, word in found}
        wanted = {(one.split(" ", 1)[0], one.split(" ", 1)[1]) for one in row["entities"].split("; ") if one}
        answer = "; ".join(f"{kind} {word}" for kind, word in found)
        out.append(Judgement(row["text"], answer, row["entities"], named == wanted))
    return out


def judge_zero_shot() -> list[Judgement]:
    """Compare the first label."""
    out, classify = [], heedful.pipeline("zero-shot-classification")
    for row in read_table("zero_shot"):
        found = classify(row["text"], candidate_labels=row["labels"])
        out.append(
            Judgement(
                f"{row['text']} ({row['labels']})",
                found["labels"][0],
                row["right"],
                found["labels"][0] == row["right"],
            )
        )
    return out


def judge_translation(language: str) -> list[Judgement]:
    """Every group of words has one in the translation, no excluded word is there; it is not much longer."""
    rows = read_table(f"translation_{language}")
    found = heedful.pipeline(f"translation_en_to_{language}")([row["text"] for row in rows])
    out = []
    for row, one in zip(rows, found, strict=True):
        text = one["translation_text"]
        groups = [group.strip() for group in row["words"].split(";")]
        wanted = [group.split("/") for group in groups if not group.startswith("!")]
        excluded = [word for group in groups if group.startswith("!") for word in group[1:].split("/")]
        right = all(any(has_word(text, word) for word in group) for group in wanted)
        right &= not any(has_word(text, word) for word in excluded)
        right &= len(text.split()) <= 2 * len(row["text"].split()) + 1
        out.append(Judgement(row["text"], text, row["words"], right))
    return out


def judge_fill_mask() -> list[Judgement]:
    """One of the first three words is accepted."""
    out, fill = [], heedful.pipeline("fill-mask", top_k=3)
    for row in read_table("fill_mask"):
        words = [one["token_str"].strip() for one in fill(row["text"])]
        out.append(
            Judgement(
                row["text"], ", ".join(words), row["words"], bool({*words} & {*row["words"].split(" / ")})
            )
        )
    return out


def judge_similarity() -> list[Judgement]:
    """The paraphrase is nearer than the other sentence, which shares words or means the opposite."""
    out, compare = [], heedful.pipeline("sentence-similarity")
    for row in read_table("similarity"):
        near, far = compare(row["text"], [row["paraphrase"], row["other"]])
        question = f"{row['text']} | {row['paraphrase']} | {row['other']}"
        out.append(Judgement(question, f"{near:.2f} {far:.2f}", "first > second", near > far))
    return out


def false_statements(text: str, summary: str, statements: list[str]) -> list[str]:
    """Return what a summary says that its text does not: a listed falsehood, a foreign number or name."""
    found = [one for one in statements if re.search(one, summary, re.IGNORECASE)]
    numbers = re.findall(r"\d[\d,.]*\d|\d", summary)
    numbers += [figure for figure, word in NUMBER_WORDS.items() if has_word(summary, word)]
    found += [n for n in numbers if not has_word(text, n) and not has_word(text, NUMBER_WORDS.get(n, n))]
    names = re.findall(r"(?<=[a-z,] )[A-Z][a-z]+", summary)
    return found + [name for name in names if not has_word(text, name)]


def judge_summaries() -> list[Judgement]:
    """A summary names what its text is about, says nothing false, and is shorter than the text."""
    rows = read_table("summaries")
    found = heedful.pipeline("summarization")([row["text"] for row in rows])
    out = []
    for row, one in zip(rows, found, strict=True):
        summary = one["summary_text"]
        wrong = false_statements(row["text"], summary, row["false"].split(" ; "))
        about = any(word.lower() in summary.lower() for word in row["words"].split(" / "))
        right = not wrong and about and len(summary) <= len(row["text"])
        out.append(Judgement(row["text"], summary, f"not: {row['false']}", right))
    return out


# The task, and the share of right answers that is aimed at.
TASKS: dict[str, tuple[Callable[[], list[Judgement]], float]] = {
    "sentiment": (judge_sentiment, 0.90),
    "questions": (judge_questions, 0.90),
    "entities": (judge_entities, 0.90),
    "zero-shot": (judge_zero_shot, 0.90),
    "translation-de": (lambda: judge_translation("de"), 0.80),
    "translation-fr": (lambda: judge_translation("fr"), 0.80),
    "fill-mask": (judge_fill_mask, 0.70),
    "similarity": (judge_similarity, 0.90),
    "summaries": (judge_summaries, 0.80),
}


def describe(judgements: list[Judgement]) -> str:
    """Return the wrong answers, a line each, below how many were right."""
    right = sum(one.right for one in judgements)
    wrong = [
        f"  {one.question}\n    → {one.answer}\n    accepted: {one.accepted}"
        for one in judgements
        if not one.right
    ]
    return "\n".join([f"{right} of {len(judgements)} right ({right / len(judgements):.1%})", *wrong])


if __name__ == "__main__":
    for name in sys.argv[1:] or TASKS:
        judge, goal = TASKS[name]
        print(f"{name} (goal {goal:.0%}): {describe(judge())}", flush=True)
