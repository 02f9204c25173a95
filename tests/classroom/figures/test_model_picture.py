"""The picture of a model: made for every family, from its parts, and every number is one that was watched."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
import torch
from torch import Tensor

import heedful
from heedful.classroom.figures.layer_stages import HEAD_WIDTH, WIDTH, Stage
from heedful.classroom.figures.model_picture import LONGEST, ModelPicture, model_picture
from heedful.classroom.figures.part_equations import FUNCTIONS, equations_of, title_of, titles_and_equations
from heedful.core.errors import InputError
from heedful.interp.inputs import Input, part_at, reading
from heedful.models import FAMILIES
from heedful.models.base import Model
from heedful.nn.attention.multi_head import SinkAttention
from tests.properties.tiny import by_parts, tiny
from tests.refusal import refused

IDS = [5, 9, 7, 3, 8, 11]
Drawn = tuple[Model, Input, ModelPicture, heedful.Watch]


@pytest.fixture(scope="module", params=by_parts(FAMILIES))
def drawn(request: pytest.FixtureRequest) -> Drawn:
    """A tiny model of each family, its picture, and everything that was watched in a pass of its own."""
    model = tiny(request.param)
    given = reading(model, IDS)
    watch = heedful.Watch("*")
    with torch.no_grad():
        given.run(model, watch)
    return model, given, model_picture(model, given), watch


def stages(picture: ModelPicture, kind: str) -> list[Stage]:
    return [stage for stage in picture.stages if stage.kind == kind]


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(
        found.double(), wanted.double(), rtol=1e-4, atol=1e-5
    )  # other layers run fused


def test_a_picture_begins_with_tokens_and_vectors_and_ends_with_the_head(drawn: Drawn) -> None:
    kinds = [stage.kind for stage in drawn[2].stages]
    assert kinds[:2] == ["tokens", "embedding"]
    assert kinds[-1] == "head"


def test_every_layer_of_every_stack_is_there_once(drawn: Drawn) -> None:
    _, _, picture, watch = drawn
    layers = {".".join(name.split(".")[:2]) for name in watch if name.split(".")[1].isdigit()}
    words = [stage.path.split(".") for stage in picture.stages]
    told = {".".join(path[:2]) for path in words if len(path) > 1 and path[1].isdigit()}
    folded = [s.path for s in stages(picture, "layer")]
    assert told == layers
    assert len(folded) == len(set(folded)) == len(layers) - 1


def test_every_vector_is_what_was_watched(drawn: Drawn) -> None:
    _, _, picture, watch = drawn
    for stage in picture.stages:
        for rows in stage.vectors:
            value = watch[rows.name][0].float()
            value = value if rows.head is None else value.select(rows.axis, rows.head)
            value = value[:, None] if rows.head is not None and value.dim() == 1 else value
            value = value[None] if value.dim() == 1 else value.flatten(1)
            assert rows.size == value.shape[1]
            close(rows.numbers, value[:, : WIDTH if rows.head is None else HEAD_WIDTH])
            close(rows.lengths, value.norm(dim=-1))


def test_every_pattern_is_what_was_watched_and_its_rows_sum_to_one(drawn: Drawn) -> None:
    model, _, picture, watch = drawn
    sides = {"tokens": picture.tokens, "target": picture.target, "written": picture.written}
    for pattern in (stage.pattern for stage in picture.stages if stage.pattern is not None):
        close(pattern.values, watch[pattern.name][0, pattern.head])
        assert pattern.values.shape == (len(sides[pattern.queries]), len(sides[pattern.keys]))
        if isinstance(part_at(model, pattern.name.removesuffix(".pattern")), SinkAttention):
            assert (pattern.values.sum(-1) < 1).all()  # a sink takes the rest
        elif pattern.kind == "softmax":
            close(pattern.values.sum(-1), torch.ones(len(pattern.values)))
        if pattern.scores is not None:
            close(pattern.scores, watch[pattern.name.replace("pattern", "scores")][0, pattern.head])


def test_rows_over_a_source_are_the_words_written(drawn: Drawn) -> None:
    _, given, picture, watch = drawn
    for pattern in (stage.pattern for stage in picture.stages if stage.pattern is not None):
        own_keys = pattern.name.startswith(("encoder", "blocks")) or pattern.name.endswith(".attn.pattern")
        over_source = not own_keys
        assert (pattern.queries == "written") == over_source
        if over_source:
            assert picture.written[:-1] == given.target_tokens[1:]
            assert picture.written[-1] == str(int(watch["head.logits"][0, -1].argmax()))


def test_the_weighted_sum_is_the_pattern_times_the_values(drawn: Drawn) -> None:
    for stage in stages(drawn[2], "sum"):
        value, total = stage.vectors
        assert stage.pattern is not None
        if value.size <= WIDTH:
            close(stage.pattern.values @ value.numbers, total.numbers)


def test_the_answer_is_the_heads_own(drawn: Drawn) -> None:
    _, _, picture, watch = drawn
    answer = picture.stages[-1].prediction
    assert answer is not None
    if answer.kind == "words":
        best = watch["head.logits"][0].float().softmax(-1).topk(5)
        close(answer.chances, best.values)
        assert answer.names == [[str(i) for i in row] for row in best.indices.tolist()]
    if answer.kind == "tags":  # replaced or not: one logit for each token
        chance = watch["head.logits"][0].float().sigmoid()
        close(answer.chances[:, 0], torch.maximum(chance, 1 - chance))


def test_experts_are_the_routers(drawn: Drawn) -> None:
    _, _, picture, watch = drawn
    for stage in stages(picture, "experts"):
        assert stage.experts is not None
        close(stage.experts.router, watch[f"{stage.path}.router"][0].float())
        assert torch.equal(stage.experts.chosen, watch[f"{stage.path}.chosen"][0])
        close(stage.experts.weights, watch[f"{stage.path}.weights"][0].float())


def test_every_part_that_computes_has_an_equation(drawn: Drawn) -> None:
    for stage in drawn[2].stages:
        if stage.kind not in ("tokens", "memory", "state"):
            assert stage.equations, (stage.kind, stage.title, stage.path)
        for part in stage.parts:
            assert part.equations, part.path


def test_folded_layers_say_how_long_what_their_parts_give_is(drawn: Drawn) -> None:
    _, _, picture, watch = drawn
    for stage in stages(picture, "layer"):
        for part in stage.parts:
            close(part.lengths, watch[f"{part.path}.output"][0].float().norm(dim=-1))


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("lstm", "recurrence"), ("mamba", "state"), ("s4", "state"), ("deepseek-v3", "experts"),
        ("t5", "memory"), ("rnnsearch", "memory"), ("seq2seq", "memory"),
        ("cnn", "convolution"), ("gla", "attention"),
    ],
)  # fmt: skip
def test_a_picture_shows_what_the_architecture_is_known_for(family: str, kind: str) -> None:
    assert stages(model_picture(tiny(family), IDS), kind)


def test_layer_head_and_row_are_those_asked_for() -> None:
    model = tiny("gpt2")
    picture = model_picture(model, IDS, layer=1, head=2, row=3)
    assert (picture.path, picture.head, picture.row) == ("blocks.1.attn", 2, 3)
    assert model_picture(tiny("t5"), IDS, layer="encoder.1", head=0).path == "encoder.1.attn"
    look = stages(picture, "attention")[0]
    assert (look.page, look.params, look.row_param) == (
        "attention",
        {"g": "blocks.attn", "l": 1, "h": 2},
        "q",
    )


@pytest.mark.parametrize("family", ["gpt2", "mamba"])
def test_a_picture_takes_one_pass(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    passes, run = [], Input.run

    def counted(inputs: Input, *rest: object, **options: object) -> Tensor:
        passes.append(inputs)
        return run(inputs, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Input, "run", counted)
    model_picture(tiny(family), IDS)
    assert len(passes) == 1


def test_a_decoder_is_shown_at_its_last_token() -> None:
    assert model_picture(tiny("llama"), IDS).row == len(IDS) - 1


def test_what_is_not_there_is_one_clear_error() -> None:
    model = tiny("gpt2")
    wrong = ({"layer": 9}, {"head": 40}, {"layer": "blocks.0.nothing"}, {"row": 99})
    for options in wrong:
        with refused(InputError, *options.values()):
            model_picture(model, IDS, **options)
    with refused(InputError, "no heads"):
        model_picture(tiny("lstm"), IDS, head=0)
    with refused(InputError, LONGEST + 1, hint=str(LONGEST)):
        model_picture(tiny("lstm"), [1] * (LONGEST + 1))


def test_equations_follow_what_a_part_was_made_with() -> None:
    scale_free, scaled = tiny("t5").encoder[0].part("attn"), tiny("bert").blocks[0].part("attn")
    assert "√" not in equations_of(scale_free)[1]
    assert "√8" in equations_of(scaled)[1]
    assert "R_t" in equations_of(tiny("llama").blocks[0].part("attn"))[0]
    assert "gelu" in equations_of(tiny("gpt2").blocks[0].part("ffn"))[0]
    assert equations_of(tiny("marian").embed.position) == [
        "p_t = [sin(t / 10000^{2i/D}) ; cos(t / 10000^{2i/D})]"
    ]
    assert "(t + 2)" in equations_of(tiny("xglm").embed.position)[0]
    assert equations_of(tiny("opt").embed.position) == ["p_t = P[t + 2]"]
    assert "tanh" in equations_of(tiny("gemma2").head)[0]
    assert equations_of(tiny("gpt2").head) == ["p = softmax(E x)"]
    assert "Σ_j" in equations_of(tiny("gpt-oss").blocks[0].part("attn"))[2]  # a sink: rows sum to less than 1
    assert "b_{j-i}" in equations_of(tiny("umt5").encoder[0].part("attn"))[2]  # a bias of the layer's own
    assert "sigma(W_G x)" in equations_of(tiny("qwen35").blocks[1].part("attn"))[2]


def test_equations_are_those_of_classes_that_there_are() -> None:
    classes: set[str] = set()
    for module in pkgutil.walk_packages(heedful.nn.__path__, "heedful.nn."):
        classes |= set(vars(importlib.import_module(module.name)))
    assert titles_and_equations().keys() <= classes
    assert FUNCTIONS.keys() <= titles_and_equations().keys()
    assert title_of(torch.nn.Embedding(2, 2)) == "Embedding"  # torch's own, of which nothing is known
    assert equations_of(torch.nn.Embedding(2, 2)) == []


@pytest.mark.parametrize(("word", "key", "fill"), [("tired", "animal", "he"), ("wide", "street", "it")])
def test_the_bundled_encoder_reads_it_as_the_sentence_says(word: str, key: str, fill: str) -> None:
    model = heedful.load("masked")
    text = f"The animal didn't cross the street because it was too {word}."
    picture = model_picture(model, text, layer=3, head=1, row="it")
    pattern = stages(picture, "attention")[0].pattern
    assert pattern is not None
    row = dict(zip(picture.tokens, pattern.values[picture.row].tolist(), strict=True))
    assert max(("animal", "street"), key=row.__getitem__) == key
    answer = picture.stages[-1].prediction
    assert answer is not None
    assert answer.filled_names[0] == fill


def test_signed_weights_say_where_their_signs_come_from() -> None:
    notes = {
        name: stages(model_picture(tiny(name), IDS), "attention")[0].note for name in ("diffllama", "retnet")
    }
    assert "one softmax is taken from another" in notes["diffllama"]
    assert "recurrence" in notes["retnet"]


def test_the_window_of_attention_is_among_its_equations() -> None:
    assert "|i - j| ≥ 6" in equations_of(tiny("mistral").blocks[0].part("attn"))[-1]
