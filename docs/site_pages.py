"""The pages of the site that are made from the source: one per system, the reference, and all messages.

mkdocs calls `on_files` when it builds (mkdocs.yml names this file). `system_pages` is what tests run.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+([^)#\s]+)(?:#[^)]*)?\)")  # a link to a file that is no page
IDS = [5, 9, 2, 7, 11]
TARGET = [3, 8, 6]


@cache
def made_pages() -> dict[str, dict[str, str]]:
    """Return every page that is made here, by its path, under the line of mkdocs.yml that it fills."""
    return {
        "course/*": dict(course_pages()),
        "systems/*": dict(system_pages()),
        "reference/*": dict(reference_pages()),
        "messages.md": {"messages.md": messages_page()},
    }


def on_config(config: Any) -> Any:
    """Write the pages that are made here where the navigation says `systems/*` and `reference/*`."""

    def listed(page: Any) -> list[Any]:
        made = made_pages().get(page) if isinstance(page, str) else None
        return [page] if made is None else [path for path in made if not path.endswith("index.md")]

    for section in config["nav"]:
        for name, pages in section.items():
            if isinstance(pages, list):
                section[name] = [one for page in pages for one in listed(page)]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made from the source."""
    from mkdocs.structure.files import File

    for pages in made_pages().values():
        for path, text in pages.items():
            files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Write the path of a file outside the site instead of a link to it; the map has a page here."""
    markdown = markdown.replace("(../README.md#the-map)", "(systems/index.md)")
    return OUTSIDE.sub(lambda found: f"{found[1]} (`{found[2]}`)", markdown)


def course_pages() -> Iterator[tuple[str, str]]:
    """Yield the path and the Markdown of every chapter of the course."""
    from heedful.classroom.course import chapters

    for chapter in chapters():
        yield f"course/{chapter.stem}.md", chapter.to_markdown()


def system_pages() -> Iterator[tuple[str, str]]:
    """Yield the path and the Markdown of the map, and of a page for each file of `heedful.models`."""
    from heedful.models import FAMILIES

    by_module: dict[str, list[Any]] = {}
    for family in FAMILIES.values():
        by_module.setdefault(builder(family).__module__, []).append(family)
    rows = []
    for module, families in by_module.items():
        name = module.rpartition(".")[2]
        rows.append(f"| [{', '.join(f.name for f in families)}]({name}.md) | {families[0].paper} |")
        yield f"systems/{name}.md", system_page(importlib.import_module(module), families)
    head = "# The map\n\nEvery system, in the order of their history. A page has the equations, a picture, "
    head += "ten lines of use, and what changed from the parent.\n\n| system | paper |\n| --- | --- |\n"
    yield "systems/index.md", head + "\n".join(rows) + "\n"


def system_page(module: Any, families: list[Any]) -> str:
    """Return the page of one file: what changed, a picture, the parts' equations, use, how it is built."""
    from heedful.models.counting import count

    first, _, rest = inspect.getdoc(module).partition("\n\n")
    title = " ".join(first.split()).rstrip(".")
    parts = [f"# {', '.join(family.name for family in families)}", title + "."]
    parts += ["## What changed", changes_list(rest)] if rest else []
    for family in families:
        sizes = [(name, count(name).parameters) for name in family.presets]
        parts += [
            f"## {family.name}", f"Paper: {family.paper}." if family.paper else "",
            picture(family), "Its parts, and what each computes:", f"```text\n{tree_text(family)}\n```",
            f"```python\n{usage(family)}\n```",
        ]  # fmt: skip
        if sizes:
            table = "\n".join(f"| `{name}` | {number:,} |" for name, number in sizes)
            parts.append(f"| preset | parameters |\n| --- | ---: |\n{table}")
    source = inspect.getsource(builder(families[0]))
    where = module.__name__.replace(".", "/")
    parts += ["## The build function", f"From `{where}.py`:", f"```python title='{where}.py'\n{source}```"]
    return "\n\n".join(part for part in parts if part) + "\n"


def changes_list(text: str) -> str:
    """Return the lines "From GPT-2:  learned positions → rotary   no biases" as a list of what changed."""
    lines: list[str] = []
    for line in text.splitlines():
        name, colon, said = line.partition(":  ")
        if colon and not name.startswith(" "):
            lines.append(f"- **{name}**: " + re.sub(r" {2,}", "; ", said.strip()))
        elif lines and lines[-1].startswith("- ") and re.match(r" {5,}", line):
            lines[-1] += "; " + re.sub(r" {2,}", "; ", line.strip())
        else:
            lines.append(re.sub(r"^ +(\w+)  +", r"- **\1**: ", line))
    return "\n".join(lines)


def builder(family: Any) -> Any:
    """Return the build function, which some families share."""
    return getattr(family.build, "func", family.build)


def sizes_of(family: Any) -> dict[str, Any]:
    """Return the sizes of the family's smallest model."""
    return {
        name: getattr(family.tiny, name)
        for name in sorted(family.tiny.__dict__["given"] - {"head", "labels"})
    }


def tiny_model(family: Any) -> Any:
    """Return the family's smallest model, with weights drawn from seed 0."""
    import heedful

    return heedful.build(family.name, **sizes_of(family), seed=0).eval()


def picture(family: Any) -> str:
    """Return the picture of one text in the family's smallest model, as SVG in the page."""
    from heedful.classroom import figures as view
    from heedful.models.base import Seq2Seq

    model = tiny_model(family)
    drawn = view.model(model, IDS, TARGET if isinstance(model, Seq2Seq) else None).to_svg()
    drawn = re.sub(r"<\?xml[^>]*\?>\s*|\n\s*", "", drawn)
    said = f"One text in a tiny {family.name} with random weights."
    return f'<div class="picture" markdown="0">{drawn}</div>\n\n{said}'


def tree_text(family: Any) -> str:
    """Return the assembled parts of the family's smallest model, one line each."""
    from heedful.interp.observe.show import model_tree

    def lines(node: Any, indent: str) -> Iterator[str]:
        for child in node.children:
            sizes = f" {child.shape}" if child.shape else ""
            yield f"{indent}{child.name}: {child.kind}{sizes}" + (
                f"   {child.equation}" if child.equation else ""
            )
            yield from lines(child, indent + "  ")

    return "\n".join(lines(model_tree(tiny_model(family)), ""))


def usage(family: Any) -> str:
    """Return lines that build a model of this family, run it, look inside, and let it write if it can."""
    from heedful.models.base import Seq2Seq

    model = tiny_model(family)
    sizes = ", ".join(f"{name}={value!r}" for name, value in sizes_of(family).items())
    pair = isinstance(model, Seq2Seq)
    inputs = "source, target" if pair else "tokens"
    lines = ["import torch, heedful", "", f"model = heedful.build({family.name!r}, {sizes}, seed=0)"]
    lines += [
        f"source, target = torch.tensor([{IDS}]), torch.tensor([{TARGET}])"
        if pair
        else f"tokens = torch.tensor([{IDS}])"
    ]
    lines += ["watch = heedful.Watch()  # every value", f"model({inputs}, watch=watch)", "sorted(watch)[:5]"]
    if family.objective in ("next_token", "seq2seq", "translate", "denoise") or pair:
        lines.append(f"heedful.generate(model, {IDS}, max_tokens=4)")
    return "\n".join(lines)


def reference_pages() -> Iterator[tuple[str, str]]:
    """Yield the path and the Markdown of the reference: a page for each module, with its public names."""
    names = (ROOT / "tests" / "public_names.txt").read_text(encoding="utf-8").split("\n")
    by_module: dict[str, list[str]] = {}
    for name in names:
        if re.fullmatch(r"heedful(\.\w+)+", name) and "__" not in name:
            module, _, last = name.rpartition(".")
            by_module.setdefault(module, []).append(last)
    rows = [
        f"- [`{module}`]({module}.md): " + ", ".join(f"`{n}`" for n in found)
        for module, found in by_module.items()
    ]
    yield (
        "reference/index.md",
        "# Reference\n\nEvery public name, by its module.\n\n" + "\n".join(rows) + "\n",
    )
    for module, found in by_module.items():
        listed = "\n\n".join(f"::: {module}.{name}" for name in found)
        yield f"reference/{module}.md", f"# {module}\n\n{listed}\n"


def messages_page() -> str:
    """Return one page with the text of every error and every printed note of the package, by module."""
    sections = [
        "# Messages",
        "Every error message and every note that heedful prints, by module. `…` stands for a value. The text "
        "after the arrow is the hint, which says what to do.",
    ]
    for path in sorted((ROOT / "src" / "heedful").rglob("*.py")):
        calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
        lines = [line for call in sorted(calls, key=lambda c: c.lineno) if (line := message_line(call))]
        if lines:
            where = path.relative_to(ROOT / "src").as_posix()
            sections.append(f"## {where}\n\n" + "\n".join(dict.fromkeys(lines)))
    return "\n\n".join(sections) + "\n"


def message_line(call: ast.Call) -> str | None:
    """Return the list item of a call that makes an error or prints a note, or None for any other call."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    is_error = name.endswith("Error") or name in ("NotFound", "CorruptFile", "RequestRefused")
    if not call.args or not (is_error or name in ("report", "warn", "note", "print_note")):
        return None
    text = text_of(call.args[0])
    if text is None or not re.search(r"[a-z]{2}", text):
        return None
    hints = [text_of(keyword.value) for keyword in call.keywords if keyword.arg == "hint"]
    return f"- `{name}`: {text}" + "".join(f" → {hint}" for hint in hints if hint)


def text_of(node: ast.expr) -> str | None:
    """Return the text of a string or f-string with `…` for its values, or None if it is not a literal."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
    elif isinstance(node, ast.JoinedStr):
        text = "".join(v.value if isinstance(v, ast.Constant) else "…" for v in node.values)  # type: ignore
    else:
        return None
    return re.sub(r"([<>*_`\[\]|])", r"\\\1", " ".join(text.split()))
