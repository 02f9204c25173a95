"""Every system, one line each: the first file to open.

    system          file               paper                                       own part
    GPT             gpt.py             Radford et al. 2018
    GPT-2           gpt.py             Radford et al. 2019
    GPT-3           gpt.py             Brown et al. 2020                           banded layers
    LLaMA 1 2 3     llama.py           Touvron et al. 2023                         rotary, gated MLP
    Mistral         llama.py           Jiang et al. 2023                           window
"""

from __future__ import annotations

from heedful.errors import NotFound, nearest
from heedful.models.base import Config, Family
from heedful.models.gpt import GPT, GPT2, GPT3
from heedful.models.llama import LLAMA, MISTRAL

FAMILIES: dict[str, Family] = {family.name: family for family in (GPT, GPT2, GPT3, LLAMA, MISTRAL)}


def presets() -> dict[str, tuple[Family, Config]]:
    """Every published size by the name people know."""
    return {name: (family, config) for family in FAMILIES.values() for name, config in family.presets.items()}


def find(name: str) -> tuple[Family, Config]:
    """The family and config of a preset, or of a family by its own name; an error with the nearest name otherwise."""
    known = presets()
    if name in known:
        return known[name]
    if name in FAMILIES:
        return FAMILIES[name], FAMILIES[name].config.strict()
    raise NotFound(f"no model is called {name!r}; {nearest(name, [*known, *FAMILIES]) or 'list them with: heed ls'}")


def by_model_type(model_type: str) -> Family:
    """The family that a published `model_type` belongs to."""
    table = {t: f for f in FAMILIES.values() for t in (f.model_types or (f"heedful-{f.name}",))}
    if model_type not in table:
        raise NotFound(
            f"config.json has model_type={model_type!r}, which is not known here; "
            + (nearest(model_type, table) or f"known: {', '.join(sorted(table))}")
        )
    return table[model_type]
