"""Chat templates write what transformers' apply_chat_template writes.

HEED_TOKENIZERS names a folder in which llama.cpp is the `models` folder of that repository.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from heedful.errors import InputError
from heedful.text.chat_templates import render_chat

HI = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% generation %}a{{ messages[0].content }}{% endgeneration %}b", "aHib"),
        ("{{ {'é': '<'} | tojson(ensure_ascii=true) }}", '{"\\u00e9": "<"}'),
        ("{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}", '{"a":2,"b":1}'),
        ("{{ 'é' | tojson }}", '"é"'),
        ("{{ tools is none and documents is none }}", "True"),
        ("{% for n in [1, 2] %}{% if n == 2 %}{% break %}{% endif %}{{ n }}{% endfor %}", "1"),
    ],
)
def test_templates_have_what_transformers_gives_them(template: str, text: str) -> None:
    assert render_chat(template, messages=HI) == text


@pytest.mark.parametrize("template", ["{{ 1 / 0 }}", "{{ messages[7].content.x }}", "{% generation %}"])
def test_whatever_a_template_stumbles_over_is_one_error(template: str) -> None:
    with pytest.raises(InputError, match="chat template"):
        render_chat(template, messages=HI)


CONVERSATIONS: list[list[dict[str, Any]]] = [
    HI,
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": 'Hi <b> "q" é'}],
    [
        {"role": "system", "content": "Be brief."}, *HI, {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": " 2+2? "},
    ],
    [*HI, {"role": "assistant", "content": "Hello!"}],
    [{"role": "user", "content": [{"type": "text", "text": "Hi there"}]}],
]  # fmt: skip


PUBLISHED = (
    "HuggingFaceTB-SmolLM3-3B", "Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B", "google-gemma-2-2b-it",
    "meta-llama-Llama-3.2-3B-Instruct", "microsoft-Phi-3.5-mini-instruct",
    "mistralai-Mistral-Nemo-Instruct-2407", "openai-gpt-oss-120b", "LFM2.5-8B-A1B", "GigaChat3-10B-A1.8B",
)  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_templates_write_what_transformers_writes(name: str) -> None:
    path = Path(os.environ.get("HEED_TOKENIZERS", "")) / "llama.cpp" / "templates" / f"{name}.jinja"
    if not path.is_file():
        pytest.skip(f"HEED_TOKENIZERS names no folder with llama.cpp/templates/{name}.jinja")
    utils = pytest.importorskip(
        "transformers.utils.chat_template_utils", reason="transformers is the reference"
    )
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    source = path.read_text(encoding="utf-8")
    for messages in CONVERSATIONS:
        for opens in (True, False):
            keywords = {"add_generation_prompt": opens, **special}
            try:
                rendered, _ = utils.render_jinja_template(
                    conversations=[messages], chat_template=source, **keywords
                )
            except Exception:  # it refuses such a conversation: so does ours
                with pytest.raises(InputError):
                    render_chat(source, messages=messages, **keywords)
            else:
                assert render_chat(source, messages=messages, **keywords) == rendered[0]
