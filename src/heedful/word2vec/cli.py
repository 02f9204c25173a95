"""`heed word2vec …`: results on stdout, everything else on stderr. Nothing heavy is imported until a command
runs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heedful.errors import HeedfulError, InputError

if TYPE_CHECKING:
    from heedful.word2vec.session import Session
    from heedful.word2vec.settings import Settings
    from heedful.word2vec.training import Progress
    from heedful.word2vec.vectors import Ranking, Word2Vec

EXAMPLES = """Word vectors: train them, ask them, score them, convert them.

Examples:

  heed word2vec train corpus.txt -o v.safetensors --epochs 5

  heed word2vec neighbours v.safetensors king

  heed word2vec analogy v.safetensors man king woman

  heed word2vec eval v.safetensors wordvec/
"""
app = typer.Typer(
    help=EXAMPLES,
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Vectors = Annotated[
    Path, typer.Argument(help="A file of vectors: .safetensors, .bin, .txt, .vec, .glove, also .gz.")
]
Count = Annotated[int, typer.Option("--count", "-n", min=1, help="How many answers.")]
First = Annotated[int | None, typer.Option(min=1, help="Only the so many most frequent words may answer.")]


def say(text: str) -> None:
    typer.echo(text, err=True)


def show(value: dict[str, Any]) -> None:
    typer.echo(json.dumps({"schema": "heed/1"} | value, ensure_ascii=False))


@app.command()
def train(
    corpus: Annotated[
        list[Path],
        typer.Argument(help="Text, one sentence or paragraph a line: files (.txt, .gz, .xz) or folders."),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where the vectors go; the ending is the format.")
    ] = Path("vectors.safetensors"),
    dim: Annotated[int, typer.Option(help="Size of a vector.")] = 100,
    window: Annotated[int, typer.Option(help="Words on each side.")] = 5,
    mode: Annotated[str, typer.Option(help="skipgram or cbow.")] = "skipgram",
    loss: Annotated[str, typer.Option(help="negative or hierarchical.")] = "negative",
    negatives: Annotated[int, typer.Option(help="Noise words drawn per window.")] = 5,
    min_count: Annotated[int, typer.Option(help="Drop words seen less often.")] = 5,
    max_vocab: Annotated[int | None, typer.Option(help="Keep the so many most frequent words.")] = None,
    subsample: Annotated[
        float | None,
        typer.Option(
            help="Thin out words more frequent than this; 0 keeps all. [default: 0.001, or 1 / vocabulary]"
        ),
    ] = None,
    noise_exponent: Annotated[
        float, typer.Option(help="Noise words are drawn by count to this power.")
    ] = 0.75,
    dynamic: Annotated[
        bool,
        typer.Option(
            "--dynamic/--fixed", help="Draw each window's reach from 1 to --window, or always --window."
        ),
    ] = True,
    cbow: Annotated[str, typer.Option(help="CBOW's input: mean or sum of the context.")] = "mean",
    rate: Annotated[
        float | None, typer.Option(help="First learning rate. [default: 0.025; cbow mean 0.075]")
    ] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the text.")] = 5,
    threads: Annotated[int | None, typer.Option(help="1 is bit-exact. [default: all cores]")] = None,
    seed: Annotated[int, typer.Option(help="Of the first vectors and of every draw.")] = 0,
    lowercase: Annotated[bool, typer.Option(help="Fold to lower case.")] = False,
    phrases: Annotated[
        int, typer.Option(min=0, help="Passes of joining bigrams first (1: new_york; 2: up to four words).")
    ] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    checkpoint: Annotated[
        Path | None, typer.Option(help="Save the run here every few minutes, each epoch, and on Ctrl-C.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on from --checkpoint.")] = False,
    as_json: Json = False,
) -> None:
    """Train word vectors on text."""
    from heedful.word2vec.formats import guess
    from heedful.word2vec.session import file_lock
    from heedful.word2vec.settings import Settings

    guess(output)  # a file that cannot be written is better known before the training
    for path in (output, checkpoint or output):
        if path.is_dir():
            raise InputError(f"{path} is a folder; name a file in it, such as {path / 'vectors.safetensors'}")
        path.parent.mkdir(parents=True, exist_ok=True)
    # fmt: off
    settings = Settings(dim=dim, window=window, mode=mode, loss=loss, negatives=negatives,
                        min_count=min_count, max_vocab=max_vocab, subsample=subsample,
                        noise_exponent=noise_exponent, dynamic=dynamic, cbow=cbow, rate=rate, epochs=epochs,
                        seed=seed)
    # fmt: on
    if resume and checkpoint is None:
        raise InputError("--resume needs --checkpoint FILE, the run to go on from")
    with file_lock(output):
        session = prepare(corpus, settings, lowercase, phrases, checkpoint if resume else None)
        say(f"{session.vocabulary.total:,} words read, {len(session.vocabulary):,} in the vocabulary")
        finish(session, output, follow(session, threads, checkpoint, device), as_json)


def prepare(
    corpus: list[Path], settings: Settings, lowercase: bool, phrases: int, resumed: Path | None
) -> Session:
    """Find the phrases, then count the words or take up the run in `resumed`."""
    from heedful.word2vec.corpus import Corpus
    from heedful.word2vec.phrases import find_phrases
    from heedful.word2vec.session import Session

    text = Corpus(corpus, lowercase)
    for _ in range(phrases):
        found = find_phrases(text)
        say(f"phrases: {len(found.scores):,} pairs joined")
        text = Corpus(corpus, lowercase, phrases=(*text.phrases, found))
    if resumed is not None:
        return Session.resume(text, resumed, settings)
    return Session.new(text, settings)


def follow(session: Session, threads: int | None, checkpoint: Path | None, device: str) -> float:
    """Run the stream, drawn as a bar on a terminal and as a line every ten seconds elsewhere; returns seconds
    taken.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console, began, last = Console(stderr=True), time.perf_counter(), 0.0
    columns = (
        TextColumn("epoch {task.fields[epoch]}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn(
            "loss {task.fields[loss]:.4f}  rate {task.fields[rate]:.4f}  {task.fields[speed]:,.0f} words/s"
        ),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(
            "", total=None, epoch=1, loss=float("nan"), rate=session.settings.first_rate, speed=0
        )
        try:
            for p in session.steps(threads, checkpoint, device=device):
                bar.update(
                    task,
                    completed=p.words,
                    total=p.total,
                    epoch=p.epoch + 1,
                    loss=p.loss,
                    rate=p.rate,
                    speed=p.words_per_second,
                )
                now = time.perf_counter()
                if p.finished or (not console.is_terminal and now - last > 10):
                    bar.console.print(line(p, session), highlight=False, soft_wrap=True)
                    last = now
        except KeyboardInterrupt:
            say(
                f"interrupted; go on with --resume --checkpoint {checkpoint}" if checkpoint else "interrupted"
            )
            raise typer.Exit(130) from None
    return time.perf_counter() - began


def line(p: Progress, session: Session) -> str:
    return (
        f"epoch={p.epoch + 1}/{session.settings.epochs} words={p.words} of={p.total} loss={p.loss:.6f} "
        f"rate={p.rate:.5f} words_per_second={p.words_per_second:.0f}"
    )


def finish(session: Session, output: Path, seconds: float, as_json: bool) -> None:
    from heedful.word2vec.vectors import Word2Vec

    vectors = Word2Vec.from_session(session)
    vectors.save(output)
    speed = session.vocabulary.total * session.settings.epochs / max(seconds, 1e-9)
    say(f"{len(vectors):,} words of {vectors.dim} dimensions in {seconds:.1f} s, {speed:,.0f} words/s")
    if as_json:
        show(
            {
                "output": str(output),
                "words": len(vectors),
                "dim": vectors.dim,
                "loss": vectors.history,
                "seconds": round(seconds, 3),
                "words_per_second": round(speed),
            }
        )
    else:
        typer.echo(str(output))


def load(path: Path) -> Word2Vec:
    from heedful.word2vec.vectors import Word2Vec

    return Word2Vec.load(path)


def answer(ranking: Ranking, as_json: bool) -> None:
    if as_json:
        show(
            {
                "answers": [{"word": word, "score": score} for word, score in ranking],
                "excluded": ranking.excluded,
            }
        )
        return
    typer.echo("\n".join(f"{score:8.4f}  {word}" for word, score in ranking))
    if ranking.excluded:
        say(f"not among the answers: {', '.join(ranking.excluded)}")


@app.command()
def neighbours(
    vectors: Vectors, word: str, count: Count = 10, first: First = None, as_json: Json = False
) -> None:
    """The nearest words by cosine."""
    answer(load(vectors).neighbours(word, count, first), as_json)


@app.command()
def analogy(
    vectors: Vectors,
    a: str,
    b: str,
    c: str,
    count: Count = 10,
    first: First = None,
    method: Annotated[str, typer.Option(help="add (3CosAdd) or mul (3CosMul).")] = "add",
    as_json: Json = False,
) -> None:
    """A is to B as C is to …"""
    answer(load(vectors).analogy(a, b, c, count, method, first), as_json)


@app.command()
def similarity(vectors: Vectors, a: str, b: str, as_json: Json = False) -> None:
    """The cosine of two words."""
    value = load(vectors).similarity(a, b)
    show({"similarity": value}) if as_json else typer.echo(f"{value:.4f}")


@app.command("odd")
def odd_one_out(vectors: Vectors, words: list[str], as_json: Json = False) -> None:
    """The word that does not belong."""
    word = load(vectors).odd_one_out(words)
    show({"odd": word}) if as_json else typer.echo(word)


@app.command("eval")
def evaluate(
    vectors: Vectors,
    questions: Annotated[Path, typer.Argument(help="A question file or a folder of them.")],
    first: Annotated[
        int, typer.Option(min=1, help="Words that may answer an analogy: the most frequent.")
    ] = 30_000,
    method: Annotated[str, typer.Option(help="add or mul.")] = "add",
    as_json: Json = False,
) -> None:
    """Analogies by section and correlation with people's judgements; what is missing is counted."""
    from heedful.word2vec.evaluation import evaluate as score

    sections, similarities = score(load(vectors), questions, first, method)
    if as_json:
        show(
            {
                "analogies": [asdict(s) | {"accuracy": s.accuracy} for s in sections],
                "similarities": [asdict(s) for s in similarities],
            }
        )
        return
    for s in sections:
        typer.echo(
            f"{s.name:<30} {100 * s.accuracy:6.2f} %  {s.correct:>6} of {s.asked:<6} missing {s.missing}"
        )
    for p in similarities:
        typer.echo(f"{p.name:<30} ρ {p.rho:6.4f}  pairs {p.asked:<6} missing {p.missing}")


@app.command()
def convert(
    source: Vectors,
    target: Annotated[Path, typer.Argument(help="The ending is the format.")],
    limit: Annotated[int | None, typer.Option(min=1, help="The first so many words.")] = None,
) -> None:
    """Rewrite vectors in another format (word2vec, GloVe, safetensors)."""
    from heedful.word2vec.vectors import Word2Vec

    Word2Vec.load(source, limit=limit).save(target)
    typer.echo(str(target))


@app.command()
def phrases(
    corpus: list[Path],
    output: Annotated[Path, typer.Option("--output", "-o", help="The text with phrases joined.")],
    min_count: int = 5,
    threshold: float = 10.0,
    lowercase: bool = False,
) -> None:
    """Join bigrams that score above a threshold: new york → new_york."""
    from heedful.word2vec.corpus import Corpus
    from heedful.word2vec.phrases import find_phrases

    text = Corpus(corpus, lowercase)
    found = find_phrases(text, min_count, threshold)
    with output.open("w", encoding="utf-8") as file:
        for sentence in Corpus(corpus, lowercase, phrases=(found,)).sentences():
            file.write(" ".join(sentence) + "\n")
    say(f"{len(found.scores):,} pairs joined")
    typer.echo(str(output))


@app.command()
def step(as_json: Json = False, rate: float = 0.5) -> None:
    """One update with every number: the “wampimuk” example."""
    from heedful.word2vec.steps import wampimuk

    worked = wampimuk(rate=rate)
    show(worked.to_dict()) if as_json else typer.echo(worked.markdown())


def main() -> None:
    """The sub-application alone: `python -m heedful.word2vec.cli`."""
    try:
        app()
    except HeedfulError as error:
        if os.environ.get("HEED_DEBUG"):
            raise
        say(f"error: {error}")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
