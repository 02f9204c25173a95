"""The reader of digits and words that comes with heedful: image to text.

    python -m bundle.digits [--seconds 420] [--processes 11] [--graph] [--out FOLDER] [--device cuda]

Handwritten digits of scikit-learn, one to six joined into a picture, and English words drawn in Pillow's own
font. A picture is drawn anew whenever it is read: other handwriting, other places and sizes. A fifth of the
handwriting and a tenth of the words are never learnt from: the score is the share of 1,000 pictures of those
that are read without a mistake. Pictures to learn from vary more than those: handwriting is slanted and
stretched, every seventh text stands anywhere in the picture, and two numbers of five are printed.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

import heedful
from bundle import SCRATCH
from bundle.ahead import made_ahead
from bundle.cards import Card, write_card
from bundle.timed import learn, options, parsed, places, seeded, write_sample
from heedful import data
from heedful.classroom.experiments import ledger
from heedful.data.batches import seeded_generator
from heedful.models.base import Model
from heedful.nn.init import initialise

NAME = "digits"
HEIGHT, WIDTH = 16, 96  # of what the model reads; other pictures are resized to it
SIZES: dict[str, Any] = dict(
    decoder="gpt2", dim=64, layers=2, heads=4, hidden=192, context=16, dropout=0.0,
    height=HEIGHT, width=WIDTH, channels=1, patch=8,
    encoder_dim=64, encoder_layers=3, encoder_heads=4, encoder_hidden=192,
)  # fmt: skip
TEXTS, HELD = 150_000, 500  # pictures to learn from, and of each kind to measure on
LETTERS = "abcdefghijklmnopqrstuvwxyz"
CARD = Card(
    "digits and words written in a small picture", "image-to-text",
    "UCI optical recognition of handwritten digits (1,797 images of scikit-learn), and English words drawn "
    "by Pillow", "CC BY 4.0; Pillow's font (Aileron) CC0",
    "1,000 pictures of unseen handwriting and unseen words, exact match",
)  # fmt: skip


@dataclass(frozen=True)
class Handwriting:
    """Images (N, 8, 8) of digits by the digit they show, ink 0 … 255."""

    by_digit: Sequence[NDArray[np.uint8]]

    @classmethod
    def load(cls, held: bool) -> Handwriting:
        """The digits of scikit-learn: a fifth is held out, the same whatever is trained."""
        from sklearn.datasets import load_digits

        found = load_digits()
        order = seeded_generator(7).permutation(len(found.images))
        order = order[: len(order) // 5] if held else order[len(order) // 5 :]
        ink = (found.images * (255 / 16)).round().astype(np.uint8)
        return cls([ink[[i for i in order if found.target[i] == digit]] for digit in range(10)])


@dataclass(frozen=True)
class Painter:
    """Draws the text of every row, in another way each epoch; a text of digits is joined handwriting.

    `varied` is for learning: more of the numbers are printed, handwriting is slanted, and every seventh
    text is stretched and stands anywhere in the picture.
    """

    texts: Sequence[str]
    handwriting: Handwriting
    seed: int
    varied: bool = False

    def __call__(self, row: int, epoch: int) -> Image.Image:
        rng, text = seeded_generator(self.seed, row, epoch), self.texts[row]
        written = text.isdigit() and rng.random() < (0.6 if self.varied else 0.9)
        ink = self.join_digits(text, rng) if written else draw_word(text, rng)
        anywhere = self.varied and rng.random() < 0.15
        if anywhere:
            wide = min(max(WIDTH, ink.width), round(ink.width * rng.uniform(0.8, 1.4)))
            ink = ink.resize((max(wide, 1), HEIGHT), Image.Resampling.BILINEAR)
        page = Image.new("L", (max(WIDTH, ink.width), HEIGHT), 0)
        room = page.width - ink.width
        room = room if anywhere else min(room, 8)
        page.paste(ink, (int(rng.integers(0, room + 1)), int(rng.integers(-1, 2))))
        grey = np.asarray(page, dtype=np.float32) * rng.uniform(0.75, 1.0)
        noisy = 255 - grey + rng.normal(0, rng.uniform(0, 6), grey.shape)
        return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))

    def join_digits(self, text: str, rng: np.random.Generator) -> Image.Image:
        """Handwritten digits side by side, each of its own size and place."""
        page, at = Image.new("L", (20 * len(text), HEIGHT), 0), 0
        for digit in text:
            some = self.handwriting.by_digit[int(digit)]
            one = Image.fromarray(some[int(rng.integers(len(some)))])
            wide, high = int(rng.integers(11, 17)), int(rng.integers(13, 17))
            if self.varied and rng.random() < 0.5:
                one = slant(one, (wide, high), rng)
            else:
                one = one.rotate(float(rng.uniform(-8, 8)), Image.Resampling.BILINEAR)
                one = one.resize((wide, high), Image.Resampling.BILINEAR)
            page.paste(one, (at, int(rng.integers(0, 17 - high))))
            at += wide + int(rng.integers(-1, 3))
        return page.crop((0, 0, max(at, 1), HEIGHT))


def slant(one: Image.Image, size: tuple[int, int], rng: np.random.Generator) -> Image.Image:
    """A digit of this size, sheared, stretched and moved by a little, its strokes paler or darker."""
    (wide, high), side = size, one.width
    stretch, move = rng.uniform(0.9, 1.15, 2), rng.uniform(-0.4, 0.4, 2)
    across, down = rng.uniform(-0.18, 0.18), rng.uniform(-0.1, 0.1)
    a, b, d, e = side / wide * stretch[0], side / high * across, side / wide * down, side / high * stretch[1]
    c = side / 2 + move[0] - a * wide / 2 - b * high / 2
    f = side / 2 + move[1] - d * wide / 2 - e * high / 2
    turned = one.transform(size, Image.Transform.AFFINE, (a, b, c, d, e, f), Image.Resampling.BILINEAR)
    return turned.point(STROKES[int(rng.integers(len(STROKES)))])


STROKES = [[round(255 * (i / 255) ** power) for i in range(256)] for power in (0.7, 0.85, 1.0, 1.0, 1.2, 1.4)]
FONTS = [ImageFont.load_default(size) for size in range(10, 15)]


def draw_word(text: str, rng: np.random.Generator) -> Image.Image:
    """A word in Pillow's own font, of a random size."""
    font = FONTS[int(rng.integers(len(FONTS)))]
    left, top, right, bottom = (round(side) for side in font.getbbox(text))
    page = Image.new("L", (right - left + 1, HEIGHT), 0)
    ImageDraw.Draw(page).text((-left, (HEIGHT - bottom + top) // 2 - top), text, fill=255, font=font)
    return page


def choose_texts(count: int, words: Sequence[str], seed: int) -> list[str]:
    """Half of them numbers of one to six digits, the others words or letters at random.

    Many are of one or two characters: from those a model learns what each looks like, before it finds out
    where to look for the next one.
    """
    rng = seeded_generator(seed)
    number = lambda: "".join(map(str, rng.integers(0, 10, int(rng.choice([1, 1, 1, 2, 2, 3, 4, 5, 6])))))
    letters = lambda: "".join(rng.choice(list(LETTERS), int(rng.choice([1, 1, 1, 2, 2, 3, 4, 6, 8]))))
    word = lambda: letters() if rng.random() < 0.5 else str(words[int(rng.integers(len(words)))])
    return [number() if i % 2 == 0 else word() for i in range(count)]


def split_words() -> tuple[list[str], list[str]]:
    """English words of two to eight letters, and a tenth of them to measure on."""
    known = [w for w in heedful.Word2Vec.load("words").words if re.fullmatch("[a-z]{2,8}", w)]
    order = seeded_generator(8).permutation(len(known)).tolist()
    cut = len(order) // 10
    return [known[i] for i in order[cut:]], [known[i] for i in order[:cut]]


def measure(model: Model, words: Sequence[str], count: int) -> dict[str, float]:
    """The share of held-out pictures that are read without a mistake."""
    rng, ink = seeded_generator(9), Handwriting.load(held=True)
    numbers = ["".join(map(str, rng.integers(0, 10, 1 + i % 6))) for i in range(count)]
    held = [*numbers, *(str(words[i % len(words)]) for i in range(count))]
    draw = Painter(held, ink, seed=10)
    pictures = [draw(row, 0) for row in range(len(held))]
    read: list[str] = []
    for at in range(0, len(held), 50):
        read += heedful.generate(model, pictures[at : at + 50], max_tokens=14)
    right = np.array([a == b for a, b in zip(held, read, strict=True)])
    return {
        "exact_match": float(right.mean()), "numbers": float(right[:count].mean()),
        "words": float(right[count:].mean()),
    }  # fmt: skip


def build_reader(given: argparse.Namespace) -> Model:
    """The model before the first step: of random weights, or one that was saved."""
    if given.start is not None:
        return heedful.load(given.start, device=given.device, dtype=torch.float32)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    file = SCRATCH / "characters.txt"
    file.write_text("\n".join([*LETTERS, *"0123456789"]), encoding="utf-8")
    tokenizer = heedful.train_tokenizer("char", [str(file)], vocab=64, special=("bos", "eos", "pad", "unk"))
    first = {"vocab": len(tokenizer), "start_token": tokenizer.bos}
    model = heedful.build("vision-encoder-decoder", **first, **SIZES, device=given.device)
    with torch.random.fork_rng():
        torch.manual_seed(given.seed)
        initialise(model, std=SIZES["dim"] ** -0.5)  # the usual 0.02 is for models ten times as wide
    model.tokenizer = tokenizer
    model.image_processor = replace(model.image_processor, mean=(1.0,))  # white is 0, ink below
    model.hf_config = {f"{role}_token_id": getattr(tokenizer, role) for role in ("bos", "eos", "pad")}
    return model


def train(given: argparse.Namespace) -> tuple[Model, dict[str, float]]:
    """The model, saved in 16 bits, and the scores of what was saved."""
    began, model = time.perf_counter(), build_reader(given)
    words, held = split_words()
    texts = choose_texts(given.texts or TEXTS, words, given.seed)
    draw = Painter(texts, Handwriting.load(held=False), given.seed, varied=True)
    drawn = data.image_text(
        draw, texts, model.tokenizer, model.image_processor, start=model.tokenizer.bos, length=16,
        batch=given.batch, seed=given.seed,
    )  # fmt: skip
    config = heedful.TrainConfig(
        steps=given.steps, lr=given.lr, warmup=min(100, given.steps // 10), schedule="linear", final=0.01,
        weight_decay=0.05, betas=(0.9, 0.98), seed=given.seed, graph=given.graph,
    )  # fmt: skip
    until, place = None if given.seconds is None else began + given.seconds, places(NAME, given.out)[0]
    with made_ahead(drawn, given.processes) as batches:
        for step in learn(model, "next_token", batches, config, until):
            if step.number % given.every == 0:
                spent = time.perf_counter() - began
                print(f"{step.number} {step.loss:.3f} lr {step.lr:.1e} {spent:.0f} s", flush=True)
            if given.save and step.number % given.save == 0:
                heedful.save(copy.deepcopy(model).eval().cpu().half(), place)
    small = model.eval().cpu().half().float()
    found = measure(small, held, given.held or HELD)
    heedful.save(small.half(), place)
    return small.float(), found


def commands(given: argparse.Namespace) -> tuple[str, list[list[str]]]:
    """The line that trains it, and the same as steps that `heed verify` takes; both where it goes on."""
    words = ["--seconds", f"{given.seconds:.0f}"] if given.seconds else ["--steps", str(given.steps)]
    words = ["python", "-m", "bundle.digits", *words, *seeded(given)]
    words += ["--processes", str(given.processes)] if given.processes else []
    words += ["--graph"] if given.graph else []
    if given.start is None:
        return " ".join(words), [[*words, "--out", "{work}"]]
    (row,) = json.loads((given.start.parent / "results" / f"{NAME}.json").read_text(encoding="utf-8"))
    line = f"{row['command']} --out begun && {' '.join(words)} --start begun/{NAME}"
    before = [[word.replace("{work}", "{work}/begun") for word in step] for step in row["check"]["steps"]]
    return line, [*before, [*words, "--start", f"{{work}}/begun/{NAME}", "--out", "{work}"]]


def write_results(model: Model, found: dict[str, float], given: argparse.Namespace, seconds: float) -> None:
    """Card, row of the ledger and sample of the model that was saved."""
    out, results, samples = places(NAME, given.out)
    command, steps = commands(given)
    write_card(out, NAME, CARD, found, "exact_match", command, given.seed, {}, None, seconds)
    row = ledger.row(
        f"{CARD.measure}, in per cent: {NAME}, a vision encoder and a decoder of 0.25 M weights",
        round(100 * found["exact_match"], 2), command, seed=given.seed, data_sha256={},
        check={"steps": steps, "read": "figure", "tolerance": 5.0, "data": [], "device": given.device},
    )  # fmt: skip
    ledger.record_rows(results / f"{NAME}.json", [row])
    shown = Painter(["2026", "attention", "70815"], Handwriting.load(held=True), 11)
    read = lambda: "\n".join(heedful.generate(model, [shown(i, 0) for i in range(3)], max_tokens=14))
    write_sample(samples, NAME, lambda: f"{json.dumps(found)}\n\n2026 attention 70815 are read as:\n{read()}")
    print(json.dumps({"figure": round(100 * found["exact_match"], 2), **found}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options(parser)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--every", type=int, default=100, help="steps between two lines about the loss")
    parser.add_argument("--save", type=int, help="steps between two copies of the model, as it is then")
    parser.add_argument("--start", type=Path, help="go on from this model of an earlier run, FOLDER/digits")
    parser.add_argument("--processes", type=int, default=0, help="draw pictures ahead in so many processes")
    parser.add_argument("--graph", action="store_true", help="record a step on a GPU and replay it")
    parser.add_argument("--texts", type=int, help="pictures to learn from")
    parser.add_argument("--held", type=int, help="pictures of each kind to measure on")
    given = parsed(parser, "texts", "held", "save")
    torch.set_num_threads(given.threads or 1)
    began = time.perf_counter()
    model, found = train(given)
    write_results(model, found, given, time.perf_counter() - began)


if __name__ == "__main__":
    main()
