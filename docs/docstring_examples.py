"""Show the examples of docstrings as code on the site.

A docstring writes an example as `>>>` lines without a fence. Markdown would read those lines as nested
quotations, and brackets in the output as links. mkdocs.yml names this file as an extension of griffe,
which reads the docstrings.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^>>> .*\n?)(?:^.*\S.*\n?)*", re.MULTILINE)


class DocstringExamples(griffe.Extension):
    """Put every example of a docstring into a fenced block."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence the examples of one class, function or module."""
        if obj.docstring:
            obj.docstring.value = fence_examples(obj.docstring.value)


def fence_examples(text: str) -> str:
    """Return the text with each paragraph that begins with `>>>` in a block of code."""
    return EXAMPLE.sub(lambda example: f"```pycon\n{example[0].rstrip()}\n```\n", text)
