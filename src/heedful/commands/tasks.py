"""`heed classify`, `tag`, `answer`, `translate`, `summarize`, `fill`, `embed`, `similar`, `complete`.

One command a task, each around the pipeline of that name. With --json a text becomes an object {"schema":
"heed/1", "task", "model", "text", "results": […]}, results in Hugging Face's shape; several are JSON Lines.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from heedful.commands.arguments import read_file
from heedful.commands.output import Json, as_json
from heedful.commands.tasks_text import (
    Device,
    Model,
    Row,
    Texts,
    columns,
    document,
    labelled,
    made,
    marked,
    one_text,
    telling,
    texts,
    write,
)
from heedful.errors import InputError

TopK = Annotated[int, typer.Option(min=1, help="How many, the best first.")]
Lines = Annotated[bool, typer.Option("--lines", help="Every line of stdin is a text of its own.")]
MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", "--max-new-tokens", min=1, help="At most so many new tokens.")
]
Beams = Annotated[int | None, typer.Option("--beams", "--num-beams", min=1, help="Search this wide.")]


def classify(
    text: Texts = None,
    model: Model = None,
    labels: Annotated[
        str | None, typer.Option(help="Labels of your own, a,b,c: zero-shot, nothing is trained.")
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="The sentence a label of your own stands in, {} for it.")
    ] = None,
    several: Annotated[bool, typer.Option("--several", help="Labels of your own may hold together.")] = False,
    top_k: TopK = 1,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """The class of a text: how it feels, what it asks for, or one of your own labels.

    Examples:

      heed classify "Cats are fickle creatures"

      heed classify "Book me a table for two" --labels restaurant,travel,weather --top-k 3

      heed classify --model ./my-intents --top-k 3 --json < questions.txt
    """
    given = texts(text)
    if labels is None and (template is not None or several):
        raise InputError("--template and --several are about labels of your own", hint="give --labels a,b,c")
    with telling():
        if labels is None:
            task = "text-classification"
            name, pipe = made(task, model, device)
            found = pipe(given, top_k=top_k, truncation=True)
        else:
            task = "zero-shot-classification"
            name, pipe = made(task, model, device)
            wanted = [label.strip() for label in labels.split(",") if label.strip()]
            options: Row = {"hypothesis_template": template} if template else {}
            told = pipe(given, candidate_labels=wanted, multi_label=several, **options)
            found = [_pairs(one)[:top_k] for one in told]
    write({"task": task, "model": name}, zip(given, found, strict=True), json, labelled)


def _pairs(one: Row) -> list[Row]:
    """Labels and scores side by side, as classification has them."""
    return [{"label": lab, "score": s} for lab, s in zip(one["labels"], one["scores"], strict=True)]


def tag(
    text: Texts = None,
    model: Model = None,
    aggregation: Annotated[
        str, typer.Option(help="How pieces become words: none, simple, first, average or max.")
    ] = "first",
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """The names in a text: people, places, organisations, with their characters.

    Examples:

      heed tag "Ada Lovelace met Charles Babbage in London."

      heed tag --json < news.txt
    """
    given = texts(text)
    with telling():
        name, pipe = made("token-classification", model, device, aggregation_strategy=aggregation)
        found = [pipe(one) for one in given]
    write({"task": "token-classification", "model": name}, zip(given, found, strict=True), json, _tagged)


def _tagged(text: str, results: list[Row]) -> str:
    label = lambda row: str(row.get("entity_group") or row.get("entity"))
    spelt = lambda row: " ".join(text[row["start"] : row["end"]].split())
    lines = [marked(text, [(row["start"], row["end"], label(row)) for row in results])]
    rows = [
        (f"{row['score']:.4f}", label(row), f"{row['start']}–{row['end']}", spelt(row)) for row in results
    ]
    return "\n".join([*lines, columns(rows) if rows else "no names found"])


def answer(
    question: Annotated[str, typer.Argument(help="What you want to know.")],
    context: Annotated[str | None, typer.Option(help="The text that has the answer, or its file.")] = None,
    file: Annotated[Path | None, typer.Option(help="A file that has the answer.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="A folder of texts: the passage is found, then read.")
    ] = None,
    model: Model = None,
    top_k: TopK = 1,
    nothing: Annotated[bool, typer.Option("--or-nothing", help="There may be no answer.")] = False,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """The answer to a question, as it stands in a text: --context, --file, --folder, or what is piped in.

    Examples:

      heed answer "Where is the Eiffel Tower?" --context "The Eiffel Tower stands in Paris."

      heed answer "Who wrote the report?" --file report.txt --top-k 3

      heed answer "When was the bridge built?" --folder ./notes
    """
    if sum(x is not None for x in (context, file, folder)) > 1:
        raise InputError("the text comes from --context, --file or --folder", hint="give one of them")
    question = one_text(question)
    from heedful.commands.tasks_answer import answered, from_folder, placed

    if folder is not None:
        with telling():
            name, found = from_folder(question, folder, model, top_k, device)
        shown, found = found, [{k: v for k, v in row.items() if k != "at"} for row in found]
    else:
        if context is not None:
            context = one_text(context)
        else:
            context = read_file(file) if file is not None else document(None, lines=False)[0]
        with telling():
            name, pipe = made("question-answering", model, device)
            best = pipe(question=question, context=context, top_k=top_k, handle_impossible_answer=nothing)
        found = best if isinstance(best, list) else [best]
        shown = [placed(row, context) for row in found]
    said = {"task": "question-answering", "model": name}
    write(said, [(question, found)], json, lambda *_: answered(shown))


def translate(
    text: Texts = None,
    to: Annotated[str, typer.Option(help="The language to write: de or fr.")] = "de",
    model: Model = None,
    beams: Beams = None,
    max_tokens: MaxTokens = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """English into German or French, a line for a line.

    Examples:

      heed translate "How are you?" --to fr

      heed translate --to de < letter.txt

      heed translate "Where is the station?" --model rnnsearch-en-de
    """
    task = f"translation_en_to_{to}"
    _written(task, texts(text), model, device, json, "translation_text", beams, max_tokens)


def summarize(
    text: Texts = None,
    file: Annotated[Path | None, typer.Option(help="A file to read instead.")] = None,
    model: Model = None,
    beams: Beams = None,
    max_tokens: MaxTokens = None,
    lines: Lines = False,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """What a text or a dialogue says, in a sentence or two. All of stdin is one text.

    Examples:

      heed summarize < chat.txt

      heed summarize --file minutes.txt --max-tokens 60
    """
    if file is not None and text:
        raise InputError("a text and --file were given", hint="give one of them")
    given = [read_file(file)] if file is not None else document(text, lines)
    _written("summarization", given, model, device, json, "summary_text", beams, max_tokens)


def _written(
    task: str, given: list[str], model: str | None, device: str, json: bool, key: str, beams: int | None,
    max_tokens: int | None,
) -> None:  # fmt: skip
    """Texts made of texts: alone on stdout, one below the other, so that a file in gives a file out."""
    options: Row = {"num_beams": beams, "max_new_tokens": max_tokens}
    options = {name: value for name, value in options.items() if value is not None}
    with telling():
        name, pipe = made(task, model, device)
        found = pipe(given, truncation=True, **options)
    rows = [one if isinstance(one, list) else [one] for one in found]
    if json:
        return write({"task": task, "model": name}, zip(given, rows, strict=True), True, labelled)
    for one in rows:
        print(one[0][key])
    return None


def fill(
    text: Texts = None,
    model: Model = None,
    top_k: TopK = 5,
    targets: Annotated[str | None, typer.Option(help="Only these words, a,b,c.")] = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """The words that fit where [MASK] stands, each with its probability.

    Examples:

      heed fill "The cat sat on the [MASK]."

      heed fill "The [MASK] barked." --targets dog,cat,tree
    """
    given = texts(text)
    only: Row = {} if targets is None else {"targets": [t.strip() for t in targets.split(",") if t.strip()]}
    with telling():
        name, pipe = made("fill-mask", model, device)
        found = [pipe(one, top_k=top_k, truncation=True, **only) for one in given]
    write({"task": "fill-mask", "model": name}, zip(given, found, strict=True), json, _filled)


def _filled(text: str, results: list[Any]) -> str:
    """The words of a mask; of several masks one block each."""
    if results and isinstance(results[0], list):
        blocks = [f"mask {i}\n{_filled(text, rows)}" for i, rows in enumerate(results, 1)]
        return "\n\n".join(blocks)
    return columns([(f"{r['score']:.4f}", r["token_str"].strip(), r["sequence"]) for r in results])


def embed(
    text: Texts = None,
    model: Model = None,
    out: Annotated[
        Path | None, typer.Option(help="Write all vectors to this .safetensors or .csv file.")
    ] = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Sentences as vectors: near in meaning, near in space.

    Examples:

      heed embed "A hotel in Seattle" --json

      heed embed --out vectors.safetensors < sentences.txt
    """
    from heedful.commands.tasks_vectors import FORMATS, save

    given = texts(text)
    if out is not None and out.suffix not in FORMATS:
        raise InputError(f"{out} is none of {' or '.join(FORMATS)}", hint="vectors are written as those")
    from heedful.tasks.sentence_similarity import sentence_vectors

    with telling():
        name, pipe = made("sentence-similarity", model, device)
        found = sentence_vectors(pipe.model, pipe.tokenizer, given)
    said: Row = {"task": "sentence-embedding", "model": name}
    if out is not None:
        save(out, given, found)
        told = said | {"path": str(out), "texts": len(given), "size": found.shape[1]}
        return as_json(told) if json else print(out)
    rows = [[{"vector": vector.tolist()}] for vector in found]
    return write(said, zip(given, rows, strict=True), json, _vector)


def _vector(text: str, results: list[Row]) -> str:
    vector = results[0]["vector"]
    return f"{len(vector)} numbers: " + " ".join(f"{x:.4f}" for x in vector[:6]) + " …"


def similar(
    query: Annotated[str, typer.Argument(help="The sentence others are compared with.")],
    text: Annotated[list[str] | None, typer.Argument(metavar="TEXT…", help="Those to compare.")] = None,
    where: Annotated[
        Path | None, typer.Option("--in", help="A file of sentences, one a line; - is stdin.")
    ] = None,
    model: Model = None,
    top_k: TopK = 5,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """The sentences nearest in meaning, by the cosine of their vectors.

    Examples:

      heed similar "Seattle motel" "A hotel in Seattle" "A recipe for bread"

      heed similar "Seattle motel" --in listings.txt --top-k 3

      cat listings.txt | heed similar "Seattle motel" --in - --json
    """
    from heedful.commands.tasks_vectors import numbered

    if where is not None and text:
        raise InputError("sentences and --in were given", hint="give one of them")
    query, given = one_text(query), numbered(where, text)
    with telling():
        name, pipe = made("sentence-similarity", model, device)
        scores = pipe(query, [sentence for _, sentence in given])
    rows = [{"text": t, "score": s, "line": line} for (line, t), s in zip(given, scores, strict=True)]
    found = sorted(rows, key=lambda row: -row["score"])[:top_k]
    draw = lambda _, rows: columns([(f"{r['score']:.4f}", f"{r['line']}", r["text"]) for r in rows])
    write({"task": "sentence-similarity", "model": name}, [(query, found)], json, draw)


def complete(
    text: Texts = None,
    model: Model = None,
    max_tokens: MaxTokens = 40,
    temperature: Annotated[float | None, typer.Option(help="Draw; small is careful, 1 as trained.")] = None,
    top_k: Annotated[int | None, typer.Option(min=1, help="Draw from so many likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the likeliest that hold this mass.")] = None,
    n: Annotated[int, typer.Option(min=1, help="So many endings.")] = 1,
    seed: Annotated[int | None, typer.Option(help="The same seed writes the same text.")] = None,
    lines: Lines = False,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """How a text may go on: the likeliest way, or with --temperature drawn. All of stdin is one text.

    Examples:

      heed complete "The capital of France is"

      heed complete "Once upon a time" --model prose --temperature 0.8 --n 3 --seed 0
    """
    given = document(text, lines)
    options: Row = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    options = {name: value for name, value in options.items() if value is not None}
    drawn = bool({"temperature", "top_k", "top_p"} & set(options)) or n > 1
    with telling():
        name, pipe = made("text-generation", model, device)
        found = pipe(given, max_new_tokens=max_tokens, do_sample=drawn, num_return_sequences=n, **options)
    draw = lambda _, rows: ("\n" + "—" * 8 + "\n").join(row["generated_text"] for row in rows)
    write({"task": "text-generation", "model": name}, zip(given, found, strict=True), json, draw)
