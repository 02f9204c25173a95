"""Ask a chat model ten questions of general knowledge, and count the right answers.

    python benchmarks/chat_questions.py smollm2-135m-instruct

An answer of at most 60 tokens, written without sampling, is right if it contains one of the expected words.
The card of the model in `src/heedful/classroom/studio/cards` holds the result, and the studio shows it.
"""

from __future__ import annotations

import re
import sys

QUESTIONS = [
    ("What is the capital of France?", ["Paris"]),
    ("How many legs does a spider have?", ["8", "eight"]),
    ("What is 7 times 8?", ["56", "fifty-six"]),
    ("Who wrote the play Hamlet?", ["Shakespeare"]),
    ("Which planet of our solar system is the largest?", ["Jupiter"]),
    ("What is the chemical symbol for gold?", ["Au"]),
    ("How many days does a leap year have?", ["366"]),
    ("What is the French word for cat?", ["chat"]),
    ("What is 15 plus 27?", ["42", "forty-two"]),
    ("Which ocean lies between Europe and North America?", ["Atlantic"]),
]


def is_right(answer: str, words: list[str]) -> bool:
    """Whether an answer contains one of the expected words, as a word and with its capitals."""
    return any(re.search(rf"\b{re.escape(word)}\b", answer) for word in words)


def main(name: str) -> None:
    import heedful

    chat = heedful.pipeline("conversational", name)
    right = 0
    for question, words in QUESTIONS:
        answer = chat([{"role": "user", "content": question}], max_new_tokens=60, do_sample=False)
        text = answer.messages[-1]["content"]
        right += is_right(text, words)
        print("right" if is_right(text, words) else "wrong", question, "->", " ".join(text.split()))
    print(f"{right} of {len(QUESTIONS)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
