"""`heed classify`, `tag`, `translate`, `summarize`, `fill` and `complete`: one command for each pipeline.

With --json a text becomes an object {"schema": "heed/1", "task", "model", "text", "results": […]}, with
results in Hugging Face's shape; several texts become JSON Lines. So do `heed answer`, `embed` and `similar`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from heedful.cli.models import Device, default_model, few_threads
from heedful.cli.terminal import (
    Input,
    Json,
    Row,
    TableColumns,
    TextColumn,
    Texts,
    align_columns,
    as_json,
    check_texts,
    looks_like_path,
    mark_spans,
    names_image,
    nonempty_lines,
    print_marked,
    print_warnings,
    read_documents,
    read_file,
    read_numbered,
    read_stdin,
    read_texts,
    text_or_file,
)
from heedful.core.checks import Argument, Option
from heedful.core.errors import InputError
from heedful.core.progress import show_progress

Model = Annotated[
    str | None,
    Option(
        "Use this model: a folder, a bundled or installed model, or a hub id. Each task has a default.",
        ("--model", "-m"),
    ),
]
Draw = Callable[[str, list[Row]], str]  # a text and its results → what the terminal shows
TopK = Annotated[int, Option("Show the N best results.", minimum=1)]
Lines = Annotated[bool, Option("Treat every line of stdin as its own text.")]
MaxTokens = Annotated[
    int | None, Option("Generate at most N tokens.", ("--max-tokens", "--max-new-tokens"), minimum=1)
]
Beams = Annotated[int | None, Option("Search with N beams.", ("--beams", "--num-beams"), minimum=1)]


@dataclass(frozen=True)
class TaskOptions:
    """Options of every command of a task, and what each of them does with these."""

    model: Model = None
    device: Device = "cpu"
    json: Json = False

    def open(self, task: str, **defaults: Any) -> tuple[str, Any]:
        """Return the name of the model that does a task, and the pipeline itself."""
        name = default_model(task) if self.model is None else self.model
        with show_progress(f"loading {name}"):
            from heedful.tasks.registry import pipeline
            from heedful.train.checkpoint import of_run

            source = None if self.model is None else of_run(self.model)
            return name, pipeline(task, source, device=self.device, **defaults)

    def write(
        self, task: str, model: str, inputs: Iterable[Input], results: Iterable[list[Row]], draw: Draw
    ) -> None:
        """Print the results of each input: a JSON object per line, or what `draw` returns."""
        rows = list(zip(inputs, results, strict=True))
        for number, (one, answers) in enumerate(rows):
            if self.json:
                texts = {"text": one} if isinstance(one, str) else one
                as_json({"task": task, "model": model} | texts | {"results": answers})
                continue
            text = one if isinstance(one, str) else " | ".join(one.values())
            if len(rows) > 1:
                print_marked(("\n" if number else "") + text, "dim")
            print_marked(draw(text, answers))


@dataclass(frozen=True)
class TextOptions(TaskOptions):
    """Options of every command of a task that reads texts, of which a table may have many."""

    column: TextColumn = None

    def columns(self, command: str) -> TableColumns:
        """Return which columns of a table this command reads."""
        return TableColumns(command, self.column, model=self.model)


def split_commas(text: str) -> list[str]:
    """Return the items of "a,b,c" without spaces around them."""
    return [item.strip() for item in text.split(",") if item.strip()]


def given_options(**options: Any) -> Row:
    """Return the options that have a value."""
    return {name: value for name, value in options.items() if value is not None}


def classify_command(
    common: TextOptions,
    text: Texts = None,
    labels: Annotated[
        str | None, Option("Choose among your own labels, as a,b,c (zero-shot: nothing is trained).")
    ] = None,
    template: Annotated[str | None, Option("Put your own labels into this sentence, at {}.")] = None,
    several: Annotated[bool, Option("Allow several of your own labels at once.")] = False,
    top_k: Annotated[
        int | None,
        Option("Show the N best labels. [default: 1, or of several labels all that hold]", minimum=1),
    ] = None,
    pair: Annotated[
        str | None, Option("Read the second text of a pair from this column.", metavar="COLUMN")
    ] = None,
) -> None:
    """Classify texts or images by sentiment, by the model's own classes, or by your own labels.

    Examples:
      heed classify "Cats are fickle creatures"
      heed classify "Book me a table for two" --labels restaurant,travel,weather --top-k 3
      heed classify --model ./my-intents --top-k 3 --json < questions.txt
      heed classify reviews.csv --text body --json
      heed classify cat.jpg dog.jpg --model ./my-vit
      heed classify cat.jpg --labels cat,dog --model ./clip
    """
    if labels is None and (template is not None or several):
        raise InputError("--template and --several need your own labels", hint="give --labels a,b,c")
    if labels is not None and not split_commas(labels):
        raise InputError("--labels names no label", hint="separate them by commas: --labels a,b,c")
    images = [one for one in text or () if names_image(one)]
    if images and len(images) < len(text or ()):
        raise InputError("images and texts were given", hint="classify them one after the other")
    if images and several:
        raise InputError("--several is for texts", hint="an image has one of your own labels")
    own = (
        None if labels is not None else common.model
    )  # zero-shot reads one text, whatever the model learnt from
    columns = TableColumns("classify", common.column, pair, own)
    texts: list[Input] = [*images] or [one for _, one in read_numbered(text, columns)]
    task = "image-classification" if images else "text-classification"
    if labels is not None:
        task = "zero-shot-image-classification" if images else "zero-shot-classification"
    threads = nullcontext() if images else few_threads(list(map(str, texts)))
    with print_warnings(), show_progress("classifying"), threads:
        name, pipe = common.open(task)
        options = given_options(hypothesis_template=template or None)
        if labels is None:
            all_that_hold = top_k is None and pipe.label_kind.several
            cut = {} if images else {"truncation": True}
            results = pipe(texts, top_k=None if all_that_hold else top_k or 1, **cut)
            results = [pipe.labels_that_hold(rows) for rows in results] if all_that_hold else results
        elif images:
            scored = pipe(images, candidate_labels=split_commas(labels), **options)
            results = [row[: top_k or 1] for row in scored]
        else:
            scored = pipe(texts, candidate_labels=split_commas(labels), multi_label=several, **options)
            pairs = [list(zip(row["labels"], row["scores"], strict=True))[: top_k or 1] for row in scored]
            results = [[{"label": label, "score": score} for label, score in row] for row in pairs]
    inputs = [{"image": image} for image in images] if images else texts
    common.write(task, name, inputs, results, _format_labels)


def _format_labels(text: str, results: list[Row]) -> str:
    if not results:
        return "no label has a probability of ½ or more"
    return align_columns([(f"{row['score']:.4f}", row["label"]) for row in results])


def tag_command(
    common: TextOptions,
    text: Texts = None,
    aggregation: Annotated[
        str, Option("Join token pieces into words by none, simple, first, average or max.")
    ] = "first",
) -> None:
    """Find the names of people, places and organisations in texts.

    Examples:
      heed tag "Ada Lovelace met Charles Babbage in London."
      heed tag --json < news.txt
    """
    texts, task = read_texts(text, common.columns("tag")), "token-classification"
    with print_warnings(), show_progress("finding names"), few_threads(texts):
        name, pipe = common.open(task, aggregation_strategy=aggregation)
        results = pipe(texts)
    common.write(task, name, texts, results, _format_entities)


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
    common: TextOptions,
    text: Texts = None,
    to: Annotated[str, Option("Translate to de or fr.")] = "de",
    beams: Beams = None,
    max_tokens: MaxTokens = None,
) -> None:
    """Translate English into German or French, line by line.

    Examples:
      heed translate "How are you?" --to fr
      heed translate --to de < letter.txt
      heed translate "Where is the station?" --model rnnsearch-en-de
    """
    options = given_options(num_beams=beams, max_new_tokens=max_tokens)
    texts = read_texts(text, common.columns("translate"))
    _generate_texts(common, f"translation_en_to_{to}", "translation_text", texts, options)


def summarize_command(
    common: TextOptions,
    text: Texts = None,
    file: Annotated[Path | None, Option("Read the text from this file.")] = None,
    beams: Beams = None,
    max_tokens: MaxTokens = None,
    lines: Lines = False,
) -> None:
    """Summarize a text or a dialogue in a sentence or two. All of stdin is one text.

    Examples:
      heed summarize < chat.txt
      heed summarize --file minutes.txt --max-tokens 60
    """
    if file is not None and text:
        raise InputError("a text and --file were given", hint="give one of them")
    texts = read_documents(
        text if file is None else [file], lines and file is None, common.columns("summarize")
    )
    options = given_options(num_beams=beams, max_new_tokens=max_tokens)
    _generate_texts(common, "summarization", "summary_text", texts, options)


def _generate_texts(common: TaskOptions, task: str, key: str, texts: list[str], options: Row) -> None:
    """Print one generated text per line and nothing else, so that a file in gives a file out."""
    with print_warnings(), show_progress("generating"):
        name, pipe = common.open(task)
        results = pipe(texts, truncation=True, **options)
    rows = [one if isinstance(one, list) else [one] for one in results]
    if common.json:
        return common.write(task, name, texts, rows, _format_labels)
    for one in rows:
        print(one[0][key])
    return None


def fill_command(
    common: TextOptions,
    text: Texts = None,
    top_k: TopK = 5,
    targets: Annotated[str | None, Option("Choose among these words only, as a,b,c.")] = None,
) -> None:
    """Fill [MASK] in texts with the most likely words and their probabilities; <mask> and ___ mean the same.

    Examples:
      heed fill "The cat sat on the [MASK]."
      heed fill "The ___ barked." --targets dog,cat,tree
    """
    texts = read_texts(text, common.columns("fill"))
    if targets is not None and not split_commas(targets):
        raise InputError("--targets names no word", hint="separate them by commas: --targets a,b,c")
    options = given_options(targets=None if targets is None else split_commas(targets))
    with print_warnings(), show_progress("filling in"), few_threads(texts):
        name, pipe = common.open("fill-mask")
        results = [pipe(one, top_k=top_k, truncation=True, **options) for one in texts]
    common.write("fill-mask", name, texts, results, _format_words)


def _format_words(text: str, results: list[Any]) -> str:
    """Return the words for a mask; several masks have one block each."""
    if results and isinstance(results[0], list):
        blocks = [f"mask {i}\n{_format_words(text, rows)}" for i, rows in enumerate(results, 1)]
        return "\n\n".join(blocks)
    return align_columns([(f"{r['score']:.4f}", r["token_str"].strip(), r["sequence"]) for r in results])


def complete_command(
    common: TextOptions,
    text: Texts = None,
    max_tokens: MaxTokens = 40,
    temperature: Annotated[
        float | None, Option("Sample at this temperature; 1 is the model's own distribution.")
    ] = None,
    top_k: Annotated[int | None, Option("Sample from the K most likely tokens.", minimum=1)] = None,
    top_p: Annotated[
        float | None, Option("Sample from the most likely tokens that together have this probability.")
    ] = None,
    n: Annotated[int, Option("Generate N continuations.", minimum=1)] = 1,
    seed: Annotated[int | None, Option("Draw with this seed; the same one gives the same text.")] = None,
    lines: Lines = False,
) -> None:
    """Continue texts, greedily or by sampling (--temperature, --top-k, --top-p). All of stdin is one text.

    Examples:
      heed complete "The capital of France is"
      heed complete "Once upon a time" --model prose --temperature 0.8 --n 3 --seed 0
    """
    texts = read_documents(text, lines, common.columns("complete"))
    options = given_options(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    sample = bool({"temperature", "top_k", "top_p"} & set(options)) or n > 1
    with print_warnings(), show_progress("generating"):
        name, pipe = common.open("text-generation")
        results = pipe(texts, max_new_tokens=max_tokens, do_sample=sample, num_return_sequences=n, **options)
    draw = lambda _, rows: ("\n" + "—" * 8 + "\n").join(row["generated_text"] for row in rows)
    common.write("text-generation", name, texts, results, draw)


# `heed answer`: a question answered from a text or a folder of texts, each answer shown in its context.


CONTEXT_CHARACTERS = 60  # shown on either side of an answer


def answer_command(
    first: Annotated[
        str, Argument("The text or its file; or the question, if it comes alone.", metavar="TEXT")
    ],
    common: TaskOptions,
    second: Annotated[str | None, Argument("The question.", metavar="QUESTION")] = None,
    context: Annotated[str | None, Option("Look for the answer in this text, or file.")] = None,
    file: Annotated[Path | None, Option("Look for the answer in this file.")] = None,
    folder: Annotated[Path | None, Option("Look for the answer in the texts of this folder.")] = None,
    top_k: TopK = 1,
    or_nothing: Annotated[bool, Option("Allow “no answer”.")] = False,
) -> None:
    """Answer a question with words of a text.

    The text, or its file, stands before the question; or it is given by --context, --file or --folder, or
    piped in. A file alone is asked the questions that are piped in, one per line.

    Examples:
      heed answer report.txt "Who wrote the report?" --top-k 3
      heed answer "Where is the Eiffel Tower?" --context "The Eiffel Tower stands in Paris."
      heed answer "When was the bridge built?" --folder ./notes
    """
    if sum(x is not None for x in (second, context, file, folder)) > 1:
        sources = "the text comes from an argument, --context, --file or --folder"
        raise InputError(sources, hint="give one of them; put a question of several words into quotes")
    if folder is not None:
        question = text_or_file(first)
        with print_warnings(), show_progress("looking for the answer"):
            name, shown = answer_from_folder(common, question, folder, top_k)
        return print_answers(common, name, {question: shown})
    if file is not None or context is not None:
        text = read_file(file) if file is not None else text_or_file(context or "")
        questions = [text_or_file(first)]
    else:
        text, questions = read_text_and_questions(first, second)
    check_texts([text])
    check_texts(questions)
    with print_warnings(), show_progress("looking for the answer"), few_threads([text]):
        name, pipe = common.open("question-answering")
        by_question = {}
        for question in questions:
            best = pipe(question=question, context=text, top_k=top_k, handle_impossible_answer=or_nothing)
            rows = best if isinstance(best, list) else [best]
            by_question[question] = [row | {"passage": text, "at": row["start"]} for row in rows]
    return print_answers(common, name, by_question)


def read_text_and_questions(first: str, second: str | None) -> tuple[str, list[str]]:
    """Return the text and the questions of two arguments; stdin has what a single one is not."""
    if second is not None:
        swapped = looks_like_path(second) and not looks_like_path(first)
        text, question = map(text_or_file, (second, first) if swapped else (first, second))
        return text, [question]
    if looks_like_path(first):
        text = text_or_file(first)
        asked = read_stdin(wait=False, hint=f'ask a question: heed answer {first} "…"')
        return text, [line for _, line in nonempty_lines(asked)]
    hint = f'name its file: heed answer FILE "{first}", or pipe it in'
    return read_stdin(wait=False, hint=hint).strip(), [first]


def print_answers(common: TaskOptions, model: str, by_question: dict[str, list[Row]]) -> None:
    """Print the answers of each question in their context; JSON has no context that was given whole."""
    left_out = lambda row: ("at",) if "file" in row else ("at", "passage")
    plain = lambda row: {name: value for name, value in row.items() if name not in left_out(row)}
    rows = [[plain(row) if common.json else row for row in answers] for answers in by_question.values()]
    draw = lambda _, answers: format_answers(answers)
    common.write("question-answering", model, by_question, rows, draw)


def answer_from_folder(common: TaskOptions, question: str, folder: Path, top_k: int) -> tuple[str, list[Row]]:
    """Return the model's name and the answers in a folder's texts, each with its place in its passage."""
    from heedful.core.devices import resolve_device
    from heedful.tasks.search import DEFAULT_MODEL, OpenDomain
    from heedful.weights.loading import load

    name, reader = common.open("question-answering")
    domain = OpenDomain(
        folder, reader=reader, model=load(DEFAULT_MODEL, device=resolve_device(common.device))
    )
    best = domain.answer(question, top_k=top_k)
    rows = best if isinstance(best, list) else [best]
    # the same words may stand in a file twice: the passage is the one the answer lies in
    begin = lambda row: next(
        p.start
        for p in domain.passages
        if (p.file, p.text) == (row["file"], row["passage"]) and p.start <= row["start"] <= p.end
    )
    return name, [row | {"at": row["start"] - begin(row)} for row in rows]


def format_answers(rows: list[Row]) -> str:
    """Return the answers, and below them each one's score, characters, file if it has one, and context."""
    file = lambda row: [row["file"]] if "file" in row else []
    details = [
        [f"{row['score']:.4f}", f"{row['start']}–{row['end']}", *file(row), _context(row)] for row in rows
    ]
    answers = [" ".join(row["answer"].split()) or "(no answer)" for row in rows]
    return "\n".join([*answers, "", align_columns(details)])


def _context(row: Row) -> str:
    """Return an answer, marked, with the text on both sides of it."""
    text, start = row["passage"], row["at"]
    end = start + len(row["answer"])
    left, right = max(0, start - CONTEXT_CHARACTERS), min(len(text), end + CONTEXT_CHARACTERS)
    part = mark_spans(text[left:right], [(start - left, end - left, "")] if end > start else [])
    return "…" * (left > 0) + part + "…" * (right < len(text))


# `heed read`: the text in images, one line each.


Images = Annotated[list[Path] | None, Argument("Files of images: .png, .jpg …")]
Figure = Annotated[
    Path | None, Option("Write a page (.html, .svg …) of where the model looked for each character it wrote.")
]


def read_command(
    common: TaskOptions,
    image: Images = None,
    draw: Annotated[str | None, Option("Draw this text as an image, and read that.")] = None,
    beams: Beams = None,
    max_tokens: MaxTokens = None,
    figure: Figure = None,
) -> None:
    """Read the text in images, or say what is in them, as the model was taught: a line for each image.

    Examples:
      heed read number.png
      heed read --draw 2026
      heed read page-1.png page-2.png --model ./trocr-base-printed
      heed read number.png --figure looked.html
    """
    if not image and draw is None:
        raise InputError("no image is given", hint="name a file: heed read number.png")
    if image and draw is not None:
        raise InputError("an image and --draw were given", hint="give one of them")
    if figure is not None and len(image or ()) > 1:
        raise InputError(
            f"--figure shows one image, and {len(image or ())} are given", hint="give one of them"
        )
    task, options = "image-to-text", given_options(num_beams=beams, max_new_tokens=max_tokens)
    with print_warnings(), show_progress("reading"):
        from heedful.core.images import draw_for_model

        name, pipe = common.open(task)
        shown: list[Any] = list(image or ())
        if not shown:
            drawn, notes = draw_for_model(draw or "", pipe.model.image_processor, pipe.tokenizer)
            shown = [drawn]
            for note in notes:
                warnings.warn(note, stacklevel=1)
        results = pipe(shown, **options)
    for one, answers in zip(shown, results, strict=True):
        if common.json:
            about = {"image": str(one)} if image else {"drawn": draw}
            as_json({"task": task, "model": name, **about, "results": answers})
        else:
            print(answers[0]["generated_text"])
    if figure is not None:
        from heedful.classroom import figures as view

        view.image_attention(pipe.model, shown[0], name=Path(name).name).save(figure)
