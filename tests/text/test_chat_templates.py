"""Chat templates write what transformers' apply_chat_template writes.

HEED_TOKENIZERS names a folder in which llama.cpp is the `models` folder of that repository.
"""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import Any

import pytest

from heedful.core.errors import InputError
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


LOOP = "{% for a in range(99999) %}"
TWICE = "{% set n = namespace(x=VALUE) %}{% for a in range(99) %}{% set n.x = STEP %}{% endfor %}"
COSTLY = {
    "nested loops": LOOP * 2 + "{% endfor %}" * 2,
    "a long text": LOOP + "{{ 'x' * 1000 }}{% endfor %}",
    "a long captured text": "{% set t %}" + LOOP * 2 + "x" * 1000 + "{% endfor %}" * 2 + "{% endset %}",
    "a text that doubles with ~": TWICE.replace("VALUE", "'x'").replace("STEP", "n.x ~ n.x"),
    "a text that doubles with +": TWICE.replace("VALUE", "'x'").replace("STEP", "n.x + n.x"),
    "a list that doubles": TWICE.replace("VALUE", "[1]").replace("STEP", "n.x + n.x"),
    "a nested list as text": TWICE.replace("VALUE", "[1]").replace("STEP", "[n.x, n.x]") + "{{ n.x }}",
    "a nested list as JSON": TWICE.replace("VALUE", "[1]").replace("STEP", "[n.x, n.x]") + "{{ n.x|tojson }}",
    "a number that grows": TWICE.replace("VALUE", "7").replace("STEP", "n.x * n.x"),
    "a repeated text": "{{ 'x' * 10**10 }}",
    "a repeated list": "{{ [1] * 10**10 }}",
    "a power": "{{ 9**(9**9) }}",
    "a wide filter": "{{ 'x' | center(10**10) }}",
    "a wide method": "{{ 'x'.ljust(10**10) }}",
    "a filter that is looked up": "{{ ['x'] | map('center', 10**10) | list }}",
    "a method that is looked up": "{{ ('x' | attr('ljust'))(10**10) }}",
    "a wide number": "{{ '%10000000000d' % 1 }}",
    "a wide number by a filter": "{{ '%*d' | format(10**10, 1) }}",
    "a wide field": "{{ '{:>10000000000}'.format(1) }}",
    "a replacement": "{{ ('x' * 100000).replace('x', 'y' * 100000) }}",
    "a joined list": "{{ (['y' * 100000] * 99999) | join }}",
    "a list joined by a method": "{{ ('y' * 100000).join(['x'] * 99999) }}",
    "an indented text": "{{ ('\\n' * 100000) | indent(100000) }}",
    "batches that are filled": "{{ [1] | batch(10**10, 0) | list }}",
    "a sum of lists": "{{ ([[1] * 99999] * 99999) | sum(start=[]) }}",
    "macros": "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n }}{% endmacro %}{{ f(99) }}",
    "blind text": "{{ lipsum(10**6) }}",
}


@pytest.mark.parametrize("name", COSTLY)
def test_a_template_that_would_take_all_time_or_memory_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heedful.text.chat_templates.MAX_WORK", 2_000_000)  # it then ends sooner
    began, (soft, hard) = time.thread_time(), resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + 2**30, hard))  # a gigabyte more than now
    try:
        with pytest.raises(InputError, match="more time or memory|'lipsum' is undefined"):
            render_chat(COSTLY[name], messages=HI)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert time.thread_time() - began < 10


def test_a_long_conversation_is_rendered() -> None:
    template = "{% for m in messages %}{{ '<' + m.role + '>' + m.content ~ '\\n' }}{% endfor %}"
    messages = [*HI * 20_000, {"role": "user", "content": "x" * 5_000_000}]
    assert len(render_chat(template, messages=messages)) == 20_000 * 9 + 5_000_007


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
