"""Families from outside: of installed packages, of files, and of code that calls `register`.

An installed package names its families in the entry-point group `heedful.families`. `heed --import` names a
module or a file, and sets HEED_IMPORT. Both are imported when a family is first looked up by its name.

`register` tries a family out in its smallest size: it builds, watches, counts, steps and saves the model, on
paper where that is enough. So the author of a family learns what is missing, and not the person who uses it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from heedful.core.errors import ConfigError, HeedfulError, NotFound
from heedful.models import BUILT_IN, FAMILIES, families_in, presets
from heedful.models.base import LM, Config, Family, Model, Seq2Seq
from heedful.models.hf_config import config_from, config_to
from heedful.models.value_names import run_pass
from heedful.nn.block import Block, ParallelBlock, Stack
from heedful.nn.init import initialise
from heedful.nn.norm import RMSNorm
from heedful.nn.watch import Watch
from heedful.weights.names import connect, model_tensors

GROUP, VARIABLE = "heedful.families", "HEED_IMPORT"
PAGE = "docs/extend.md shows a complete family"
ROWS, LENGTH, SOURCE = 2, 5, 3  # of the texts on which a family is tried out
TOLERANCE = 1e-3


def register(family: Family) -> Family:
    """Add a family of your own, and return it.

    `build`, `load`, `heed ls`, `heed train` and the studio then know it by its name. A family that lacks
    something is refused with an error that names what is missing. Registering a name again replaces your
    earlier family.

    >>> import dataclasses, heedful
    >>> from heedful.models.decoders.llama_lineage.llama import LLAMA
    >>> mine = dataclasses.replace(LLAMA, name="my-llama", model_types=(), presets={})
    >>> heedful.register(mine).name
    'my-llama'
    >>> heedful.build("my-llama", vocab=128, dim=32, layers=1, heads=2, device="meta").kind
    'decoder'

    Args:
        family: The `Family`: its config, build function, table of names, presets and smallest size.
    """
    check_family(family)
    FAMILIES[family.name] = family
    return family


@functools.cache
def pending_plugins(modules: str) -> list[EntryPoint | str]:
    """Return what is still to be imported; whoever imports it takes it from the list."""
    return [*entry_points(group=GROUP), *filter(None, modules.split(os.pathsep))]


def load_plugins() -> None:
    """Register the families of installed packages and of HEED_IMPORT that were not imported yet."""
    pending = pending_plugins(os.environ.get(VARIABLE, ""))
    while pending:
        plugin = pending.pop(0)  # before it is imported, because what it imports may come here as well
        if isinstance(plugin, str):
            register_all(import_module(plugin))
            continue
        try:
            register_all(plugin.load())
        except Exception as error:  # a package that is broken must not stop the others
            warnings.warn(f"the families of {plugin.value} are left out: {error}", stacklevel=2)


def register_all(source: Any) -> None:
    """Register a family, or those that a module declares and has not registered itself."""
    families = families_in(source).values() if isinstance(source, ModuleType) else [source]
    for family in families:
        if not any(family is other for other in FAMILIES.values()):
            register(family)


def import_module(name: str) -> ModuleType:
    """Import a module by its name or the path of its file; the present folder counts as well."""
    if not name.endswith(".py"):
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and (name == error.name or name.startswith(f"{error.name}.")):
                raise NotFound(f"no module {name!r}", hint="give a file, such as my_family.py") from None
            raise
    path = Path(name)
    if not path.is_file():
        raise NotFound(f"no file {name!r}", hint="check the path")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@contextmanager
def step(family: Family, action: str, hint: str = "") -> Iterator[None]:
    """Say of any error inside which family it concerns and what was tried."""
    try:
        yield
    except Exception as error:
        reason = error.message if isinstance(error, HeedfulError) else f"{type(error).__name__}: {error}"
        hint = hint or (isinstance(error, HeedfulError) and error.hint) or PAGE
        raise ConfigError(
            f"the family {family.name!r} cannot be {action}: {reason:.300}", hint=hint
        ) from error


def check_family(family: Family) -> None:
    """Raise ConfigError for a family that lacks something; it is tried out in its smallest size."""
    if not isinstance(family, Family):
        raise ConfigError(f"a {type(family).__name__} is not a Family", hint=PAGE)
    check_names(family)
    with step(family, "built", "its config needs a default for every field"):
        family.config.strict()
    with step(family, "built"), torch.random.fork_rng(), torch.device("cpu"):
        torch.manual_seed(0)
        model = family.build(family.tiny)
        if not isinstance(model, LM | Seq2Seq):
            raise ConfigError(f"build gives a {type(model).__name__}", hint="return an LM or a Seq2Seq")
        initialise(model, 0.1)
        model.config, model.family = family.tiny, family
    model.eval()
    check_saving(family, model)
    check_watching(family, model)
    with step(family, "counted", "give the part mixing_flops and state_numbers (heedful.nn.Part)"):
        from heedful.models.counting import count

        count(model)
    if model.kind != "encoder" and model.config.head == "lm":
        check_steps(family, model)
    check_attribution(family, model)


def check_names(family: Family) -> None:
    """Raise ConfigError for a name that is not free or cannot be written in a command."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", family.name):
        raise ConfigError("has characters that a command cannot use", argument="name", value=family.name,
                          hint="use a-z, 0-9, '-', '_' and '.'")  # fmt: skip
    if family.name in BUILT_IN:
        raise ConfigError("is the name of a family of heedful", argument="name", value=family.name)
    others = {name for name, (owner, _) in presets().items() if owner.name != family.name}
    if taken := sorted(others & family.presets.keys()):
        raise ConfigError(f"the preset {taken[0]!r} exists", hint="choose another name")
    for config in (family.tiny, *family.presets.values()):
        if not isinstance(config, Config) or type(config) is not family.config:
            raise ConfigError(
                f"a preset of {family.name!r} is a {type(config).__name__}",
                hint=f"presets and tiny must be of the family's config, {family.config.__name__}",
            )
    known = {other.objective for name, other in FAMILIES.items() if name in BUILT_IN}
    if family.objective not in known:
        raise ConfigError("is unknown", argument="objective", value=family.objective, allowed=sorted(known))


def check_saving(family: Family, model: Model) -> None:
    """Raise ConfigError for a weight without a name in the table, or a field that config.json would lose."""
    with step(family, "saved", "add a row to its names; without names, they stay our own"):
        connect(family.rows(family.tiny), model_tensors(model))
    with step(family, "loaded", "give every field a key; without names, keys are those of the fields"):
        saved = json.loads(json.dumps(config_to(family, family.tiny, {})))
        again = config_from(family, saved, model_tensors(model))
        differ = [n for n in again.field_names() if getattr(again, n) != getattr(family.tiny, n)]
        if differ:
            raise ConfigError(f"config.json loses the field {differ[0]!r}")


def check_watching(family: Family, model: Model) -> None:
    """Raise ConfigError for a value whose axis of tokens is another one than its part says."""
    watch = Watch("*")
    with step(family, "watched"), torch.no_grad():
        run_pass(model, torch.zeros(ROWS, LENGTH, dtype=torch.long), SOURCE, watch)
        for name in watch:
            axis, shape = watch.positions[name], tuple(watch[name].shape)
            if axis is not None and (len(shape) < -axis or shape[axis] not in (LENGTH, SOURCE)):
                raise ConfigError(
                    f"axis {axis} of {name}, {shape}, does not run over the {LENGTH} tokens",
                    hint="say which does: `ctx.see(name, value, positions=…)`, or None",
                )
            part: Any = model
            for word in name.split(".")[:-1] if name.endswith(".pattern") else ():
                part = part[int(word)] if isinstance(part, Stack) else part.get_submodule(word)
            if part is not model and part.pattern_kind is None:
                raise ConfigError(
                    f"a {type(part).__name__} shows a pattern and has no pattern_kind",
                    hint="set it to 'softmax' or 'effective'",
                )


def check_steps(family: Family, model: Any) -> None:
    """Raise ConfigError if a text read token by token, its rows exchanged halfway, gives other logits."""
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(min(5, family.tiny.vocab - 1), family.tiny.vocab, (ROWS, LENGTH), generator=draw)
    turn = torch.tensor([1, 0])
    with step(family, "generated from", "its parts need new_state: see heedful.nn.Part"), torch.no_grad():
        if isinstance(model, Seq2Seq):
            source = torch.zeros(ROWS, SOURCE, dtype=torch.long)
            tokens[:, 0] = model.start_token
            whole, state = model(source, tokens), model.start(source)
        else:
            whole, state = model(tokens), model.start(tokens[:, :1])
        middle = [model.step(tokens[:, t : t + 1], state) for t in range(1, 3)]
        state.reorder(turn)
        late = [model.step(tokens[turn, t : t + 1], state)[turn] for t in range(3, LENGTH)]
        difference = float((torch.cat((*middle, *late), 1) - whole[:, 1:]).abs().max())
        if not difference <= TOLERANCE:
            raise ConfigError(f"step by step its logits differ from one pass by {difference:.2g}")


def check_attribution(family: Family, model: Model) -> None:
    """Warn of a block or a norm through which no logit can be attributed: research calls stop there."""
    stack: Any = model.blocks if isinstance(model, LM) else model.decoder
    opaque = [type(stack[i]) for i in range(len(stack)) if not isinstance(stack[i], Block | ParallelBlock)]
    norms = [m for n, m in stack.named_modules() if n.endswith("norm") and n.count(".") < 2]
    opaque += [type(m) for m in norms if not isinstance(m, nn.LayerNorm | RMSNorm | nn.Identity)]
    if opaque:
        warnings.warn(
            f"logit_attribution cannot look through a {opaque[0].__name__} of {family.name!r}: derive it "
            "from Block, ParallelBlock, LayerNorm or RMSNorm",
            stacklevel=4,
        )
