"""The registry of all families. README.md has a map: which file has which family, and its papers."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from types import ModuleType
from typing import Any

from heedful.core.errors import NotFound, nearest
from heedful.models.base import Config, Family
from heedful.models.decoders import bart_decoders, transformer_xl
from heedful.models.decoders.gpt_lineage import bloom, gpt, gpt_relatives, parallel
from heedful.models.decoders.llama_lineage import (
    deepseek,
    gemma,
    llama,
    olmo,
    phi,
    qwen,
    relatives,
)
from heedful.models.encoder_decoders import bart, t5, transformer, whisper
from heedful.models.encoders import (
    baselines,
    bert,
    bert_relatives,
    deberta,
    rotary_encoders,
    sparse,
    xlnet,
)
from heedful.models.recurrent import language_models, seq2seq
from heedful.models.state_space import delta, linear, ssm
from heedful.models.vision import clip, vision_encoder_decoder, vit

# Files in the order in which their families are listed. A family without a new part stands after its parent.
MODULES = (
    *(language_models, seq2seq, transformer),
    *(baselines, bert, bert_relatives, deberta, rotary_encoders, sparse, xlnet),
    *(gpt, gpt_relatives, llama, parallel, bloom, deepseek, phi, relatives, qwen, gemma, olmo),
    *(t5, bart, bart_decoders, ssm, linear, delta, transformer_xl),
)
MEDIA_MODULES = (vit, clip, vision_encoder_decoder, whisper)


def families_in(*modules: ModuleType) -> dict[str, Family]:
    """The families that files declare, by name, in the order in which they stand there."""
    values = (value for module in modules for value in vars(module).values())
    return {value.name: value for value in values if isinstance(value, Family)}


FAMILIES = families_in(*MODULES)  # read text; those of media read images or sounds
MEDIA_FAMILIES = {
    name: family for name, family in families_in(*MEDIA_MODULES).items() if name not in FAMILIES
}
BUILT_IN = frozenset(FAMILIES | MEDIA_FAMILIES)


def all_families() -> dict[str, Family]:
    """Every family by its name: ours, and those of other packages and files."""
    from heedful.models.plugins import load_plugins

    load_plugins()
    return FAMILIES | MEDIA_FAMILIES


def presets() -> dict[str, tuple[Family, Config]]:
    """Every published size by the name people know."""
    every = all_families().values()
    return {name: (family, config) for family in every for name, config in family.presets.items()}


def find_config(name: str) -> tuple[Family, Config]:
    """The family and config of a preset, or of a family by its own name; else an error with the nearest."""
    sizes, every = presets(), all_families()
    if not isinstance(name, str):
        raise NotFound(
            f"a model is built by its name, and {type(name).__name__} is none",
            hint='give sizes as well: `build("gpt2", layers=2)`',
        )
    if name in sizes:
        return sizes[name]
    if name in every:
        return every[name], every[name].config.strict()
    raise NotFound(
        f"no model is called {name!r}",
        hint=nearest(name, [*sizes, *every]) or "list them with: heed ls",
    )


def find_family(name: str) -> Family | None:
    """The family of this name, if there is one."""
    return all_families().get(name)


REFUSED = {
    "heedful-assembled": "its parts are your own: assemble it again, then `heedful.load(FOLDER, into=model)`",
    "gemma3": "its config.json should have a text_config, of the text model in it: fetch it again",
    "hf_olmo": "this is OLMo's own format: fetch the copy whose name ends in -hf",
    "mixformer-sequential": "this Phi has an early format: fetch it again, it says phi now",
    "phi-msft": "this Phi has an early format: fetch it again, it says phi now",
    "RefinedWeb": "this Falcon has an early format: fetch it again, it says falcon now",
    "RefinedWebModel": "this Falcon has an early format: fetch it again, it says falcon now",
    "stablelm_epoch": "this StableLM has an early format: fetch it again, it says stablelm now",
}  # `model_type`s of published files that are near to ours, and what to fetch instead


def by_model_type(model_type: str, classes: object = None) -> Family:
    """The family that a published `model_type` belongs to.

    Several may, as BART and its decoder alone: then the one that has the first of the published `classes`.
    """
    table: dict[str, Family] = {}
    for family in all_families().values():
        named = isinstance(classes, list) and classes[:1] in [[name] for name in family.heads.values()]
        for kind in (*family.model_types, f"heedful-{family.name}"):
            table[kind] = family if named else table.get(kind, family)
    if model_type == "None":
        raise NotFound(
            "config.json has no model_type, so the family of these weights is unknown",
            hint="fetch a copy in the format of transformers, or add it",
        )
    if model_type not in table:
        # A published name that is near to a known one is no slip of the pen, but another architecture.
        own = model_type.startswith("heedful-")
        alike = get_close_matches(model_type, [name for name in table if name.startswith("heedful-") == own])
        similar = f"similar names are known: {', '.join(alike)}; " if alike else ""
        raise NotFound(
            f'config.json has "model_type": {model_type!r:.80}, which is not known here',
            hint=REFUSED.get(model_type) or f"{similar}heed ls lists the families that can be read",
        )
    return table[model_type]


def by_gguf(metadata: Mapping[str, Any], where: str) -> Family:
    """The family that reads a GGUF file with these metadata; `where` names it in errors."""
    kind, architecture = metadata.get("general.type", "model"), metadata.get("general.architecture")
    if kind != "model":
        raise NotFound(
            f"{where} holds no model: its general.type is {kind!r:.40}", hint="load the model itself"
        )
    if not architecture:
        raise NotFound(
            f"{where} does not say what it holds: it has no general.architecture", hint="fetch it again"
        )
    named = [family for family in FAMILIES.values() if family.gguf == architecture]
    matching = [family for family in named if family.gguf_when and metadata.get(family.gguf_when)]
    for family in matching or (family for family in named if not family.gguf_when):
        return family
    names = ", ".join(sorted({family.gguf for family in FAMILIES.values() if family.gguf}))
    raise NotFound(f"{where} holds a {architecture!r:.80}", hint=f"GGUF is read here for {names}")
