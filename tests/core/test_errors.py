"""Messages: the arguments in them are marked, and each reader gets them as he writes them."""

from __future__ import annotations

import ast
import pickle
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from heedful.core.errors import (
    ARGUMENT,
    HeedfulError,
    InputError,
    MissingPackage,
    NotFound,
    count_of,
    find_named,
)
from heedful.core.lazy import EXTRAS, import_optional

SOURCES = Path(__file__).parents[2] / "src" / "heedful"
# What looks like an argument: no path of a setting (data.length=3), no option (--set a=b), no comparison.
UNMARKED = re.compile(r"(?<![\w.\-/=])(?<!--set )(?:[a-z][a-z_]*|…)=(?!=)")
WORDS_OF_THE_SHELL = {"path=value"}  # what --set takes
PART_OF_A_MARK = "…=…"  # of a list that a message puts into a mark as a whole
CODE = re.compile(r"`[^`]*`")


def error_names(trees: dict[Path, ast.Module]) -> set[str]:
    """Return the names of HeedfulError and of all classes below it."""
    names = {"HeedfulError"}
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    for _ in range(5):
        names |= {c.name for c in classes if {b.id for b in c.bases if isinstance(b, ast.Name)} & names}
    return names - {"RequestRefused", "OpenAIError"}  # they speak to a client of HTTP, of its JSON


def literal(node: ast.expr) -> str:
    """Return the text of a string in the source, with … for what is filled in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(v) if isinstance(v, ast.Constant) else "…" for v in node.values)
    return ""


def strings(node: ast.expr) -> Iterator[ast.expr]:
    """Yield every string below an expression; one with values is one string."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        yield node
    if not isinstance(node, ast.JoinedStr):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from strings(child)


def raised_texts() -> Iterator[tuple[str, str]]:
    """Yield where each text of an error stands, and the text: in the call, or in a variable that it names."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCES.rglob("*.py"))}
    errors = error_names(trees) | {"error"}  # `error` is what checks call the class that they are given
    for path, tree in trees.items():
        assigned: dict[str, list[ast.expr]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name):
                        assigned.setdefault(target.id, []).append(node.value)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            keywords = {k.arg: k.value for k in node.keywords}
            texts = [keywords["hint"]] if "hint" in keywords else []
            if isinstance(node.func, ast.Name) and node.func.id in errors:
                texts += node.args[:2]
            for text in texts:
                names = {n.id for n in ast.walk(text) if isinstance(n, ast.Name)}
                parts = [text, *(value for name in names for value in assigned.get(name, ()))]
                for part in parts:
                    for one in strings(part):
                        yield f"{path.relative_to(SOURCES)}:{one.lineno}", literal(one)


def test_every_argument_in_a_message_is_marked() -> None:
    texts = set(raised_texts())
    assert len(texts) > 1000, "the sources were not read"
    unmarked = [
        f"{where}: {text}"
        for where, text in sorted(texts)
        if text != PART_OF_A_MARK and not any(word in text for word in WORDS_OF_THE_SHELL)
        and UNMARKED.search(CODE.sub("", text))
    ]  # fmt: skip
    assert not unmarked, "\n".join(unmarked)


def test_marks_are_balanced() -> None:
    odd = [f"{where}: {text}" for where, text in sorted(set(raised_texts())) if text.count("`") % 2]
    assert not odd, "\n".join(odd)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("give `top_k=0` or less", "top_k", "0"),
        ("give `top_k=`", "top_k", ""),
        ("give `text='a ` and b'` here", "text", "'a ` and b'"),
        ("give `texts=['a b', 'c']`", "texts", "['a b', 'c']"),
        ("`data.length=3` is short", "data.length", "3"),
        ("`config.json: n_embd=3` is short", "config.json: n_embd", "3"),
        ("`/tmp/a b/config.json: n_embd=3` is short", "/tmp/a b/config.json: n_embd", "3"),
        ("`C:\\vit\\config.json: n_embd=3` is short", "C:\\vit\\config.json: n_embd", "3"),
    ],
)
def test_a_mark_is_a_name_and_its_whole_value(text: str, name: str, value: str) -> None:
    assert ARGUMENT.findall(text) == [(name, value)]


def test_python_reads_arguments_without_marks_and_code_with_them() -> None:
    error = InputError(
        "`top_k=0` is too small", hint="pass `top_k=`, or call `heedful.load(NAME, into=model)`"
    )
    assert error.message == "top_k=0 is too small"
    assert str(error) == "top_k=0 is too small; pass top_k=, or call `heedful.load(NAME, into=model)`"
    again = type(error)(f"line 3: {error.marked_message}", error.marked_hint)
    assert again.message == "line 3: top_k=0 is too small"
    assert again.marked_hint == error.marked_hint


def test_an_optional_package_that_is_missing_or_broken_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text("raise ImportError('libbroken.so: no such file')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        MissingPackage, match=r"drawing needs the package broken, which cannot be imported \(lib"
    ):
        import_optional("broken", "drawing")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingPackage, match="needs the package Pillow, which is not installed") as caught:
        import_optional("PIL.Image", "reading images", "give numbers")
    assert caught.value.hint == 'install it with: pip install "heedful[images]"; or give numbers'


def test_the_extras_that_messages_name_exist() -> None:
    project = tomllib.loads((SOURCES.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(EXTRAS.values()) <= project["optional-dependencies"].keys()


def test_an_error_travels_between_processes() -> None:
    error = InputError("is unknown", argument="scheme", value="int5", allowed=["int8"])
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.argument, copy.allowed) == (str(error), "scheme", ("int8",))
    assert isinstance(copy, HeedfulError)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((1, "columns"), "1 column"),
        ((2000, "columns"), "2,000 columns"),
        ((0, "classes"), "0 classes"),
        ((1, "classes"), "1 class"),
        ((1, "rows", "are"), "1 row is"),
        ((1, "rows", "were", 3), "1 of 3 rows was"),
        ((2, "rows", "have", 3), "2 of 3 rows have"),
        ((1, "rows", "have", 1), "1 of 1 row has"),
    ],
)
def test_a_count_agrees_with_its_noun_and_verb(given: tuple[int, str], text: str) -> None:
    assert count_of(*given) == text


def test_an_unknown_name_is_answered_with_the_nearest_or_with_all() -> None:
    entries = {"attention": 1, "softmax": 2}
    assert find_named(entries, "softmax", "no such exercise") == 2
    for name, words in (("atention", "did you mean 'attention'"), ("xyz", "there are attention, softmax")):
        with pytest.raises(NotFound, match="no such exercise") as error:
            find_named(entries, name, "no such exercise", NotFound)
        assert words in (error.value.hint or "")
    with pytest.raises(InputError) as refusal:
        find_named({}, "xyz", "no run")
    assert refusal.value.hint == "there are none"
