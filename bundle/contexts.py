"""Everyday questions with short contexts, filled from our own lists, to learn beside SQuAD's.

SQuAD's texts are articles; people also ask about two plain sentences in which the nearest fitting word is the
wrong one ("Ann lives in Rome, but Ben lives in Oslo. Where does Ben live?"). A template is a context and
questions with answers; slots of one letter differ from each other: {A}, {B} are people, {P}, {Q} places …
Beside them stand QAMR's questions about single sentences of Wikipedia and Wikinews.
"""

from __future__ import annotations

import gzip
import random
import re
from collections import Counter
from pathlib import Path

from bundle import everyday_texts
from bundle import vocabulary as v
from heedful.data.examples.answer_spans import Question

YEARS = tuple(str(year) for year in range(1890, 2024))
# The kind of word behind each letter; two letters of a kind are two different words.
KINDS = {
    "AB": v.FIRST_NAMES, "PQ": v.PLACES, "TU": v.TIMES, "WV": v.DAYS, "NM": v.NUMBERS, "CD": v.COLOURS,
    "JK": v.JOBS, "OR": v.WORKPLACES, "XI": v.THINGS, "SZ": v.SPOTS, "FG": v.FOODS, "EL": v.SUBJECTS,
    "Hh": v.ANIMALS, "nm": v.PET_NAMES, "rs": v.RELATIVES, "bc": v.HOBBIES, "w": v.REASONS, "de": v.DURATIONS,
    "pq": v.PRICES, "Yy": YEARS, "u": v.BUILDINGS, "o": v.ORGANISATIONS,
}  # fmt: skip
TEMPLATES = """
{A} comes from {P} and {B} from {Q}. | Where does {A} come from? > {P} | Where does {B} come from? > {Q} | Who comes from {Q}? > {B} | Who is from {P}? > {A}
{A} stayed in {P} for the holidays; {B} preferred {Q}. | Where did {A} stay? > {P} | Which place did {B} prefer? > {Q} | Who stayed in {P}? > {A}
I am {A}, I am employed at {O} in {P}. | Where do I work? > {O} | What am I called? > {A} | In which town do I work? > {P} | Who am I? > {A}
This is {A} speaking, I am a {J} with {o}. | Where do I work? > {o} | What is my name? > {A} | What is my job? > {J} | Which company do I work for? > {o}
My {r} works at {O}, and my {s} works at {R}. | Where does my {r} work? > {O} | Where does my {s} work? > {R} | Who works at {R}? > my {s}
{A} has a job at {O}. Her {r} is called {B} and cleans at {R}. | Where does she work? > {O} | Where does {B} clean? > {R} | What is her {r} called? > {B}
He works at {O} while she works at {R}. | Where does she work? > {R} | Where does he work? > {O}
{A} phoned at {T} and {B} phoned at {U}. | When did {A} phone? > {T} | When did {B} phone? > {U} | Who phoned at {U}? > {B}
There are {N} chairs and {M} tables in the room. | How many chairs are there? > {N} | How many tables are in the room? > {M}
The class has {N} girls and {M} boys. | How many boys are in the class? > {M} | How many girls are there? > {N}
The blue team has {N} points, the red team {M}. | How many points does the red team have? > {M} | How many points does the blue team have? > {N}
The hen laid {N} eggs on {W} and {M} on {V}. | How many eggs did it lay on {W}? > {N} | When did it lay {M} eggs? > {V}
The {X} is {S}, and the {I} is {Z}. | Where is the {X}? > {S} | Where is the {I}? > {Z} | What is {Z}? > the {I}
{A} hid the {X} {S}, so that {B} would take the {I}. | Where did {A} hide the {X}? > {S} | Who should take the {I}? > {B} | What should {B} take? > the {I} | Who hid the {X}? > {A}
The {X} is {C}, the {I} is {D}. | What colour is the {X}? > {C} | What colour is the {I}? > {D} | Which thing is {D}? > the {I}
{A} wears a {C} hat and carries a {D} {I}. | What colour is the hat? > {C} | What colour is the {I}? > {D} | Who wears a {C} hat? > {A}
The door was {C} once; now it has been painted {D}. | What colour is the door now? > {D} | What colour was the door once? > {C}
We cycled from {P} to {Q} because {w}. | Where did we start? > {P} | Where did we cycle to? > {Q} | Why did we cycle? > {w} | Where did we come from? > {P}
The match in {P} was stopped because {w}. | Why was the match stopped? > {w} | Where was the match? > {P}
The lesson is on {W}, the exam on {V}. | When is the exam? > {V} | When is the lesson? > {W}
The parcel from {P} arrived on {W}, the letter from {Q} on {V}. | When did the letter arrive? > {V} | When did the parcel arrive? > {W} | Where did the letter come from? > {Q} | Where was the parcel from? > {P}
We keep a {H} named {n} and a {h} named {m}. | Which name has the {h}? > {m} | What is the {H}'s name? > {n} | Which animal is named {m}? > a {h}
{A} lent her {X} to {B}. | Who has the {X} now? > {B} | Who lent the {X}? > {A} | What did {A} lend? > her {X}
{A} swapped a {X} for a {I}. | What does {A} have now? > a {I} | What did {A} have before? > a {X} | Who swapped a {X}? > {A}
The first prize is a {X}, the second prize a {I}. | What is the second prize? > a {I} | What is the first prize? > a {X}
The {u} in {P} was designed by {A} in {Y}. | Who designed the {u}? > {A} | When was it designed? > {Y} | Where is the {u}? > {P}
{A} was elected in {Y}, {B} not before {y}. | When was {A} elected? > {Y} | When was {B} elected? > {y} | Who was elected in {Y}? > {A}
{A} was born in {P} in {Y} and went to {Q} in {y}. | Where was {A} born? > {P} | When was {A} born? > {Y} | When did {A} leave? > {y} | Where did {A} go? > {Q}
{A} reads books about {E}, and {B} about {L}. | What does {A} read about? > {E} | What does {B} read about? > {L} | Who reads about {L}? > {B}
The film is about {E}, the play about {L}. | What is the play about? > {L} | What is the film about? > {E}
{A} plays {b}, her {r} plays {c}. | What does {A} play? > {b} | What does her {r} play? > {c} | Who plays {c}? > her {r}
{A} cannot eat {F} and {B} cannot eat {G}. | What can {B} not eat? > {G} | What can {A} not eat? > {F} | Who cannot eat {F}? > {A}
We rented the {X} for {d} and paid {p}. | How long did we rent the {X}? > {d} | How much did we pay? > {p} | What did we rent? > the {X}
A coffee is {p} and a cake is {q}. | How much is a coffee? > {p} | How much is a cake? > {q} | What is {q}? > a cake
The walk to the {u} takes {d}, by bus it is {e}. | How long does the walk take? > {d} | How long is it by bus? > {e} | Where does the walk lead? > the {u}
The {J} who repaired our {X} comes from {P}. | Who repaired our {X}? > the {J} | Where does the {J} come from? > {P} | What did the {J} repair? > our {X}
Write to {A} if the {X} breaks, and to {B} if the {I} is lost. | To whom should I write if the {I} is lost? > {B} | To whom do I write if the {X} breaks? > {A}
The winner was {A}, {B} came second. | Who won? > {A} | Who came second? > {B} | Who was the winner? > {A}
{A} is older than {B}, but {B} is taller. | Who is taller? > {B} | Who is older? > {A}
The kitchen looks out on the {u}, the bedroom on a {H}. | What does the kitchen look out on? > the {u} | What can be seen from the bedroom? > a {H}
{A} and {B} met in {P} in {Y} and married in {Q}. | Where did they marry? > {Q} | Where did they meet? > {P} | When did they meet? > {Y}
The {J} came on {W} because {w}. | Why did the {J} come? > {w} | When did the {J} come? > {W} | Who came on {W}? > the {J}
{A} grows {F} in the garden and {G} on the balcony. | What grows on the balcony? > {G} | What grows in the garden? > {F} | Who grows {F}? > {A}
""".strip().splitlines()  # noqa: E501


def filled(text: str, chosen: dict[str, str]) -> str:
    return re.sub(r"{(\w)}", lambda slot: chosen[slot[1]], text)


def questions(count: int, seed: int = 0) -> list[Question]:
    """So many questions, each template as often; an answer that stands twice in its context is left out."""
    rng, out, judged = random.Random(seed), list[Question](), everyday_texts()
    while len(out) < count:
        for template in TEMPLATES:
            context, *asked = template.split(" | ")
            chosen = {slot: rng.choice(some) for slots, some in KINDS.items() for slot in slots}
            used = [chosen[name] for name in dict.fromkeys(re.findall(r"{(\w)}", template))]
            text = filled(context, chosen)
            text = text[0].upper() + text[1:]
            one, answer = (filled(part, chosen) for part in rng.choice(asked).split(" > "))
            start = text.lower().find(answer.lower())
            if len(set(used)) == len(used) and text.count(answer) <= 1 and start >= 0 and text not in judged:
                found = text[start : start + len(answer)]
                out.append(Question(f"everyday-{len(out)}", one, text, ((found, start),)))
    return out[:count]


QAMR = tuple(f"qa/qamr/{name}.tsv.gz" for name in ("wiki-sentences", "dev", "test"))
LICENCE = "MIT, sentences of Wikipedia and Wikinews CC BY-SA and CC BY"
BRACKETS = {"-LRB-": "(", "-RRB-": ")", "``": '"', "''": '"', "--": "–"}


def join_words(words: list[str]) -> tuple[str, list[int]]:
    """A sentence of separate words as it is written, and where each word begins."""
    text, starts, quoted = "", list[int](), False
    for word in words:
        closes = word == "''" or re.fullmatch(r"[,.;:!?%]|'\w*|n't|-RRB-", word) is not None
        if text and not closes and not text.endswith("(") and not quoted:
            text += " "
        quoted = word == "``"
        starts.append(len(text))
        text += BRACKETS.get(word, word)
    return text, starts


def short_questions(folder: Path) -> list[Question]:
    """QAMR's questions about single sentences (Michael et al. 2018) that two of three people answer alike."""
    sentences, *parts = (gzip.decompress((folder / name).read_bytes()).decode() for name in QAMR)
    words = dict(line.split("\t") for line in sentences.splitlines())
    out: list[Question] = []
    for line in "".join(parts).splitlines():
        one, *_, asked, first, second, third = line.split("\t")
        votes = Counter([first, *(said.split(":", 1)[1] for said in (second, third))])
        answer, count = votes.most_common(1)[0]
        places = [int(place) for place in answer.split()]
        if count < 2 or places != list(range(places[0], places[-1] + 1)):
            continue
        text, starts = join_words(words[one].split())
        last = words[one].split()[places[-1]]
        begin, end = starts[places[0]], starts[places[-1]] + len(BRACKETS.get(last, last))
        out.append(Question(f"qamr-{len(out)}", asked, text, ((text[begin:end], begin),)))
    return out
