"""build and load: where models, weights and text meet."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from heedful.core.devices import one_thread
from heedful.core.errors import ConfigError, NotFound, WrongShape
from heedful.core.images import read_image_processor
from heedful.core.sound import read_sound_processor
from heedful.models import all_families, by_gguf, by_model_type, find_config, presets
from heedful.models.base import LM, Config, Family, Model, Seq2Seq
from heedful.models.counting import check_memory, parameter_count
from heedful.models.hf_config import (
    GENERATION,
    check_sizes,
    config_from,
    config_from_gguf,
    read_config,
    read_quantization,
)
from heedful.models.tensor_parallel import SlicePlan, parallelize
from heedful.nn.head import SentenceHead
from heedful.nn.init import initialise, outline
from heedful.nn.quantised import Int8Embedding, quantise_modules
from heedful.text import load_tokenizer
from heedful.text.gguf import from_gguf
from heedful.weights.adapters import (
    PeftAdapter,
    adapter_base,
    has_adapter,
    has_peft,
    load_adapter,
    merge,
    merge_peft,
    read_adapter,
)
from heedful.weights.formats.gguf import GGUFFile
from heedful.weights.formats.tensor_files import ShardedFolder, TensorSource, is_sharded, open_folder
from heedful.weights.hub import resolve
from heedful.weights.names import OWN_NAMES, fill_model, model_tensors, set_tensor
from heedful.weights.pooling import pooling_from_gguf, read_pooling

HEAD_OUTPUTS = ("label", "tag", "transform", "span")  # parts of heads, which are learnt for their labels
# Keys of config.json that are about a head, and say nothing about another.
HEAD_KEYS = (
    "architectures",
    "id2label",
    "problem_type",
    "regression",
    "ordinal",
    "sentence_transformers",
    "task_specification",
)


def build(
    name: str,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    seed: int | None = None,
    **changes: Any,
) -> Model:
    """Build a model with random weights: a preset ("gpt2"), or a family with your own sizes.

    >>> import heedful
    >>> model = heedful.build("llama", vocab=128, dim=64, layers=2, heads=4, seed=0)
    >>> model.config.heads
    4
    >>> heedful.build("gpt2-xl", device="meta").config.layers     # the shape alone, without memory
    48

    Args:
        name: A preset or a family. `heed ls` lists them.
        device: Where to put the weights. "meta" allocates nothing.
        dtype: The type of the weights. The default is float32.
        seed: Draw the weights with this seed.
        changes: Values of the config, such as `layers=2`. `heed show NAME` lists the fields.

    The model is in training mode. Call `.eval()` before you use it without training.
    """
    family, config = find_config(name)
    config = config.change(**changes) if changes else config
    _check_size(name, family, config, torch.device(device))
    with outline() if torch.device(device).type == "meta" else torch.device(device):
        model = assemble(family, config)
    if dtype is not None:
        model.to(dtype)
    if torch.device(device).type != "meta":
        with torch.random.fork_rng(enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            initialise(model)
    return model


def _check_size(name: str, family: Family, config: Config, device: torch.device) -> None:
    """Raise OutOfMemory for a model that its device cannot hold."""
    if device.type == "meta":
        return
    count, small = parameter_count(family, config), vars(family.tiny)
    sizes = ", ".join(f"{n}={small[n]}" for n in ("layers", "dense", "dim", "heads") if n in small)
    check_memory(
        f"{name!r} has {count:,} parameters and", 4 * count, device,
        f"give smaller sizes, as in `build({name!r}, {sizes})`, or `device='meta'` for the shapes alone",
    )  # fmt: skip


def assemble(family: Family, config: Config) -> Model:
    """The family's parts, joined as its build function says; a head of sentence vectors is alike in all."""
    model = family.build(config)
    if config.classifier_pooling:
        if config.head != "classify" or not isinstance(model, LM):
            raise ConfigError(
                f"`classifier_pooling={config.classifier_pooling!r}` is for a classifying head on one stack",
                hint=f"this is a {family.name} with a {config.head!r} head",
            )
        model.head = SentenceHead(config.dim, config.labels, config.classifier_pooling)
    model.config, model.family = config, family
    return model


def load(
    path: str | Path,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    head: str | None = None,
    labels: Sequence[str] | None = None,
    seed: int = 0,
    mesh: Any = None,
    into: Model | None = None,
) -> Model:
    """Load a trained model in eval mode, with its tokenizer as `model.tokenizer`.

    >>> import heedful
    >>> model = heedful.load("prose")
    >>> model.family.name
    'gpt2'
    >>> classifier = heedful.load("all-minilm-l6-v2", head="classify", labels=["good", "bad"])
    >>> classifier.config.head
    'classify'

    Args:
        path: A bundled or installed model (`heed ls`), a folder in the Hugging Face layout, a training run,
            a .gguf file, or a hub id.
        device: Where to put the weights.
        dtype: The type of the weights. None keeps the type of the file. The matrices of a .gguf file stay in
            their blocks until the model is trained or moved.
        head: Put a new head on the body, to be trained: "classify", "tag", "span", "lm" and so on. By
            default the head follows `architectures` in config.json.
        labels: The labels of a new head.
        seed: Draw a new head with this seed.
        mesh: Split the model over the processes of this one-dimensional DeviceMesh. Each process reads only
            its slices.
        into: Fill this model, which you assembled from parts or gave your own head, and return it.

    Loading is strict: a missing, unexpected or wrongly shaped tensor is an error that names it.
    """
    if into is not None:
        return _load_into(into, path, dtype).to(device).eval()
    if labels is not None and head is None:
        raise ConfigError("`labels=` are those of a new head", hint='give `head="classify"` or `head="tag"`')
    slices_of = mesh if head is None else None  # a new head stands on a whole body
    model = _load(path, device, dtype, keep_blocks=dtype is None and mesh is None, mesh=slices_of)
    if head is not None:
        model = _with_new_head(model, head, labels, seed).to(device).eval()
    return model if mesh is None or model.mesh is not None else parallelize(model, mesh)


def _with_new_head(model: Model, head: str, labels: Sequence[str] | None, seed: int) -> Model:
    """Check the head that `load` was asked for, and put it on the body."""
    heads = model.family.heads
    if head not in heads:
        raise ConfigError(
            f"is not a head of a {model.family.name}", argument="head", value=head, allowed=heads
        )
    if head in ("classify", "tag") and labels is None:
        raise ConfigError(f"`head={head!r}` needs the names of its classes", hint='`labels=["good", "bad"]`')
    if head not in ("classify", "tag") and labels is not None:
        raise ConfigError(f"`head={head!r}` has no classes", hint="leave `labels=` out")
    names = None if labels is None else [str(label) for label in labels]
    if isinstance(labels, str) or (names is not None and (not names or len(set(names)) < len(names))):
        raise ConfigError(f"`labels={labels!r:.80}` must be a list of names, each once")
    return with_head(model, head, names, seed=seed)


def _load(
    path: str | Path,
    device: str | torch.device,
    dtype: torch.dtype | None,
    *,
    keep_blocks: bool = False,
    mesh: Any = None,
) -> Model:
    where = _resolve(path)
    if where.is_dir() and (base := adapter_base(where)) is not None:
        return _load_on_base(where, base, device, dtype)
    if where.is_dir() and has_peft(where):
        return _load_peft(where, device, dtype)
    source, family, config, hf_config = _open_checkpoint(where)
    model = _make_outline(family, config)
    model.hf_config = hf_config
    split = None if mesh is None or has_adapter(where) else SlicePlan(model, mesh)
    slices = None if split is None else split.slices
    if "quantization" in hf_config:
        _fill_quantised(model, source, hf_config, dtype)
    elif isinstance(source, ShardedFolder):
        fill_model(model, source, OWN_NAMES, dtype=dtype, as_stored=dtype is None, slices=slices)
        model.tie()
        hf_config = {name: value for name, value in hf_config.items() if name != "sharding"}
    else:
        rows, prefix = family.rows(config), family.prefix
        if isinstance(source, GGUFFile) and family.gguf_names:
            rows, prefix = family.gguf_rows(config), ""
            source.keep_blocks = keep_blocks
        drop = family.drop(config) if callable(family.drop) else family.drop
        origin = fill_model(
            model, source, rows, prefix=prefix, copies=family.copies, drop=drop, dtype=dtype, slices=slices
        )
        model.origin = None if isinstance(source, GGUFFile) else origin
        model.tie()
    _fill_buffers(model)
    if isinstance(source, GGUFFile):
        model.tokenizer = from_gguf(source.metadata, str(where))
        model.pooling = pooling_from_gguf(source.metadata, source.architecture)
        ids = {f"{role}_token_id": getattr(model.tokenizer, role, None) for role in ("bos", "eos", "pad")}
        model.hf_config = {name: value for name, value in ids.items() if value is not None}
    else:
        _read_beside(model, where, hf_config)
    if has_adapter(where):
        load_adapter(model, where)
    model = model.to(device).eval()
    return model if split is None else split.join(model)


def _read_beside(model: Model, where: Path, hf_config: dict[str, Any]) -> None:
    """Read what belongs to a model besides its tensors: settings, tokenizer, pooling."""
    model.hf_config, model.pooling = hf_config, read_pooling(where)
    if model.image_processor is not None:
        model.image_processor = read_image_processor(where, model.image_processor)
    if model.sound_processor is not None:
        model.sound_processor = read_sound_processor(where, model.sound_processor)
    if (where / GENERATION).is_file():
        model.generation = read_config(where, GENERATION)
        first = hf_config.get("decoder_start_token_id", model.generation.get("decoder_start_token_id"))
        if isinstance(model, Seq2Seq) and isinstance(first, int):
            model.start_token = first
    model.tokenizer = load_tokenizer(where, hf_config) or model.tokenizer


def _load_into(model: Model, path: str | Path, dtype: torch.dtype | None) -> Model:
    """Fill a model that only its owner's code can build."""
    where = _resolve(path)
    hf_config = read_config(where)
    fill_model(model, open_folder(where), OWN_NAMES, dtype=dtype, as_stored=dtype is None)
    model.tie()
    _read_beside(model, where, hf_config)
    return model


def _make_outline(family: Family, config: Config) -> Model:
    """A model without values, of a config that a file brought along."""
    try:
        with outline():
            return assemble(family, config)
    except (OverflowError, RuntimeError) as error:
        sizes = ", ".join(f"{f.name}={getattr(config, f.name)}" for f in fields(config) if f.type == "int")
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"a {family.name} cannot be built with `{sizes:.200}` ({reason:.100})",
            hint="fetch config.json again",
        ) from None


def _fill_buffers(model: Model) -> None:
    """Give buffers that no file holds the values that `__init__` of their parts computes.

    An outline has none of them. Our own parts keep no such buffers; a part of somebody else may.
    """
    if empty := [name for name, buffer in model.named_buffers() if buffer.is_meta]:
        made = assemble(model.family, model.config)
        for name in empty:
            set_tensor(model, name, made.get_buffer(name))


def _resolve(path: str | Path) -> Path:
    """Return where a model lies; the error distinguishes a preset of `build` from an unknown name."""
    try:
        return resolve(path)
    except NotFound:
        if path in presets() or path in all_families():
            raise NotFound(
                f"{path!r} has no weights here",
                hint="choose a model that has some (heed ls lists them), a folder, a .gguf file or a hub id "
                f"(owner/name); heed train {path} FILE… trains it, heedful.build makes it untrained",
            ) from None
        raise


def with_head(
    model: Model,
    head: str,
    labels: Sequence[str] | None = None,
    *,
    classifier_pooling: str = "",
    seed: int = 0,
) -> Model:
    """The same trained body under a new, untrained head, to be taught a task: "classify", "tag", "span" …

    The body's tensors are shared, not copied; a pooler that the checkpoint kept goes on being one. What an
    earlier head of the same kind learnt is dropped, also where it has as many labels. With
    `classifier_pooling` the head is linear on the sentence vector, of which no published class knows.
    """
    names = None if labels is None else {str(i): name for i, name in enumerate(labels)}
    spare = {f.name: None for f in fields(model.config) if f.name == "pooler" and "derive" in f.metadata}
    count = {} if names is None else {"labels": len(names)}
    config = model.config.change(head=head, classifier_pooling=classifier_pooling, **spare, **count)
    made = _on_body(model, config, seed, drop=tuple(f"head.{part}." for part in HEAD_OUTPUTS))
    made.hf_config = {k: v for k, v in model.hf_config.items() if k not in HEAD_KEYS}
    if names is not None:
        made.hf_config |= {"id2label": names, "label2id": {name: int(i) for i, name in names.items()}}
    if head == "tag":  # `data.tag` labels the first token of a word alone; taggers read this key
        made.hf_config |= {"label_all_tokens": False}
    return made


def _on_body(
    body: Model, config: Config, seed: int = 0, later: Collection[str] = (), drop: tuple[str, ...] = ()
) -> Model:
    """A model of this config whose tensors are the body's wherever both have them; only a head may be new.

    Tensors whose names begin with one of `drop` are new in any case. A new head's values are drawn by `seed`;
    where all of them are named in `later`, they wait to be filled.
    """
    made = _make_outline(body.family, config)
    tensors, wanted = model_tensors(body), model_tensors(made)
    tensors = {name: t for name, t in tensors.items() if not name.startswith(drop)}
    tensors |= {name.replace("head.kept.", "head.pool."): t for name, t in tensors.items()}
    tensors |= {name.replace("head.pool.", "head.next.pool."): t for name, t in tensors.items()}
    new = [name for name, t in wanted.items() if name not in tensors or tensors[name].shape != t.shape]
    for name in new:
        if not name.startswith("head."):
            raise WrongShape(
                f"{name} of the new model is not in the trained one", hint="only the head may differ"
            )
    first = {name: torch.zeros(wanted[name].shape) for name in new}
    if not set(new) <= set(later):
        with torch.random.fork_rng():  # the head's values follow from the seed and all before them
            torch.manual_seed(seed)
            drawn = assemble(body.family, config)
            initialise(drawn)
        first = model_tensors(drawn)
    for name in wanted:
        set_tensor(made, name, (first if name in new else tensors)[name].detach())
    made.tie()
    _fill_buffers(made)
    made.tokenizer, made.pooling, made.generation = body.tokenizer, body.pooling, body.generation
    return made


def _load_on_base(where: Path, base: str, device: str | torch.device, dtype: torch.dtype | None) -> Model:
    hf_config = read_config(where)
    body = _load(base, "cpu", dtype)
    model = _on_body(body, config_from(body.family, hf_config), later=tuple(read_adapter(where)[0]["whole"]))
    model.hf_config = hf_config
    size = sum(p.numel() for p in model.parameters())
    with one_thread() if size <= MAX_WEIGHTS_OF_ONE_THREAD else nullcontext():
        merge(load_adapter(model, where))
    return model.to(device).eval()


def _load_peft(where: Path, device: str | torch.device, dtype: torch.dtype | None) -> Model:
    """The model that an adapter of PEFT stands on, with the adapter merged into it."""
    adapter = PeftAdapter(where)
    base = where / adapter.base if (where / adapter.base / "config.json").is_file() else adapter.base
    try:
        model = _load(base, "cpu", dtype)
    except NotFound as error:
        raise NotFound(
            f"{where} is an adapter of {adapter.base!r:.80}: {error.marked_message}",
            hint=f"fetch that model, and set base_model_name_or_path in {where / 'adapter_config.json'}",
        ) from None
    if "quantization" in model.hf_config:
        raise ConfigError(
            f"{where} stands on {adapter.base!r:.80}, whose matrices are rounded", hint="name it unquantised"
        )
    heads = {"SEQ_CLS": "classify", "TOKEN_CLS": "tag", "QUESTION_ANS": "span"}
    head = heads.get(str(adapter.settings.get("task_type")), model.config.head)
    if head != model.config.head and adapter.whole:
        rows = max(adapter.source.entries[adapter.names[name]].shape[0] for name in adapter.whole)
        labels = None if head == "span" else [f"LABEL_{i}" for i in range(rows)]
        model = with_head(model, head, labels)
    merge_peft(model, adapter, list(model.family.rows(model.config)), model.family.prefix)
    model.tie()
    tokenizer = load_tokenizer(where, model.hf_config)
    model.tokenizer = tokenizer or model.tokenizer
    return model.to(device).eval()


def _fill_quantised(
    model: Model, source: TensorSource, hf_config: dict[str, Any], dtype: torch.dtype | None
) -> None:
    """Weights that `quantize` rounded are kept under our own names and in their own types."""
    quantise_modules(model, **read_quantization(hf_config))
    fill_model(model, source, OWN_NAMES, as_stored=True)
    model.tie()  # a head that was not rounded still shares the embedding's table
    model.requires_grad_(False)
    for name, tensor in model_tensors(model).items():
        if dtype is not None and tensor.is_floating_point() and not name.endswith(".scale"):
            tensor.data = tensor.data.to(dtype)
    working = dtype or getattr(torch, str(hf_config.get("dtype")), None)
    for module in model.modules():
        if isinstance(module, Int8Embedding) and isinstance(working, torch.dtype):
            module.dtype = working


def _open_checkpoint(where: Path) -> tuple[TensorSource, Family, Config, dict[str, Any]]:
    """Return the tensors of a folder or a .gguf file, not yet read, what they make, and config.json."""
    if where.is_dir():
        hf_config = read_config(where)
        family = by_model_type(str(hf_config.get("model_type")), hf_config.get("architectures"))
        if is_sharded(where):
            return ShardedFolder(where, "model/"), family, config_from(family, hf_config), hf_config
        folder = open_folder(where)
        config = config_from(family, hf_config, folder.entries)
        check_sizes(config, family.keys, folder.entries)
        return folder, family, config, hf_config
    if where.suffix != ".gguf":
        raise NotFound(f"{where} is a file", hint="give the folder of a model, or a .gguf file")
    source = GGUFFile(where)
    family = by_gguf(source.metadata, str(where))
    config = config_from_gguf(family, source)
    check_sizes(config, family.gguf_keys, source.entries, str(where))
    return source, family, config, {}


def skeleton(name: str | Path) -> Model:
    """Return a model without its weights, for anything `build` or `load` accepts; allocate nothing."""
    if name in presets() or name in all_families():
        return build(str(name), device="meta")
    try:
        where = resolve(name)
    except NotFound:
        if "/" not in str(name):
            find_config(str(name))  # says which name is nearest
        raise
    if where.is_file() or any(where.glob("model*.safetensors*")) or any(where.glob("pytorch_model*.bin*")):
        _, family, config, hf_config = _open_checkpoint(where)
    else:
        hf_config = read_config(where)
        family = by_model_type(str(hf_config.get("model_type")), hf_config.get("architectures"))
        config = config_from(family, hf_config)
    model = _make_outline(family, config)
    model.hf_config = hf_config
    return model


MAX_WEIGHTS_OF_ONE_THREAD = 50_000_000  # of a model into which an adapter is merged; threads wait busily
