"""`heed classify`, `tag`, `translate`, `summarize`, `fill` and `complete`: one command for each pipeline.

With --json a text becomes an object {"schema": "heed/1", "task", "model", "text", "results": […]}, with
results in Hugging Face's shape; several texts become JSON Lines. So do `heed answer`, `embed` and `similar`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from heedful.cli.model_arguments import default_model, few_threads
from heedful.cli.output import Json, Row, align_columns, mark_spans, print_warnings, write_results
from heedful.cli.text_arguments import (
    TableColumns,
    TextColumn,
    Texts,
    read_documents,
    read_inputs,
    read_texts,
)
from heedful.core.errors import InputError
from heedful.core.progress import show_progress

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="A folder, a bundled or installed model, or a hub id; each task has its own by default.",
    ),
]
Device = Annotated[str, typer.Option(envvar="HEED_DEVICE", help="cpu, or cuda for a GPU.")]
TopK = Annotated[int, typer.Option(min=1, help="How many results, best first.")]
Lines = Annotated[bool, typer.Option("--lines", help="Treat every line of stdin as a text of its own.")]
MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", "--max-new-tokens", min=1, help="Generate at most N tokens.")
]
Beams = Annotated[int | None, typer.Option("--beams", "--num-beams", min=1, help="Width of beam search.")]


def make_pipeline(task: str, model: str | None, device: str, **defaults: Any) -> tuple[str, Any]:
    """Return the name of the model that does a task, and the pipeline itself."""
    name = default_model(task) if model is None else model
    with show_progress(f"loading {name}"):
        from heedful.tasks.pipeline import pipeline
        from heedful.train.checkpoint import of_run

        return name, pipeline(task, None if model is None else of_run(model), device=device, **defaults)


def split_commas(text: str) -> list[str]:
    """Return the items of "a,b,c" without spaces around them."""
    return [item.strip() for item in text.split(",") if item.strip()]


def given_options(**options: Any) -> Row:
    """Return the options that have a value."""
    return {name: value for name, value in options.items() if value is not None}


def classify_command(
    text: Texts = None,
    model: Model = None,
    labels: Annotated[
        str | None, typer.Option(help="Your own labels, as a,b,c: zero-shot, nothing is trained.")
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="The sentence that your own labels are put into, at {}.")
    ] = None,
    several: Annotated[
        bool, typer.Option("--several", help="Several of your own labels may hold at once.")
    ] = False,
    top_k: TopK = 1,
    column: TextColumn = None,
    pair: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The column with the second text, if the model reads pairs."),
    ] = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Classify texts by sentiment, by the model's own classes, or by your own labels.

    Examples:

      heed classify "Cats are fickle creatures"

      heed classify "Book me a table for two" --labels restaurant,travel,weather --top-k 3

      heed classify --model ./my-intents --top-k 3 --json < questions.txt

      heed classify reviews.csv --text body --json
    """
    own = None if labels is not None else model  # zero-shot reads one text, whatever the model learnt from
    texts = read_inputs(text, TableColumns("classify", column, pair, own))
    if labels is None and (template is not None or several):
        raise InputError("--template and --several are about your own labels", hint="give --labels a,b,c")
    if labels is not None and not split_commas(labels):
        raise InputError("--labels names no label", hint="separate them by commas: --labels a,b,c")
    task = "text-classification" if labels is None else "zero-shot-classification"
    with print_warnings(), show_progress("classifying"), few_threads(list(map(str, texts))):
        name, pipe = make_pipeline(task, model, device)
        if labels is None:
            results = pipe(texts, top_k=top_k, truncation=True)
        else:
            options = given_options(hypothesis_template=template or None)
            scored = pipe(texts, candidate_labels=split_commas(labels), multi_label=several, **options)
            results = [_label_rows(row)[:top_k] for row in scored]
    write_results({"task": task, "model": name}, zip(texts, results, strict=True), json, _format_labels)


def _label_rows(row: Row) -> list[Row]:
    """Return zero-shot classification's lists of labels and scores as rows, like classification's."""
    pairs = zip(row["labels"], row["scores"], strict=True)
    return [{"label": label, "score": score} for label, score in pairs]


def _format_labels(text: str, results: list[Row]) -> str:
    return align_columns([(f"{row['score']:.4f}", row["label"]) for row in results])


def tag_command(
    text: Texts = None,
    model: Model = None,
    aggregation: Annotated[
        str, typer.Option(help="How token pieces become words: none, simple, first, average or max.")
    ] = "first",
    column: TextColumn = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Find the names of people, places and organisations in texts.

    Examples:

      heed tag "Ada Lovelace met Charles Babbage in London."

      heed tag --json < news.txt
    """
    texts, task = read_texts(text, TableColumns("tag", column, model=model)), "token-classification"
    with print_warnings(), show_progress("finding names"), few_threads(texts):
        name, pipe = make_pipeline(task, model, device, aggregation_strategy=aggregation)
        results = pipe(texts)
    write_results({"task": task, "model": name}, zip(texts, results, strict=True), json, _format_entities)


def _format_entities(text: str, results: list[Row]) -> str:
    """Return the text with its entities marked, and below it a line for each entity."""
    label = lambda row: str(row.get("entity_group") or row.get("entity"))
    spelling = lambda row: " ".join(text[row["start"] : row["end"]].split())
    marked = mark_spans(text, [(row["start"], row["end"], label(row)) for row in results])
    rows = [
        (f"{row['score']:.4f}", label(row), f"{row['start']}–{row['end']}", spelling(row)) for row in results
    ]
    return "\n".join([marked, align_columns(rows) if rows else "no names found"])


def translate_command(
    text: Texts = None,
    to: Annotated[str, typer.Option(help="The target language: de or fr.")] = "de",
    model: Model = None,
    beams: Beams = None,
    max_tokens: MaxTokens = None,
    column: TextColumn = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Translate English into German or French, line by line.

    Examples:

      heed translate "How are you?" --to fr

      heed translate --to de < letter.txt

      heed translate "Where is the station?" --model rnnsearch-en-de
    """
    options = given_options(num_beams=beams, max_new_tokens=max_tokens)
    texts = read_texts(text, TableColumns("translate", column, model=model))
    _generate_texts(f"translation_en_to_{to}", "translation_text", texts, model, device, json, options)


def summarize_command(
    text: Texts = None,
    file: Annotated[Path | None, typer.Option(help="Read the text from this file.")] = None,
    model: Model = None,
    beams: Beams = None,
    max_tokens: MaxTokens = None,
    lines: Lines = False,
    column: TextColumn = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Summarize a text or a dialogue in a sentence or two. All of stdin is one text.

    Examples:

      heed summarize < chat.txt

      heed summarize --file minutes.txt --max-tokens 60
    """
    if file is not None and text:
        raise InputError("a text and --file were given", hint="give one of them")
    arguments = text if file is None else [str(file.absolute())]
    texts = read_documents(arguments, lines and file is None, TableColumns("summarize", column, model=model))
    options = given_options(num_beams=beams, max_new_tokens=max_tokens)
    _generate_texts("summarization", "summary_text", texts, model, device, json, options)


def _generate_texts(
    task: str, key: str, texts: list[str], model: str | None, device: str, json: bool, options: Row
) -> None:
    """Print one generated text per line and nothing else, so that a file in gives a file out."""
    with print_warnings(), show_progress("generating"):
        name, pipe = make_pipeline(task, model, device)
        results = pipe(texts, truncation=True, **options)
    rows = [one if isinstance(one, list) else [one] for one in results]
    if json:
        return write_results(
            {"task": task, "model": name}, zip(texts, rows, strict=True), True, _format_labels
        )
    for one in rows:
        print(one[0][key])
    return None


def fill_command(
    text: Texts = None,
    model: Model = None,
    top_k: TopK = 5,
    targets: Annotated[str | None, typer.Option(help="Only these words, as a,b,c.")] = None,
    column: TextColumn = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Fill [MASK] in texts with the likeliest words and their probabilities; <mask> and ___ mean the same.

    Examples:

      heed fill "The cat sat on the [MASK]."

      heed fill "The ___ barked." --targets dog,cat,tree
    """
    texts = read_texts(text, TableColumns("fill", column, model=model))
    if targets is not None and not split_commas(targets):
        raise InputError("--targets names no word", hint="separate them by commas: --targets a,b,c")
    options = given_options(targets=None if targets is None else split_commas(targets))
    with print_warnings(), show_progress("filling in"), few_threads(texts):
        name, pipe = make_pipeline("fill-mask", model, device)
        results = [pipe(one, top_k=top_k, truncation=True, **options) for one in texts]
    write_results({"task": "fill-mask", "model": name}, zip(texts, results, strict=True), json, _format_words)


def _format_words(text: str, results: list[Any]) -> str:
    """Return the words for a mask; several masks have one block each."""
    if results and isinstance(results[0], list):
        blocks = [f"mask {i}\n{_format_words(text, rows)}" for i, rows in enumerate(results, 1)]
        return "\n\n".join(blocks)
    return align_columns([(f"{r['score']:.4f}", r["token_str"].strip(), r["sequence"]) for r in results])


def complete_command(
    text: Texts = None,
    model: Model = None,
    max_tokens: MaxTokens = 40,
    temperature: Annotated[
        float | None, typer.Option(help="Sample at this temperature; 1 is the model's own distribution.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(min=1, help="Sample from the K likeliest tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the likeliest tokens that hold this probability.")
    ] = None,
    n: Annotated[int, typer.Option(min=1, help="Number of continuations.")] = 1,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text.")] = None,
    lines: Lines = False,
    column: TextColumn = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Continue texts, greedily or by sampling (--temperature, --top-k, --top-p). All of stdin is one text.

    Examples:

      heed complete "The capital of France is"

      heed complete "Once upon a time" --model prose --temperature 0.8 --n 3 --seed 0
    """
    texts = read_documents(text, lines, TableColumns("complete", column, model=model))
    options = given_options(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    sample = bool({"temperature", "top_k", "top_p"} & set(options)) or n > 1
    with print_warnings(), show_progress("generating"):
        name, pipe = make_pipeline("text-generation", model, device)
        results = pipe(texts, max_new_tokens=max_tokens, do_sample=sample, num_return_sequences=n, **options)
    draw = lambda _, rows: ("\n" + "—" * 8 + "\n").join(row["generated_text"] for row in rows)
    write_results({"task": "text-generation", "model": name}, zip(texts, results, strict=True), json, draw)
