"""docs/families.md says what each family cost to add: `python -m tests.test_families_page` writes it."""

from __future__ import annotations

import re
import statistics
import sys
from pathlib import Path

from heedful.models import FAMILIES, MEDIA_FAMILIES, all_families
from heedful.models.family import Family
from tests.models.published_counts import CONFIRMED, UNCONFIRMED
from tests.parity.cases import CASES

PAGE = Path(__file__).parents[1] / "docs" / "families.md"
HEAD = """# What a family costs

A published family takes {median:g} lines at the median. It is one file in `models/`, or a part of a
relative's file, and a name in `MODULES` of `models/__init__.py`. [CONTRIBUTING.md](../CONTRIBUTING.md) shows
how to add one.

- *Lines* are the lines of the file, divided by the families in it: config, build function, names, keys,
  presets and imports.
- *Changed* is how the family differs from its parent.
- *Configs* is the number of configs per family in which heedful and `transformers` give equal results, in
  both directions and with padding on either side (`pytest tests/parity`).

`python -m tests.test_families_page` writes this page.

| families | file | lines | changed | configs |
| --- | --- | ---: | --- | ---: |
"""


TAIL = """
## Sizes

{confirmed} presets of these families have exactly the published number of parameters.
`tests/models/published_counts.py` gives the source of each number. No exact number is published for
{unconfirmed} presets. We counted those from the sizes in their papers and cards. A preset is the base model
of its name. A version that follows instructions may state another context.

| presets without a published number |
| --- |
| {names} |
"""


REFUSED_HEAD = """
## Model types that are refused

`transformers` {version} has {count} model types with a class for causal, masked or conditional language
modelling. heedful reads {known} of them. Loading a file of another type stops with an error. The first
column is our judgement from papers and sources. We have not tried it. Reformer, for example, hashes queries
and keys into buckets, sorts them, and computes its layers again on the way back. Its file in transformers has
2,675 lines. We estimate 250 here, because generation needs a separate state. Transformer-XL was dropped by
transformers. It is built here and equals stored answers of transformers 4.37.2
(`tests/models/test_transformer_xl.py`).

| what it would need | model types |
| --- | --- |
"""
# What each kind of type would need; types that heedful reads by now are left out when the page is written.
NEEDS = {
    "a row or a value: its parts are all here": (
        "cwm helium vaultgemma gpt-sw3 gpt_neox_japanese xglm biogpt megatron-bert "
        "roberta-prelayernorm xlm-roberta-xl data2vec-text bert-generation rembert mvp plbart "
        "blenderbot trocr granite_swa modernbert-decoder persimmon ctrl axk1 "
        "cohere_compass_text encoder-decoder gte jina_embeddings_v3 mellum nanochat t5gemma ultrabert"
    ),
    "one new part of attention: a difference of two patterns, a delay, compressed or selected keys": (
        "diffllama doge minicpm3 deepseek_v32 deepseek_v4 glm_moe_dsa fsmt xmod mra yoso nystromformer "
        "longt5 prophetnet axk2 cpmant hunyuan_v1_dense mimo_v2_flash minimax_m3_vl_text ministral3 "
        "qwen4_exp qwen4_exp_text"
    ),
    "one new router or kind of experts": (
        "phimoe switch_transformers nllb-moe dbrx granitemoe granitemoeshared granitemoe_swa "
        "cohere2_moe ernie4_5_moe glm4_moe glm4_moe_lite hunyuan_v1_moe minimax_m2 flex_olmo jetmoe "
        "dots1 afmoe solar_open qwen3_5_moe qwen3_5_moe_text llama4_text longcat_flash exaone_moe beam "
        "flint hy_v3 kolibri1 laguna"
    ),
    "state spaces, recurrences or convolutions next to attention": (
        "bamba falcon_h1 granitemoehybrid jamba nemotron_h zamba zamba2 recurrent_gemma lfm2 lfm2_moe "
        "kimi_linear minimax xlstm rwkv convbert bailing_hybrid hrm_text inkling_text zaya"
    ),
    "sparse patterns, recurrence over segments, hashing, or no attention at all": (
        "longformer led big_bird bigbird_pegasus reformer xlnet xlm flaubert funnel fnet pegasus_x perceiver"
    ),
    "another way to a vector: bytes, characters, entities, tables, boxes or proteins": (
        "blt luke layoutlm tapas esm esmc roc_bert"
    ),
    "a part that sees or hears": (
        "aria_text emu3 fuyu gemma3 gemma3n gemma3n_text gemma4 gemma4_text gemma4_unified git "
        "got_ocr2 llama4 mllama moshi musicgen musicgen_melody phi4_multimodal qwen2_audio qwen3_5 "
        "qwen3_asr seamless_m4t seamless_m4t_v2 whisper voxtral voxtral_realtime audioflamingo3 "
        "musicflamingo granite_speech granite_speech_plus glmasr vibevoice_asr modernvbert "
        "moss_transcribe_diarize nemo_speechlm gemma4_assistant gemma4_unified_assistant "
        "gemma4_unified_text neomme t5gemma2 ultravbert"
    ),
    "another activation, another residual stream, or narrower matrices": (
        "apertus hy_v4 mobilebert squeezebert"
    ),
    "weights in whole numbers or three values": ("bitnet ibert"),
}


def refused_types() -> str:
    """Return the table of model types that heedful does not read, by what they would need."""
    import transformers
    from transformers.models.auto import modeling_auto

    heads = ("CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM")
    every = {t for head in heads for t in getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING_NAMES")}
    refused = every - {t for family in all_families().values() for t in family.model_types}
    kinds = {need: [t for t in types.split() if t in refused] for need, types in NEEDS.items()}
    others = sorted(refused - {t for types in kinds.values() for t in types})
    assert not others, f"look at the sources of {', '.join(others)}, and say in NEEDS what they would need"
    version, known = transformers.__version__, len(every) - len(refused)
    rows = "".join(f"| {need} | {', '.join(sorted(types))} |\n" for need, types in kinds.items() if types)
    return REFUSED_HEAD.format(version=version, count=len(every), known=known) + rows


def module_of(family: Family) -> str:
    """Return the name of the module that builds a family."""
    build = getattr(family.build, "func", family.build)  # what a partial calls
    return str(build.__module__)


def lines_of(family: Family) -> int:
    """Return its file's lines, divided by the families in the file."""
    module = module_of(family)
    beside = [other for other in (FAMILIES | MEDIA_FAMILIES).values() if module_of(other) == module]
    text = Path(str(sys.modules[module].__file__)).read_text(encoding="utf-8")
    return round(len(text.splitlines()) / len(beside))


def changes_of(family: Family) -> str:
    """Return what the docstring of its file says after "From …:", or "" where it has no parent."""
    text = sys.modules[module_of(family)].__doc__ or ""
    joined = re.sub(r",?\n {8,}", ", ", text)  # a line that goes on
    found = re.findall(r"^(From [^:\n]*|[A-Z][^:\n]{0,24}):\s+(.*)$", joined, re.MULTILINE)
    return "; ".join(f"{parent.lower()}: {re.sub(',? {2,}', ', ', what.strip())}" for parent, what in found)


def configs_of(family: Family) -> int:
    """Return how many rows of the table of parity are its own: the longest name that begins a row's."""
    begins = lambda row, name: row == name or row.startswith(f"{name}-")
    owner = lambda row: max((name for name in FAMILIES if begins(row, name)), key=len, default="")
    if family.name in MEDIA_FAMILIES:
        return media_configs()[family.name]
    return sum(owner(case.id) == family.name for case in CASES)


def media_configs() -> dict[str, int]:
    """Return how many configs of each family that reads images or sounds are compared."""
    from tests.parity import test_clip, test_vision, test_vit, test_whisper

    starts = {
        "vit": (test_vit, "vit"), "deit": (test_vit, "deit"), "clip-text-model": (test_clip, "text"),
        "clip-vision-model": (test_clip, "image"), "clip": (test_clip, "clip"),
        "vision-encoder-decoder": (test_vision, ""), "whisper": (test_whisper, ""),
    }  # fmt: skip
    return {name: sum(row.startswith(at) for row in tests.CASES) for name, (tests, at) in starts.items()}


def page() -> str:
    """Return the page: a row for every file, with the families in it."""
    published = [family for family in (FAMILIES | MEDIA_FAMILIES).values() if family.model_types]
    rows = []
    for module in dict.fromkeys(map(module_of, published)):
        here = [family for family in published if module_of(family) == module]
        file = module.rpartition(".")[2]
        names = ", ".join(family.name for family in here)
        configs = " + ".join(str(configs_of(family)) for family in here)
        link = f"[{file}.py](../src/{module.replace('.', '/')}.py)"
        rows.append(f"| {names} | {link} | {lines_of(here[0])} | {changes_of(here[0])} | {configs} |")
    median = statistics.median(map(lines_of, published))
    tail = TAIL.format(
        confirmed=sum(map(len, CONFIRMED.values())),
        unconfirmed=len(UNCONFIRMED),
        names=", ".join(UNCONFIRMED),
    )
    return HEAD.format(median=median) + "\n".join(rows) + "\n" + tail + refused_types()


def test_every_published_family_is_on_the_page() -> None:
    listed = re.findall(r"^\| ([^|]*) \| \[", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    families = (FAMILIES | MEDIA_FAMILIES).values()
    missing = {f.name for f in families if f.model_types} - set(", ".join(listed).split(", "))
    assert not missing, "run python -m tests.test_families_page"


def test_most_families_are_short() -> None:
    assert statistics.median(lines_of(family) for family in FAMILIES.values() if family.model_types) < 100


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
