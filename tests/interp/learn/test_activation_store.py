"""Activations go to disk in the order of the texts, continue after a stop, and are learnt from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from heedful import Watch
from heedful.core.errors import ConfigError, CorruptFile, InputError, NotFound
from heedful.interp.learn.activation_store import ActivationStore, save_activations
from heedful.interp.learn.dictionary import score_dictionary, train_dictionary
from heedful.models.base import Model
from tests.properties.tiny import tiny

NAMES = ["blocks.0.output", "blocks.1.attn.heads"]


def texts(count: int = 30) -> list[list[int]]:
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(2, 14, (count,), generator=draw).tolist()
    return [torch.randint(5, 30, (length,), generator=draw).tolist() for length in lengths]


def whole(store: ActivationStore, name: str) -> torch.Tensor:
    return torch.cat([shard[name].values for shard in store])


def test_rows_are_what_a_hook_sees_text_after_text(tmp_path: Path) -> None:
    model, rows = tiny("llama"), list[torch.Tensor]()
    store = save_activations(model, iter(texts()), NAMES, tmp_path, shard_tokens=40, max_tokens=64)
    hook = lambda module, args, output: rows.append(output[0].detach())
    handle = model.blocks[0].register_forward_hook(hook)  # type: ignore[operator]
    with torch.no_grad():
        for ids in texts():
            model(torch.tensor([ids]))
    handle.remove()
    assert len(store) > 3
    torch.testing.assert_close(whole(store, NAMES[0]), torch.cat(rows), atol=1e-5, rtol=1e-5)
    shards = [shard[NAMES[0]] for shard in store]
    assert torch.cat([s.ids for s in shards]).tolist() == [i for ids in texts() for i in ids]
    assert torch.cat([s.text for s in shards]).tolist() == [n for n, ids in enumerate(texts()) for _ in ids]
    assert store.tokens == sum(map(len, texts()))


def test_a_run_that_was_stopped_continues_and_writes_the_same(tmp_path: Path) -> None:
    model = tiny("gpt2")

    def stopping():
        yield from texts()[:17]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_activations(model, stopping(), NAMES, tmp_path / "a", shard_tokens=40)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "a").iterdir()}
    assert len(before) > 0
    (tmp_path / "a" / "shard-00099.safetensors.part").write_bytes(b"half of a shard")
    again = save_activations(model, texts(), NAMES, tmp_path / "a", shard_tokens=40)
    once = save_activations(model, texts(), NAMES, tmp_path / "b", shard_tokens=40)
    assert [path.name for path in again.shards] == [path.name for path in once.shards]
    for name in NAMES:
        assert torch.equal(whole(again, name), whole(once, name))
    assert all((tmp_path / "a" / name).stat().st_mtime_ns == time for name, time in before.items())


def test_a_dictionary_learns_from_shards_as_from_texts(tmp_path: Path) -> None:
    model, several = tiny("gpt2"), [ids for seed in range(4) for ids in texts(20)]
    store = save_activations(model, several, NAMES[:1], tmp_path, shard_tokens=60)
    settings = {"width": 96, "k": 24, "steps": 150, "batch": 64, "learning_rate": 5e-3}
    scores = [
        score_dictionary(model, train_dictionary(model, source, NAMES[0], **settings), texts(8))  # type: ignore[arg-type]
        for source in (several, store)
    ]
    assert abs(scores[0].variance_explained - scores[1].variance_explained) < 0.1


def test_every_epoch_has_every_token_once(tmp_path: Path) -> None:
    store = save_activations(tiny("gpt2"), texts(), NAMES, tmp_path, shard_tokens=30)
    pools, tokens = store.pools(NAMES[:1], shards=2), 0
    while tokens < store.tokens:
        pool = next(pools)
        assert list(pool) == NAMES[:1]
        tokens += len(pool[NAMES[0]].values)
    assert tokens == store.tokens


def test_other_settings_fewer_texts_and_damage_are_refused(tmp_path: Path) -> None:
    model: Model = tiny("gpt2")
    store = save_activations(model, texts(), NAMES, tmp_path, shard_tokens=40)
    with pytest.raises(ConfigError, match="max_length=None"):
        save_activations(model, texts(), NAMES, tmp_path, max_length=8, shard_tokens=40)
    with pytest.raises(InputError, match="30 texts"):
        save_activations(model, texts()[:3], NAMES, tmp_path, shard_tokens=40)
    with pytest.raises(InputError, match="blocks.9.output"):
        store.read(0, ["blocks.9.output"])
    with pytest.raises(NotFound):
        ActivationStore(tmp_path / "none")
    with pytest.raises(InputError, match="no text"):
        save_activations(model, iter(()), NAMES, tmp_path / "empty")
    store.shards[-1].write_bytes(b"nothing")
    with pytest.raises(CorruptFile):
        ActivationStore(tmp_path)


def test_values_can_be_stored_in_sixteen_bits_and_seen_by_a_watch(tmp_path: Path) -> None:
    model = tiny("gpt2")
    store = save_activations(model, texts(3), NAMES[:1], tmp_path, dtype=torch.bfloat16)
    watch = Watch(NAMES[0])
    with torch.no_grad():
        model(torch.tensor([texts(3)[0]]), watch=watch)
    assert store.read(0)[NAMES[0]].values.dtype is torch.bfloat16
    first = whole(store, NAMES[0])[: len(texts(3)[0])].float()
    torch.testing.assert_close(first, watch[NAMES[0]][0], atol=0.05, rtol=0.02)
