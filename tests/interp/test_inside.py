"""Each way of looking inside, on models whose answer is known."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

import heedful
from heedful.cli import main
from heedful.core.errors import InputError
from heedful.decode.quantize import quantize
from heedful.interp.gradients import attribution, gradient_by_distance
from heedful.interp.inputs import part_at, reading, token_id
from heedful.interp.intervene.ablation import ablate, head_effects, prune
from heedful.interp.intervene.patching import causal_trace, patch
from heedful.interp.observe.attention import attention, head_scores, rollout
from heedful.interp.observe.lens import logit_lens, neighbours, surprisal
from heedful.nn.context import Watch
from tests.properties.tiny import ids, source_ids, tiny


def params(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_a_head_that_looks_at_the_previous_token_scores_so() -> None:
    # ALiBi-like: positions alone decide. Sinusoids of one frequency, shifted by one step, are nearest to it.
    model = tiny("gpt2", layers=1, heads=1, dim=32)
    with torch.no_grad():
        t = torch.arange(model.embed.position.num_embeddings)[:, None] * 0.5
        model.embed.token.weight.zero_()
        wave = torch.cat((t.sin(), t.cos()), 1)
        model.embed.position.weight.zero_()
        model.embed.position.weight[:, :2] = wave
        model.embed.position.weight[:, 2:4] = -wave  # the mean stays 0: a norm turns nothing
        attn = model.blocks[0].attn
        for linear in (attn.q, attn.k):
            linear.weight.zero_()
            linear.bias.zero_()
        model.blocks[0].attn_norm.weight.fill_(1.0)
        model.blocks[0].attn_norm.bias.zero_()
        c, s = math.cos(0.5), math.sin(0.5)
        attn.q.weight[:2, :2] = 40 * torch.tensor([[c, -s], [s, c]])  # turns the wave one step back
        attn.k.weight[:2, :2] = torch.eye(2)
    score = head_scores(model, ids(model, 1, 9), induction=0)[0]
    assert score.previous is not None
    assert score.previous > 0.95
    assert score.distance == pytest.approx(8 / 9, abs=0.1)  # the first token can only look at itself
    assert score.entropy < 0.2
    assert score.first is not None
    assert score.first < 0.2


def test_head_scores_are_those_of_the_definition() -> None:
    model = tiny("bert")
    text = reading(model, ids(model, 1, 5))
    p = attention(model, text)["blocks.1.attn"].values[2].double()
    found = next(s for s in head_scores(model, text) if s.name == "blocks.1.attn.pattern" and s.head == 2)
    assert found.entropy == pytest.approx(float(-(p * p.log2()).sum(-1).mean()), abs=1e-6)
    far = sum(float(p[i, j]) * abs(i - j) for i in range(5) for j in range(5)) / 5
    assert found.distance == pytest.approx(far, abs=1e-6)
    assert found.previous == pytest.approx(sum(float(p[i, i - 1]) for i in range(1, 5)) / 4, abs=1e-6)
    assert found.first == pytest.approx(float(p[1:, 0].mean()), abs=1e-6)


def test_induction_is_the_share_of_what_followed_the_twin() -> None:
    model = tiny("gpt2")
    n = 4
    half = torch.randint(0, model.embed.vocab, (n,), generator=torch.Generator().manual_seed(7))
    p = attention(model, torch.cat((half, half)))["blocks.0.attn"].values[1].double()
    # The token at n + k has its twin at k; what followed it stands at k + 1.
    expected = sum(float(p[n + k, k + 1]) for k in range(n)) / n
    found = next(s for s in head_scores(model, ids(model, 1, 4), induction=n, seed=7) if s.head == 1)
    assert found.induction == pytest.approx(expected, abs=1e-6)


def test_rollout_is_the_product_of_half_attention_half_identity() -> None:
    model = tiny("bert")
    text = reading(model, ids(model, 1, 4))
    seen = attention(model, text)
    mixed = [seen[f"blocks.{i}.attn"].values.double().mean(0) / 2 + torch.eye(4) / 2 for i in range(2)]
    assert (rollout(model, text) - mixed[1] @ mixed[0]).abs().max() <= 1e-6
    with pytest.raises(InputError, match="signed"):
        rollout(tiny("mamba"), ids(tiny("mamba"), 1, 4))


def test_surprisal_is_the_loss_of_the_model_in_bits() -> None:
    model = tiny("gpt2")
    tokens = ids(model, 1, 6)
    with torch.no_grad():
        loss = F.cross_entropy(model(tokens)[0, :-1], tokens[0, 1:])
    found = surprisal(model, tokens)
    assert found.bits[0] is None
    assert found.mean == pytest.approx(float(loss) / math.log(2), abs=1e-5)
    bert = tiny("bert")
    hidden = tokens.clone()
    hidden[0, 2] = 3
    with torch.no_grad():
        said = F.log_softmax(bert(hidden)[0, 2], -1)[tokens[0, 2]]
    assert surprisal(bert, tokens, mask=3).bits[2] == pytest.approx(float(-said) / math.log(2), abs=1e-5)
    with pytest.raises(InputError, match="mask="):
        surprisal(bert, tokens)


def test_the_nearest_neighbour_of_a_token_vector_is_the_token() -> None:
    model = tiny("gpt2")
    tokens = ids(model, 1, 5)
    found = neighbours(model, tokens, name="embed.token", count=2)
    assert [near[0][0] for near in found.near] == list(found.tokens)
    assert all(near[0][1] == pytest.approx(1.0, abs=1e-6) for near in found.near)


def test_the_lens_gives_ranks_and_probabilities_of_every_layer() -> None:
    model = tiny("gpt2")
    lens = logit_lens(model, ids(model, 1, 5))
    assert lens.layers == ("embed", "blocks.0", "blocks.1")
    best = int(lens.logits[-1, -1].argmax())
    assert int(lens.ranks(best)[-1, -1]) == 0
    assert lens.top(1)[-1][-1][0][0] == str(best)


def test_what_never_changes_may_be_put_at_its_mean() -> None:
    """Over one token the mean is the value itself: heads and layers at it leave everything as it was."""
    model = tiny("gpt2", layers=2)
    one = reading(model, [5])
    same = ablate(model, one, heads={"blocks.0.attn": [0, 1]}, layers=["blocks.1"], mean=one)
    assert (same.logits - same.plain).abs().max() <= 1e-6
    text = reading(model, ids(model, 1, 6))
    zero, mean = (ablate(model, text, layers=["blocks.1"], mean=m) for m in (None, text))
    assert (zero.logits - mean.logits).abs().max() > 1e-4


def test_a_layer_at_its_mean_adds_the_mean_of_what_it_adds() -> None:
    model = tiny("gpt2", layers=2)
    text, other = reading(model, ids(model, 1, 6)), reading(model, ids(model, 1, 9))
    watch = Watch("blocks.1.input", "blocks.1.output")
    other.run(model, watch)
    usual = (watch["blocks.1.output"] - watch["blocks.1.input"])[0].mean(0)
    seen = Watch("blocks.0.output")
    text.run(model, seen)
    expected = text.run(model, Watch(edit={"blocks.1.output": lambda x: seen["blocks.0.output"] + usual}))
    got = ablate(model, text, layers=["blocks.1"], mean=other)
    assert (got.logits - expected).abs().max() <= 1e-5


def test_a_layer_that_is_switched_off_is_as_if_it_were_not_there() -> None:
    model, shallow = tiny("gpt2", layers=2), tiny("gpt2", layers=1)
    own = model.state_dict()
    shallow.load_state_dict({n: own[n] for n in shallow.state_dict()})
    text = reading(model, ids(model, 1, 6))
    without = ablate(model, text, layers=["blocks.1"])
    with torch.no_grad():
        assert (without.logits - shallow(text.ids)).abs().max() <= 1e-5
    assert float(without.change.min()) >= -1e-12
    effects = head_effects(model, text)
    assert set(effects) == {"blocks.0.attn", "blocks.1.attn"}
    assert all(e >= 0 for row in effects.values() for e in row)


def test_patching_everything_gives_the_clean_answer_and_nothing_the_corrupt_one() -> None:
    model = tiny("gpt2")
    clean = ids(model, 1, 5)
    corrupt = clean.clone()
    corrupt[0, 1] = (corrupt[0, 1] + 9) % model.embed.vocab
    with torch.no_grad():
        best, worst = model(clean), model(corrupt)
    assert (patch(model, clean, corrupt, ["embed.output"]) - best).abs().max() <= 1e-5
    assert (patch(model, clean, corrupt, ["embed.output"], [1]) - best).abs().max() <= 1e-5
    assert (patch(model, clean, corrupt, ["embed.output"], [0, 2]) - worst).abs().max() <= 1e-5
    right, wrong = int(best[0, -1].argmax()), int(best[0, -1].argmin())
    trace = causal_trace(model, clean, corrupt, right, wrong)
    assert trace["blocks.1.output"][-1] == pytest.approx(1.0, abs=1e-4)
    assert trace["blocks.0.output"][0] == pytest.approx(0.0, abs=1e-4), "before the change all is alike"
    with pytest.raises(InputError, match="as many tokens"):
        patch(model, clean, corrupt[:, :3], ["embed.output"])


def test_grouped_heads_leave_whole_groups_or_equally_many_of_each() -> None:
    model = tiny("llama", heads=4, kv_heads=2)
    text = reading(model, ids(model, 1, 6))
    for heads, keys in (([0, 1], 1), ([1, 2], 2)):
        gone = {"blocks.0.attn": heads}
        smaller = prune(model, gone)
        assert smaller.blocks[0].attn.kv_heads == keys  # type: ignore[union-attr]
        assert params(smaller) < params(model)
        assert (text.run(smaller) - ablate(model, text, heads=gone).logits).abs().max() <= 1e-5
    with pytest.raises(InputError, match="the same number"):
        prune(model, {"blocks.0.attn": [0]})
    with pytest.raises(InputError, match="have no heads left"):
        prune(model, {"blocks.0.attn": [0, 1, 2, 3]})
    with pytest.raises(InputError, match="has heads 0 … 3"):
        prune(model, {"blocks.0.attn": [4]})


@pytest.mark.parametrize("heads", [*({"blocks.0.attn": which} for which in (1, "1", [0.5])), "x"])
def test_heads_that_are_no_table_of_lists_are_refused_with_the_form_that_is_meant(heads: Any) -> None:
    model = tiny("gpt2")
    for change in (lambda: ablate(model, [[5, 9]], heads=heads), lambda: prune(model, heads)):
        with pytest.raises(InputError, match=r"heads=.*\{'blocks\.0\.attn': \[1\]\}"):
            change()


@pytest.mark.parametrize("family", ["gpt2", "bloom", "llama"])
def test_a_pruned_model_decodes_step_by_step_and_can_be_pruned_again(family: str) -> None:
    model = tiny(family, kv_heads=4) if family == "llama" else tiny(family)
    first, second = {"blocks.0.attn": [1]}, {"blocks.0.attn": [0], "blocks.1.attn": [2]}
    twice = prune(prune(model, first), second)
    tokens = ids(model, 1, 6)
    gone = {"blocks.0.attn": [0, 1], "blocks.1.attn": [2]}
    whole = reading(model, tokens).run(twice)
    assert (whole - ablate(model, tokens, heads=gone).logits).abs().max() <= 1e-5
    with torch.no_grad():
        state = twice.start(tokens[:, :3], length=6)
        steps = [twice.step(tokens[:, t : t + 1], state)[:, 0] for t in range(3, 6)]
    assert (torch.stack(steps, 1) - whole[:, 3:]).abs().max() <= 1e-4


def test_a_pruned_model_is_not_saved_as_one_that_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="torch.save"):
        heedful.save(prune(tiny("gpt2"), {"blocks.0.attn": [0]}), tmp_path)


def test_the_code_of_the_documentation_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "inside.md").read_text(encoding="utf-8")
    space: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(block, space)
    assert "checked: at most" in capsys.readouterr().out
    for block in re.findall(r"```yaml\n(.*?)```", text, re.S):
        assert "weights of cat" in str(heedful.explain(yaml.safe_load(block)))


def test_layers_that_share_their_weights_lose_a_head_together() -> None:
    model = tiny("albert")
    with pytest.raises(InputError, match="is one part with"):
        prune(model, {"blocks.0.attn": [0]})


def test_integrated_gradients_sum_to_what_the_answer_rose_by() -> None:
    model = tiny("gpt2")
    found = attribution(model, ids(model, 1, 6), answer=7, position=3)
    assert found.gap is not None
    assert found.total is not None
    assert abs(found.gap) <= 1e-3
    assert float(found.scores.sum()) == pytest.approx(found.total - found.gap, abs=1e-6)
    assert found.scores[4:].abs().max() == 0


def test_gradients_fade_over_a_recurrence_as_its_matrix_says_and_not_over_attention() -> None:
    far: dict[str, float] = {}
    for family in ("rnn", "rnn, U halved", "lstm", "gpt2"):
        more = {"heads": 4, "context": 64} if family == "gpt2" else {}
        model = heedful.build(family.partition(",")[0], vocab=32, dim=32, layers=1, seed=0, **more)
        if "halved" in family:
            with torch.no_grad():
                model.blocks[0].h.weight.mul_(0.5)  # it starts orthogonal
        norms = gradient_by_distance(model, length=48, samples=4).norms
        far[family] = norms[40] / norms[1]
    assert far["gpt2"] > 0.5, "every token is one step away"
    assert 0.3 < far["rnn"] < 0.7
    assert 0.05 < far["lstm"] < 0.3
    assert far["rnn, U halved"] < 2.0**-39


def test_results_go_into_json() -> None:
    model = tiny("transformer")
    text = reading(model, source_ids(model, 1, 4), ids(model, 1, 3))
    for result in (
        attention(model, text), logit_lens(model, text), surprisal(model, text), neighbours(model, text),
        attribution(model, text, steps=32), ablate(model, text, heads={"decoder.0.cross": [0]}),
        gradient_by_distance(model, length=4), head_scores(model, text)[0], attention(tiny("rnn"), [5, 6]),
    ):  # fmt: skip
        json.dumps(result.to_dict(), allow_nan=False)


def test_a_model_in_training_is_looked_at_without_dropout_and_put_back() -> None:
    model = heedful.build("gpt2", vocab=32, dim=16, layers=1, heads=2, context=16, dropout=0.5).train()
    a, b = (attention(model, [1, 2, 3])["blocks.0.attn"].values for _ in range(2))
    assert torch.equal(a, b)
    assert model.training


def test_an_encoder_decoder_writes_its_own_target() -> None:
    model = tiny("t5")
    seen = attention(model, source_ids(model, 1, 4))
    assert seen["decoder.0.cross"].values.shape[-1] == 4
    assert seen.input.target is not None
    assert int(seen.input.target[0, 0]) == model.start_token
    greedy: Tensor = seen.input.run(model)[0, :-1].argmax(-1)
    assert torch.equal(greedy, seen.input.target[0, 1:])


def test_faults_are_named() -> None:
    model = tiny("gpt2")
    for call, said in (
        (lambda: attention(model, "text"), "no tokenizer"),
        (lambda: attention(model, [[1], [2]]), "one sequence"),
        (lambda: attention(model, [1, 2])["blocks.9.attn"], "no pattern"),
        (lambda: attention(model, [1, 2], [3]), "only an encoder-decoder"),
        (lambda: attention(model, [1], only=["blocks.7.attn"]), "nothing here"),
        (lambda: ablate(model, [1], heads={"blocks.0.ffn": [0]}), "has no heads"),
        (lambda: ablate(model, [1], heads={"blocks.0.atn": [0]}), "did you mean 'attn'"),
        (lambda: ablate(model, [1], heads={"blocks.0.attn": [7]}), "unknown head 7"),
        (lambda: attribution(model, [1], method="magic"), "choose one of gradient, integrated"),
        (lambda: neighbours(model, [1], name="blocks.0.ffn.hidden"), "token vectors have"),
    ):
        with pytest.raises(InputError, match=said):
            call()


def test_the_command_explains_lists_and_names_what_is_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    def heed(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(["explain", *arguments])
        printed = capsys.readouterr()
        return int(stop.value.code or 0), printed.out, printed.err

    code, out, _ = heed("cat-sat")
    assert code == 0
    assert "output of cat: Σ w v = " in out
    assert "[0.5566 0.4434]" in out
    assert "wampimuk" in heed("--list")[1]
    assert json.loads(heed("dragons", "--json")[1])["title"] == "Dragons breathe fire"
    assert heed("add-norm", "--format", "latex")[1].startswith(r"\section*{Add \& norm}")
    code, _, err = heed("cat-sit")
    assert code == 3
    assert "cat-sat" in err
    assert heed("cat-sat", "--format", "pdf")[0] == 3


@pytest.mark.parametrize(
    ("path", "said"),
    [("blocks.77.attn", "0 … 1"), ("blocks.0.attention", "'attn'"), ("zzz.0", "there are")],
)
def test_a_part_that_is_not_there_is_answered_with_those_that_are(path: str, said: str) -> None:
    with pytest.raises(InputError, match="there is no") as caught:
        part_at(tiny("gpt2"), path)
    assert said in str(caught.value)


def test_a_model_of_whole_numbers_can_be_pruned() -> None:
    model = quantize(tiny("gpt2"), "int8")
    smaller = prune(model, {"blocks.0.attn": [1]})
    tokens = ids(model, 1, 6)
    want = ablate(model, tokens, heads={"blocks.0.attn": [1]}).logits
    torch.testing.assert_close(reading(model, tokens).run(smaller), want, atol=1e-5, rtol=0)
    assert sum(p.numel() for p in smaller.parameters()) < sum(p.numel() for p in model.parameters())


def test_a_word_that_is_one_token_behind_a_space_is_offered_so(tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("the cat sat on a mat and the cat ran\n" * 20, encoding="utf-8")
    model = tiny("gpt2", vocab=300)
    model.tokenizer = heedful.train_tokenizer("bpe", file, 300)
    count = lambda text: len(model.tokenizer.encode(text, special=False))
    word = next(w for w in ("the", "cat", "sat", "on", "mat", "and", "ran") if count(f" {w}") == 1 < count(w))
    with pytest.raises(InputError, match=f"such as ' {word}'"):
        token_id(model, word)
