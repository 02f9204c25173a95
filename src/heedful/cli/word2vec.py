"""`heed word2vec …`: results on stdout, everything else on stderr. Nothing heavy is imported for --help."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.cli.commands import CommandGroup
from heedful.cli.models import Device
from heedful.cli.terminal import Json, as_json
from heedful.core.checks import Argument, Option
from heedful.core.errors import InputError
from heedful.core.progress import show_progress
from heedful.word2vec.hyperparameters import Settings

if TYPE_CHECKING:
    from heedful.word2vec.trainer import Trainer
    from heedful.word2vec.vectors import Ranking, Word2Vec

EXAMPLES = """Train, query, score and convert word vectors.

Examples:
  heed word2vec train corpus.txt -o v.safetensors --epochs 5
  heed word2vec neighbours v.safetensors king
  heed word2vec analogy v.safetensors man king woman
  heed word2vec eval v.safetensors wordvec/
"""

word2vec_command = CommandGroup(EXAMPLES)
CorpusFiles = Annotated[
    list[Path],
    Argument("Files (.txt, .gz, .bz2, .xz) or folders of text, with one sentence or paragraph per line."),
]
VectorsFile = Annotated[
    Path, Argument("A file of vectors: .safetensors, .bin, .txt, .vec, .glove, also .gz.")
]
Word = Annotated[str, Argument("A word of the vocabulary.")]
Lowercase = Annotated[bool, Option("Convert the text to lower case.", ("--lowercase/--no-lowercase",))]
Count = Annotated[int, Option("Show the N best answers.", ("--count", "-n"), minimum=1)]
First = Annotated[int | None, Option("Answer only with the N most frequent words.", minimum=1)]
Method = Annotated[str, Option("Combine the vectors by add (3CosAdd) or mul (3CosMul).")]


@word2vec_command.add("train")
def train_vectors(
    corpus: CorpusFiles,
    settings: Settings,
    output: Annotated[
        Path, Option("Write the vectors to this file; its ending sets the format.", ("--output", "-o"))
    ] = Path("vectors.safetensors"),
    threads: Annotated[
        int | None, Option("Compute in N threads; with 1 the result is always the same. [default: all cores]")
    ] = None,
    lowercase: Lowercase = False,
    split_punctuation: Annotated[bool, Option("Split punctuation from words.")] = True,
    phrases: Annotated[
        int, Option("Join bigrams in N passes first (1: new_york; 2: up to four words).", minimum=0)
    ] = 0,
    device: Device = "cpu",
    checkpoint: Annotated[
        Path | None, Option("Save the run here every few minutes, each epoch, and on Ctrl-C.")
    ] = None,
    resume: Annotated[bool, Option("Continue from --checkpoint.", ("--resume/--no-resume",))] = False,
    json: Json = False,
) -> None:
    """Train word vectors on text."""
    from heedful.word2vec.corpus import Corpus, join_phrases
    from heedful.word2vec.trainer import Trainer
    from heedful.word2vec.vector_files import file_lock, format_of
    from heedful.word2vec.vectors import Word2Vec

    format_of(output)  # a file that cannot be written is better known before the training
    for path in (output, checkpoint or output):
        if path.is_dir():
            raise InputError(f"{path} is a folder", hint=f"name a file in it, such as {path / output.name}")
        path.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(output):
        report = lambda joined: typer.echo(f"phrases: {len(joined.scores):,} pairs joined", err=True)
        text = join_phrases(Corpus(corpus, lowercase, split_punctuation=split_punctuation), phrases, report)
        trainer = Trainer.begin(text, settings, checkpoint, resume)
        counts = trainer.counts
        typer.echo(f"{counts.total:,} words read, {len(counts):,} in the vocabulary", err=True)
        if split_punctuation:
            note = "punctuation is split from words; --no-split-punctuation leaves words as they are"
            typer.echo(note, err=True)
        seconds = _train(trainer, threads, checkpoint, device)
        vectors = Word2Vec.from_trainer(trainer)
        vectors.save(output)
    words, speed = len(vectors), counts.total * settings.epochs / max(seconds, 1e-9)
    size = f"{words:,} words of {settings.dim} dimensions"
    typer.echo(f"{size} in {seconds:.1f} s, {speed:,.0f} words/s", err=True)
    result = {"output": str(output), "words": words, "dim": settings.dim, "loss": vectors.history}
    result |= {"seconds": round(seconds, 3), "words_per_second": round(speed)}
    as_json(result) if json else typer.echo(str(output))


def _train(trainer: Trainer, threads: int | None, checkpoint: Path | None, device: str) -> float:
    """Train and show the progress; return the seconds taken."""
    from heedful.train.recipes.progress import make_reporter

    began, epochs = time.perf_counter(), trainer.settings.epochs
    with closing(make_reporter(epochs * trainer.counts.total, unit="word")) as reporter:
        try:
            for p in trainer.run(threads, checkpoint, device):
                seconds = (p.total - p.words) / max(p.words_per_second, 1e-9)
                reporter.step({
                    "word": p.words, "words": p.total, "epoch": f"{p.epoch + 1}/{epochs}", "loss": p.loss,
                    "lr": p.rate, "words_per_second": p.words_per_second, "eta": seconds,
                })  # fmt: skip
                if p.finished:
                    reporter.report(f"epoch {p.epoch + 1}/{epochs}: loss {p.loss:.4f}")
        except KeyboardInterrupt:
            hint = f"; continue with --resume --checkpoint {checkpoint}" if checkpoint else ""
            reporter.report(f"interrupted{hint}")
            raise typer.Exit(130) from None
    return time.perf_counter() - began


def load_vectors(path: Path, limit: int | None = None) -> Word2Vec:
    """Load word vectors, or only the first ones of a file."""
    with show_progress(f"loading {path}"):
        from heedful.word2vec.vectors import Word2Vec

        return Word2Vec.load(path, limit=limit)


def _show_ranking(ranking: Ranking, json: bool) -> None:
    if json:
        answers = [{"word": word, "score": score} for word, score in ranking]
        return as_json({"answers": answers, "excluded": ranking.excluded})
    typer.echo("\n".join(f"{score:8.4f}  {word}" for word, score in ranking))
    if ranking.excluded:
        typer.echo(f"not among the answers: {', '.join(ranking.excluded)}", err=True)
    return None


@word2vec_command.add("neighbours")
def show_neighbours(
    vectors: VectorsFile, word: Word, count: Count = 10, first: First = None, json: Json = False
) -> None:
    """Show the words with the most similar vectors, by cosine."""
    _show_ranking(load_vectors(vectors).neighbours(word, count, first), json)


@word2vec_command.add("analogy")
def show_analogy(
    vectors: VectorsFile, a: Word, b: Word, c: Word, count: Count = 10, first: First = None,
    method: Method = "add", json: Json = False,
) -> None:  # fmt: skip
    """Complete the analogy “A is to B as C is to …”."""
    _show_ranking(load_vectors(vectors).analogy(a, b, c, count, method, first), json)


@word2vec_command.add("similarity")
def show_similarity(vectors: VectorsFile, a: Word, b: Word, json: Json = False) -> None:
    """Show the cosine of the vectors of two words."""
    value = load_vectors(vectors).similarity(a, b)
    as_json({"similarity": value}) if json else typer.echo(f"{value:.4f}")


@word2vec_command.add("odd")
def show_odd_word(
    vectors: VectorsFile, words: Annotated[list[str], Argument("Three words or more.")], json: Json = False
) -> None:
    """Show the word that fits the others least."""
    word = load_vectors(vectors).odd_one_out(words)
    as_json({"odd": word}) if json else typer.echo(word)


@word2vec_command.add("eval")
def score_vectors(
    vectors: VectorsFile,
    questions: Annotated[Path, Argument("A question file or a folder of them.")],
    first: Annotated[
        int, Option("Answer analogies only with the N most frequent words.", minimum=1)
    ] = 30_000,
    method: Method = "add",
    json: Json = False,
) -> None:
    """Score vectors on analogies, and on pairs of words whose similarity people have rated."""
    loaded = load_vectors(vectors)
    with show_progress("answering the questions"):
        from heedful.word2vec.evaluation import evaluate

        analogies, similarities = evaluate(loaded, questions, first, method)
    if json:
        scored = [asdict(s) | {"accuracy": s.accuracy} for s in analogies]
        return as_json({"analogies": scored, "similarities": [asdict(s) for s in similarities]})
    for s in analogies:
        typer.echo(
            f"{s.name:<30} {100 * s.accuracy:6.2f} %  {s.correct:>6} of {s.asked:<6} missing {s.missing}"
        )
    for p in similarities:
        typer.echo(f"{p.name:<30} ρ {p.rho:6.4f}  pairs {p.asked:<6} missing {p.missing}")
    return None


@word2vec_command.add("convert")
def convert_vectors(
    source: VectorsFile,
    target: Annotated[Path, Argument("The file to write. Its ending says the format.")],
    limit: Annotated[int | None, Option("Keep only the first N words.", minimum=1)] = None,
) -> None:
    """Write vectors in another format: word2vec, GloVe or safetensors."""
    loaded = load_vectors(source, limit)
    with show_progress(f"writing {target}"):
        loaded.save(target)
    typer.echo(str(target))


@word2vec_command.add("phrases")
def write_phrases(
    corpus: CorpusFiles,
    output: Annotated[Path, Option("Write the text with phrases joined to this file.", ("--output", "-o"))],
    min_count: Annotated[int, Option("Join only pairs seen this often.")] = 5,
    threshold: Annotated[float, Option("Join only pairs that score above this.")] = 10.0,
    lowercase: Lowercase = False,
) -> None:
    """Join pairs of words that occur together often: new york → new_york."""
    from heedful.core.files import open_atomically
    from heedful.word2vec.corpus import Corpus, find_phrases

    with show_progress("counting pairs"):
        bigrams = find_phrases(Corpus(corpus, lowercase, split_punctuation=False), min_count, threshold)
    joining = show_progress("joining phrases")
    with joining, open_atomically(output, "w", encoding="utf-8", newline="\n") as file:
        for sentence in Corpus(corpus, lowercase, phrases=(bigrams,), split_punctuation=False).sentences():
            file.write(" ".join(sentence) + "\n")
    typer.echo(f"{len(bigrams.scores):,} pairs joined", err=True)
    typer.echo(str(output))


@word2vec_command.add("step")
def show_step(rate: Annotated[float, Option("Set the learning rate.")] = 0.5, json: Json = False) -> None:
    """Show every number of one training step, for a made-up word, wampimuk."""
    from heedful.word2vec.definition import wampimuk

    step = wampimuk(rate=rate)
    as_json(step.to_dict()) if json else typer.echo(step.to_markdown())
