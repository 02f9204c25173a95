"""heedful.explain: the notes' exercises to every digit, printed arithmetic that can be read back, models."""

from __future__ import annotations

import html.parser
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import heedful
from heedful.classroom.arithmetic import explain as explain_module
from heedful.classroom.arithmetic.explain import LEARNING_ORDER, examples, read_exercise, sentences
from heedful.classroom.arithmetic.worked import Derivation, is_arrangement
from heedful.core.errors import InputError, NotFound
from heedful.decode.quantize import quantize
from heedful.interp.inputs import reading
from heedful.models.base import Seq2Seq
from tests.classroom.arithmetic.parse import check_line, check_lines
from tests.properties.tiny import ids, source_ids, tiny

EXERCISES = list(examples())


def digits(worked: Derivation, label: str) -> list[float]:
    return [round(float(x), 4) + 0.0 for x in np.atleast_1d(worked[label])]


def test_the_cat_sat_on_the_mat() -> None:
    worked = heedful.explain("cat-sat")
    words = ["The", "cat", "sat", "on", "the", "mat"]
    rows = ["101101", "011100", "112201", "000000", "101101", "011100"]
    for word, row in zip(words, rows, strict=True):
        assert "".join(f"{float(worked[f'{word} · {key}']):g}" for key in words) == row
    assert digits(worked, "weights of The") == [0.2006, 0.0989, 0.2006, 0.2006, 0.0989, 0.2006]
    assert digits(worked, "output of The") == [0.5, 0.6017]
    assert digits(worked, "weights of cat") == [0.1101, 0.2233, 0.2233, 0.2233, 0.1101, 0.1101]
    assert digits(worked, "output of cat") == [0.5566, 0.4434]
    assert digits(worked, "output of the") == digits(worked, "output of The")
    assert digits(worked, "output of mat") == digits(worked, "output of cat")
    assert "query vectors where keys belong" in worked.note


def test_positional_encodings() -> None:
    worked = heedful.explain("positions")
    first, dragons, other = worked.lines
    assert digits(first, "PE(0)") == [0, 1, 0, 1]
    assert digits(first, "PE(1)") == [0.8415, 0.5403, 0.01, 1.0]
    assert digits(first, "PE(2)") == [0.9093, -0.4161, 0.02, 0.9998]
    assert digits(dragons, "Dragons + PE(1)") == [0.9415, 0.7403, 0.31, 1.4]
    assert digits(dragons, "Dragons + PE(0)") == [0.1, 1.2, 0.3, 1.4]
    assert digits(other, "PE(1)") == [0.8415, 0.5403, 0.0032, 1.0]
    assert round(float(np.cos(1 / 10000**0.25)), 4) == 0.995, "what the printed exponent 1/4 would give"


def test_three_queries_against_three_keys() -> None:
    worked = heedful.explain("queries-keys")
    scores = [[float(worked[f"Q{i} · K{j}"]) for j in (1, 2, 3)] for i in (1, 2, 3)]
    assert scores == [[0, 1, 1], [1, 0, 1], [1, 1, 2]]
    assert digits(worked, "weights of Q1") == [0.1978, 0.4011, 0.4011]
    assert digits(worked, "weights of Q2") == [0.4011, 0.1978, 0.4011]
    assert digits(worked, "weights of Q3") == [0.2483, 0.2483, 0.5035]


def test_dragons_breathe_fire() -> None:
    worked = heedful.explain("dragons")
    matrix = [digits(worked, f"weights of {word}") for word in ("Dragons", "breathe", "fire")]
    assert matrix == [[0.4711 if i == j else 0.2645 for j in range(3)] for i in range(3)]
    plain = heedful.explain({"topic": "attention", "Q": [[0, 1, 0]], "K": np.eye(3).tolist(), "scale": 1,
                             "tokens": ["breathe"], "keys": ["Dragons", "breathe", "fire"]})  # fmt: skip
    assert digits(plain, "weights of breathe") == [0.2119, 0.5761, 0.2119], "the softmax without scaling"


def test_add_and_norm() -> None:
    without, with_eps = heedful.explain("add-norm").lines
    assert digits(without, "added") == [0.6, 0.8, 0.7, 0.7]
    assert digits(without, "mean") == [0.7]
    assert digits(without, "variance") == [0.005]
    assert digits(without, "normalised") == [-1.4142, 1.4142, 0, 0]
    assert digits(with_eps, "normalised") == [-1.4128, 1.4128, 0, 0]


def test_wampimuk_is_the_step_of_word2vec() -> None:
    from heedful.word2vec.definition import wampimuk

    worked, step = heedful.explain("wampimuk"), wampimuk()
    words = "furry little hiding in Australia cyber the 1985"
    assert [row.word for row in step.rows] == words.split()
    for row in step.rows:
        assert np.allclose(worked[f"σ of {row.word}"], row.sigmoid, atol=1e-12)
        assert np.allclose(worked[f"gradient of {row.word}"], row.gradient, atol=1e-12)
        assert np.allclose(worked[f"new {row.word}"], row.new_vector, atol=1e-12)
    assert np.allclose(worked["loss"], step.loss, atol=1e-12)
    assert np.allclose(worked["new wampimuk"], step.new_vector, atol=1e-12)


@pytest.mark.parametrize("name", EXERCISES)
@pytest.mark.parametrize("places", [3, 4, 9])
def test_the_printed_exercise_read_back_gives_its_results(name: str, places: int) -> None:
    worked = replace(heedful.explain(name), note="")
    lines = worked.text(digits=places).splitlines()
    computed = [n for n in worked.walk() if n.operands is not None and not is_arrangement(n.operands)]
    assert check_lines(lines, places) == len(computed) >= 2


def test_an_error_of_one_digit_is_noticed() -> None:
    line = "The·cat: q·k = [0.5 0.25]·[0.5 1.5] = 0.625"
    assert check_line(line, 4)
    with pytest.raises(AssertionError):
        check_line(line.replace("0.625", "0.626"), 4)
    rounded = "a: b = exp([0.7071 0]) = [2.0281 1]"
    assert check_line(rounded, 4)
    with pytest.raises(AssertionError):
        check_line(rounded.replace("2.0281", "2.0284"), 4)


MODELS = [  # family, topic, part, how many lines at least
    ("gpt2", "attention", "", 8), ("gpt2", "block", "blocks.1", 40), ("gpt2", "norm", "", 5),
    ("gpt2", "positions", "", 1), ("gpt2", "softmax", "", 3), ("bert", "attention", "blocks.1.attn", 8),
    ("bert", "block", "", 40), ("bert", "norm", "", 5), ("llama", "attention", "", 8),
    ("llama", "block", "", 40), ("llama", "positions", "", 2), ("bloom", "attention", "blocks.1.attn", 8),
    ("palm", "block", "", 40), ("gpt-neox", "block", "", 40), ("gpt-neox", "attention", "blocks.1.attn", 8),
    ("gpt-neox", "positions", "", 2), ("gptj", "norm", "", 5), ("t5", "attention", "decoder.1.attn", 8),
    ("t5", "attention", "decoder.1.cross", 8), ("t5", "block", "decoder.0", 40),
    ("transformer", "positions", "", 2), ("lstm", "lstm", "blocks.1", 8),
    ("bilstm", "lstm", "blocks.0.back", 8), ("rnnsearch", "attention", "", 8),
    ("luong", "alignment", "", 8), ("gpt2", "cross-entropy-gradient", "", 3),
    ("bert", "cross-entropy-gradient", "", 3), ("gpt2", "attention-gradient", "blocks.1.attn", 12),
    ("llama", "attention-gradient", "", 12), ("t5", "attention-gradient", "decoder.1.cross", 12),
    ("gpt-oss", "attention", "blocks.1.attn", 8), ("umt5", "attention", "decoder.0.attn", 8),
    ("xlnet", "attention", "blocks.1.attn", 8), ("transformer-xl", "attention", "", 8),
    ("gpt-oss", "attention-gradient", "", 12), ("xglm", "positions", "", 2), ("m2m100", "positions", "", 2),
]  # fmt: skip


def subject(family: str, seed: int) -> tuple[object, object]:
    model = tiny(family, seed=seed)
    if isinstance(model, Seq2Seq):
        return model, reading(model, source_ids(model, 1, 4, seed), ids(model, 1, 4, seed))
    return model, reading(model, ids(model, 1, 4, seed))


@pytest.mark.parametrize(("family", "topic", "part", "least"), MODELS)
def test_the_printed_arithmetic_of_random_models_gives_what_they_computed(
    family: str, topic: str, part: str, least: int
) -> None:
    for seed, places in ((1, 4), (2, 8)):
        model, text = subject(family, seed)
        worked = heedful.explain(model, text, topic=topic, part=part, head=seed, token=2)
        assert worked.check is not None
        assert worked.check <= 1e-4
        lines = worked.text(digits=places).splitlines()
        # Matrices of a whole block are many numbers: every third line of those is read.
        every = 3 if topic == "block" else 1
        assert check_lines(lines, places, seed, every) >= (least // 4 if topic == "block" else least)


@pytest.mark.parametrize(
    ("family", "part", "turned"),
    [("gpt2", "blocks.1.attn", False), ("llama", "blocks.1.attn", True), ("palm", "blocks.0.attn", True),
     ("bert", "blocks.1.attn", False), ("t5", "decoder.1.attn", False), ("t5", "decoder.1.cross", False),
     ("transformer", "decoder.0.cross", False), ("albert", "blocks.1.attn", False)],
)  # fmt: skip
def test_queries_keys_and_values_come_from_x_by_their_matrices(family: str, part: str, turned: bool) -> None:
    model, text = subject(family, 1)
    worked = heedful.explain(model, text, part=part, head=1, token=2)
    labels = [line.label for line in worked.walk()]
    assert {"W_Q", "W_K", "W_V"} <= set(labels)
    assert any("turned by position 2" in label for label in labels) == turned
    name = next(label for label in labels if label.startswith("x of ")).removeprefix("x of ")
    bias = worked["b_Q"] if "b_Q" in labels else 0.0
    np.testing.assert_allclose(
        worked[f"q of {name}"], worked["W_Q"] @ worked[f"x of {name}"] + bias, atol=1e-12
    )
    shown = f"{part}.{'q_unrotated' if turned else 'q'}"
    watch = heedful.Watch(shown)
    with torch.no_grad():
        text.run(model, watch)
    q = watch[shown][0, 1, 2]
    np.testing.assert_allclose(worked[f"q of {name}"], q, atol=1e-5)


def test_the_printed_weights_and_output_are_the_models_own() -> None:
    model, text = subject("gpt2", 3)
    worked = heedful.explain(model, text, token=3, head=1)
    watch = heedful.Watch("blocks.0.attn.pattern", "blocks.0.attn.heads")
    with torch.no_grad():
        text.run(model, watch)
    name = text.tokens[3]
    lines = worked.text(digits=6).splitlines()
    said = {line.strip().partition(":")[0]: line.rpartition(" = ")[2] for line in lines}
    for label, value in (("weights", "pattern"), ("output", "heads")):
        printed = np.array(said[f"{label} of {name}"].strip("[]").split(), dtype=float)
        assert np.abs(printed - watch[f"blocks.0.attn.{value}"][0, 1, 3].numpy()).max() <= 2e-6


def test_every_format_is_whole_and_safe() -> None:
    worked = heedful.explain({"topic": "softmax", "logits": [1, 2], "tokens": ["<script>", "a|b_$"]})
    page = worked.html()
    assert "<script>" not in page
    opened: list[str] = []

    class Reader(html.parser.HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            opened.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert opened.pop() == tag

    Reader().feed(page)
    assert not opened
    assert "a\\|b" in worked.markdown()
    for name in EXERCISES:
        source = heedful.explain(name).latex()
        assert source.count(r"\begin{align*}") == source.count(r"\end{align*}") > 3
        assert source.count("{") - source.count(r"\{") == source.count("}") - source.count(r"\}")
        json.dumps(heedful.explain(name).to_dict(), allow_nan=False)


def test_hello_is_read_as_torchs_own_rnn_reads_it() -> None:
    given = read_exercise("hello")
    rnn = torch.nn.RNN(4, 3, bias=False, dtype=torch.float64)
    with torch.no_grad():
        rnn.weight_ih_l0.copy_(torch.tensor(given["W"], dtype=torch.float64))
        rnn.weight_hh_l0.copy_(torch.tensor(given["U"], dtype=torch.float64))
        letters = [given["letters"].index(letter) for letter in "hello"]
        states, _ = rnn(torch.eye(4, dtype=torch.float64)[letters[:-1]])
        chances = (states @ torch.tensor(given["V"], dtype=torch.float64).t()).softmax(-1)
    steps = [step for step in heedful.explain(given).lines if isinstance(step, Derivation)]
    for step, state, chance in zip(steps, states, chances, strict=True):
        np.testing.assert_allclose(step["state"], state, atol=1e-12)
        np.testing.assert_allclose(step.lines[-1].value, chance, atol=1e-12)  # type: ignore[union-attr]
    assert chances.argmax(-1).tolist() == letters[1:]  # l after the first l, o after the second


def test_files_are_read_and_their_faults_are_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"topic": "norm", "x": [1, 2, 3], "eps": 1e-5}))
    assert digits(heedful.explain(path), "mean") == [2]
    for bad, said in (
        ({"topic": "normm", "x": [1]}, "unknown"),
        ({"topic": "norm"}, "needs 'x'"),
        ({"topic": "norm", "x": [1], "epps": 1}, "did you mean 'eps'"),
        ({"topic": "norm", "x": [[1], [2, 3]]}, "rows of numbers"),
        ({"topic": "norm", "x": ["a"]}, "rows of numbers"),
        ({"topic": "attention", "Q": [[1, 2]], "K": [[1, 2, 3]]}, "do not fit"),
        ({"topic": "softmax", "logits": [1], "temperature": 0}, "above 0"),
        (
            {"topic": "rnn", "text": "hi", "letters": "h", "W": [[1]], "U": [[1]], "V": [[1]]},
            "'i' is none of",
        ),
        (
            {"topic": "rnn", "text": "h", "letters": "h", "W": [[1]], "U": [[1]], "V": [[1]]},
            "nothing follows",
        ),
        (
            {"topic": "rnn", "text": "hh", "letters": "h", "W": [[1, 2]], "U": [[1]], "V": [[1]]},
            "must be 1 × 1",
        ),
        ({"topic": "lstm", "x": [1], "h": [1], "c": [1], "W": [[1]], "U": [[1]]}, "W must be 4 × 1"),
    ):
        with pytest.raises(InputError, match=said):
            heedful.explain(bad)
    (tmp_path / "broken.yaml").write_text("topic: [")
    with pytest.raises(InputError, match="cannot be read"):
        heedful.explain(tmp_path / "broken.yaml")
    with pytest.raises(NotFound, match="cat-sat"):
        heedful.explain("cat-sit")


def test_a_part_that_cannot_be_written_out_says_so() -> None:
    model, text = subject("mamba", 1)
    with pytest.raises(InputError, match="has no Attention or CrossAttention"):
        heedful.explain(model, text)
    model, text = subject("gpt2", 1)
    with pytest.raises(InputError, match="unknown head 9"):
        heedful.explain(model, text, head=9)
    with pytest.raises(InputError, match="topic='atention' is unknown"):
        heedful.explain(model, text, topic="atention")
    with pytest.raises(InputError, match="no tokenizer"):
        heedful.explain(model, "The cat")


def test_the_notes_sentences_are_there() -> None:
    said = {row["text"] for row in sentences().values()}
    assert {"The cat sat on the [MASK].", "How are you?", "Cats are fickle creatures", "hello"} <= said
    assert all(isinstance(row["look"], str) for row in sentences().values())


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize(
    ("family", "topic"), [("gpt2", "block"), ("bert", "block"), ("rnnsearch", "alignment")]
)
def test_matrices_of_whole_numbers_are_written_out_with_their_scale(
    kind: str, family: str, topic: str
) -> None:
    model = quantize(tiny(family), kind, group=8)
    target = [1, 5, 3] if family == "rnnsearch" else None
    worked = heedful.explain(model, [5, 9, 2, 7], target, topic=topic)
    assert worked.check is not None
    assert worked.check < 1e-5


def test_every_example_file_has_a_place_in_the_learning_order() -> None:
    folder = Path(explain_module.__file__).parent / "examples"
    assert {path.stem for path in folder.glob("*.yaml")} - {"sentences"} == set(LEARNING_ORDER)
    names = list(examples())
    assert names.index("motel") < names.index("hello") < names.index("cat-sat") < names.index("gpt3-weights")


def test_a_learned_position_is_named_by_its_row_of_the_table() -> None:
    model, text = subject("opt", 1)  # its table starts with two rows that belong to no position
    worked = heedful.explain(model, text, topic="positions", token=2)
    row = model.tables["tokens"].position.weight[4].detach().numpy()  # type: ignore[attr-defined]
    np.testing.assert_allclose(worked["row 4 of the table"], row, atol=1e-6)


def test_the_gradient_of_scored_distances_is_refused_with_its_reason() -> None:
    model, text = subject("transformer-xl", 1)
    with pytest.raises(InputError, match="scores distances by the query"):
        heedful.explain(model, text, topic="attention-gradient")


def test_apple_asks_for_something_other_than_what_it_is() -> None:
    """Raw products weigh “apple” and “watch” alike; with W_Q, “apple” looks at “watch”."""
    parts = heedful.explain("apple").lines
    raw, projected = parts[1]["weights of apple"], parts[2]["weights of apple"]  # type: ignore[index]
    assert raw[1] == pytest.approx(raw[2])
    assert projected[2] > 2 * projected[1]
