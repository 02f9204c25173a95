"""Figures: every family, every kind, every file; and the line that says what was wrong."""

from __future__ import annotations

import csv
import io
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import torch

import heedful
from heedful.classroom import figures as view
from heedful.classroom.figures import panels
from heedful.classroom.figures.figure import Figure, for_script, pack, unpack
from heedful.classroom.figures.panels import ticks
from heedful.classroom.figures.token_labels import brief, percent, spell_token, visible_text
from heedful.core.errors import ConfigError, InputError, MissingPackage, NotFound
from heedful.interp.learn.dictionary import Dictionary, fit_dictionary
from heedful.interp.learn.probes import ProbeResult
from heedful.interp.observe.attention import attention as attended
from heedful.interp.observe.lens import surprisal, train_tuned_lens
from tests.properties.tiny import ALL, tiny

IDS = [5, 9, 2, 7, 11]
HOSTILE = [
    "</script><script>window.hacked=1</script>",
    "<img src=x onerror=hacked()>",
    "\u202eabc\x00\x1b[31m",
    "a" * 10**6,
]


def small_dictionary() -> Dictionary:
    width = tiny("gpt2").config.dim
    values = torch.randn(40, width, generator=torch.Generator().manual_seed(0))
    return fit_dictionary(values, values, "blocks.0.output", "blocks.0.output", width=8, k=2, steps=2)


def figures(tmp: Path) -> dict[str, Figure]:
    """One figure of each kind."""
    run = tmp / "run"
    run.mkdir()
    lines = [{"train/global_step": i, "train/loss": 5 / (i + 1)} for i in range(30)]
    (run / "metrics.jsonl").write_text(
        "\n".join(map(json.dumps, [*lines, {"train/global_step": 9, "eval/loss": 1.0}]))
    )
    model = tiny("gpt2")
    return {
        "attention": view.attention(model, IDS, layer=1, head=1, scale="log", hide_first=True),
        "signed": view.attention(tiny("gla"), IDS),
        "heads": view.heads(model, IDS),
        "model": view.model(model, IDS, comparison=IDS[::-1]),
        "states": view.attention(tiny("lstm"), IDS),
        "steps": view.steps(model, IDS, topic="attention"),
        "next_token": view.next_token(model, IDS, temperature=0.8, top_k=9, top_p=0.9, seed=3),
        "beams": view.beams(tiny("t5"), IDS, beams=3, max_tokens=4),
        "positions": view.positions(tiny("llama"), 12),
        "embeddings": view.embeddings(model, count=20),
        "training": view.training(run),
        "surprisal": view.surprisal(model, IDS),
        "head_catalogue": view.head_catalogue(model, [IDS, IDS[::-1]], repeats=2),
        "find_heads": view.find_heads(model, IDS, "11", "9"),
        "probes": view.probes(ProbeResult(("a", "b"), torch.eye(2), torch.eye(2), 0.4, ("x", "y"), 9)),
        "features": view.features(model, small_dictionary(), [IDS, IDS[::-1]]),
        "feature": view.feature(model, small_dictionary(), [IDS, IDS[::-1]], 3),
        "tuned_lens": view.tuned_lens(model, IDS, train_tuned_lens(model, [IDS], steps=1)),
        "steering": view.steering(model, IDS, "blocks.0.output", torch.ones(model.config.dim), 2.0),
        "anything": Figure("anything", "Panels", {}, {"panels": [
            panels.table("words", [["a", 1.5], ["b<", 2.0]], ["x", "y"], ["best", "p"], axes=("place", "")),
            panels.lines("two", [[1.0, 2.0, 4.0], [3.0, 2.0, 1.0]], ["a", "b"], [0, 1, 2], axes=("y", "x")),
            panels.bars("signed", [1.0, -2.0], ["a", "b"]), panels.matrix("map", np.eye(2)),
        ]}),
    }  # fmt: skip


@pytest.mark.parametrize("family", ALL)
def test_every_family_gives_a_figure_of_its_own_numbers(family: str) -> None:
    model = tiny(family)
    figure, seen = view.attention(model, IDS), attended(model, IDS)
    if not seen.patterns:
        assert figure.kind == "states"
        assert "has no attention" in figure.note
        first = figure.data["panels"][0]
        torch.testing.assert_close(
            torch.from_numpy(first["values"].T), seen.states[first["title"]].flatten(1)
        )
        return
    for mine, theirs in zip(figure.data["patterns"], seen.patterns.values(), strict=True):
        np.testing.assert_array_equal(mine["values"], theirs.values[:64].numpy())
        assert (mine["kind"], mine["cross"]) == (theirs.kind, theirs.cross)
        assert (len(mine["queries"]), len(mine["keys"])) == (len(theirs.queries), len(theirs.keys))


def test_every_kind_is_written_as_valid_svg_csv_json_and_html(tmp_path: Path) -> None:
    for kind, figure in figures(tmp_path).items():
        root = ET.parse(figure.save(tmp_path / f"{kind}.svg")).getroot()
        space = "{http://www.w3.org/2000/svg}"
        assert root.find(f"{space}title").text == figure.title  # type: ignore[union-attr]
        assert list(root.iter(f"{space}text")), kind
        rows = list(csv.reader(io.StringIO(figure.save(tmp_path / f"{kind}.csv").read_text())))
        assert len(rows) > 2, kind
        assert len({len(row) for row in rows}) == 1, kind
        again = json.loads(figure.save(tmp_path / f"{kind}.json").read_text())
        assert again["title"] == figure.title
        page = figure.save(tmp_path / f"{kind}.html").read_text()
        assert (
            "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:" in page
        )
        addresses = page.replace("http://www.w3.org/", "").count("http://") + page.count("https://")
        assert addresses == 0, f"{kind} names an address"
        assert "Copyright (c) 2015-present Jason Miller" in page  # whose code the file carries


def test_numbers_given_as_lists_are_packed_as_the_page_reads_them() -> None:
    lists = [panels.lines("a", [[1, 2], [3, 4]], ["x", "y"]), panels.matrix("b", [[1.0, 2.0]])]
    for panel in Figure("anything", "", {}, {"panels": lists}).to_dict()["data"]["panels"]:
        assert unpack(panel["values"]).shape in ((2, 2), (1, 2))


def test_a_png_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = view.attention(tokens=["a$b_c$", "b"], pattern=[[1.0, 0.0], [0.4, 0.6]])
    assert figure.save(tmp_path / "x.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_pictures_are_drawn_for_a_dark_page_too(tmp_path: Path) -> None:
    for kind, figure in figures(tmp_path).items():
        light, dark = figure.to_svg(), figure.to_svg(theme="dark")
        assert 'height="100%" fill="#ffffff"' in light
        assert 'height="100%" fill="#14171c"' in dark, kind
        texts = [t.get("fill") for t in ET.fromstring(dark).iter("{http://www.w3.org/2000/svg}text")]
        assert min(contrast(str(fill)) for fill in texts if fill not in ("#000000", "#ffffff")) >= 4.5, kind
        assert "#1a1d21" not in dark, kind
    figure = view.attention(tokens=["a", "b"], pattern=torch.eye(2))
    assert '<html lang="en" data-theme="dark">' in figure.save(tmp_path / "x.html", theme="dark").read_text()
    assert '<html lang="en">' in figure.to_html()
    with pytest.raises(ConfigError, match="choose one of light, dark"):
        figure.save(tmp_path / "x.svg", theme="black")


def contrast(colour: str, background: str = "#14171c") -> float:
    """The ratio of WCAG 2.2 between two colours."""

    def light(code: str) -> float:
        share = np.array([int(code[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
        return float(linear @ (0.2126, 0.7152, 0.0722))

    a, b = sorted((light(colour), light(background)))
    return (b + 0.05) / (a + 0.05)


def test_a_dark_png_is_dark(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    figure = view.attention(tokens=["a", "b"], pattern=torch.eye(2))
    picture = imread(figure.save(tmp_path / "x.png", theme="dark"))
    assert picture[0, 0, :3] * 255 == pytest.approx([0x14, 0x17, 0x1C], abs=1)


def test_the_csv_gives_the_weights_back() -> None:
    figure = view.attention(tiny("gpt2"), IDS, layer=1, head=1)
    rows = list(csv.DictReader(io.StringIO(figure.to_csv())))
    values = figure.data["patterns"][1]["values"][1]
    back = np.array([np.float32(row["weight"]) for row in rows]).reshape(values.shape)
    np.testing.assert_array_equal(back, values)
    assert [row["key"] for row in rows[:5]] == ["5", "9", "2", "7", "11"]


def test_hiding_the_first_token_keeps_the_sums_of_rows_and_is_said() -> None:
    figure = view.attention(tiny("gpt2"), IDS, hide_first=True)
    assert "first token hidden, rows renormalised" in figure.title
    rows = list(csv.DictReader(io.StringIO(figure.to_csv())))
    sums = np.array([float(row["weight"]) for row in rows]).reshape(5, 4).sum(1)
    np.testing.assert_allclose(sums, [0, 1, 1, 1, 1], atol=1e-6)


def test_arrays_come_back_from_their_packing() -> None:
    weights = torch.randn(4, 90, 90).softmax(-1).numpy()
    packed = pack(weights, halves=True)
    assert packed["dtype"] == "f16"
    assert packed["deflate"]
    np.testing.assert_array_equal(unpack(packed), weights.astype(np.float16))
    np.testing.assert_allclose(unpack(pack(weights, bytes_=True)), weights, atol=2 / 255)
    for array in (np.arange(7, dtype=np.int32), np.array([[np.pi, -1e300]]), np.float32([1e-30, 1e30])):
        np.testing.assert_array_equal(unpack(pack(array, halves=True)), array)


def test_128_tokens_of_twelve_by_twelve_heads_fit_in_six_megabytes() -> None:
    pattern = torch.randn(12, 12, 128, 128, generator=torch.Generator().manual_seed(0)).softmax(-1)
    page = view.attention(tokens=[f"token{i}" for i in range(128)], pattern=pattern).to_html()
    assert len(page.encode()) <= 6_000_000


def test_hostile_tokens_are_data_in_every_file() -> None:
    figure = view.attention(tokens=HOSTILE, pattern=torch.eye(4))
    page = figure.to_html()
    assert page.count("<script") == 2
    assert "<img" not in page
    assert "onerror=hacked()>" not in page
    root = ET.fromstring(figure.to_svg())
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))
    assert len(figure.to_svg()) < 100_000
    said = figure._repr_html_()
    assert "sandbox=" in said
    assert said.count("<") == 2
    assert json.loads(for_script({"a": HOSTILE[0]}))["a"] == HOSTILE[0]


def test_bytes_and_invisible_letters_are_shown() -> None:
    assert spell_token("Ġcat") == " cat"
    assert spell_token("Ã©") == "é"
    assert spell_token("ä¸") == "<E4 B8>"
    assert visible_text(" cat\n") == "·cat⏎"
    assert visible_text("\u202e\ud800") == "<202E><D800>"


def test_weights_of_any_depth_are_drawn() -> None:
    one = torch.eye(3)
    assert view.attention(tokens=["a", "b", "c"], pattern=one).data["patterns"][0]["values"].shape == (
        1,
        3,
        3,
    )
    deep = view.attention(tokens=["a", "b", "c"], pattern=one.expand(2, 4, 3, 3), layer=-1, head=3)
    assert [p["name"] for p in deep.data["patterns"]] == ["layer 0", "layer 1"]
    listed = view.heads(tokens=["a", "b", "c"], pattern=[one.expand(1, 4, 3, 3), one.expand(1, 2, 3, 3)])
    assert [len(p["values"]) for p in listed.data["patterns"]] == [4, 2]
    assert listed.data["scores"][0]["entropy"] == 0
    cross = view.attention(
        tokens=["le", "chat"], keys=["the", "cat", "."], pattern=[[0.5, 0.3, 0.2], [0, 1, 0]]
    )
    assert cross.data["patterns"][0]["cross"]
    assert view.attention(tokens=["a"], pattern=[[-1.0]]).data["patterns"][0]["kind"] == "effective"


def test_an_encoder_decoder_takes_a_target_or_writes_one() -> None:
    model = tiny("t5")
    mine = view.attention(model, IDS, [0, 6, 8], layer="decoder.0.cross").data
    assert mine["patterns"][mine["pattern"]]["values"].shape[1:] == (3, 5)
    written = view.attention(model, IDS).data["patterns"]
    assert any(p["cross"] for p in written)


def test_the_next_token_is_the_one_generate_draws() -> None:
    model = tiny("gpt2")
    settings = {"temperature": 0.9, "top_k": 20, "top_p": 0.8}
    for seed in range(6):
        figure = view.next_token(model, IDS, seed=seed, **settings)
        made = heedful.generate(model, IDS, seed=seed, max_tokens=1, details=True, **settings)
        assert made.ids == [figure.data["drawn"]]
        final = figure.data["chain"]["final"]
        assert final.sum() == pytest.approx(1.0)
        assert figure.data["kept"] <= 20


def test_temperature_zero_takes_the_likeliest_and_an_encoder_fills_its_mask() -> None:
    greedy = view.next_token(tiny("gpt2"), IDS, temperature=0)
    assert greedy.data["drawn"] == int(greedy.data["logits"].argmax()) == greedy.data["shown"][0]
    assert view.next_token(tiny("bert"), IDS, position=2).about["position"] == 2
    assert view.next_token(tiny("t5"), IDS).data["logits"].size
    with pytest.raises(InputError, match="an encoder predicts masked words"):
        view.next_token(tiny("bert"), IDS)


def test_positions_are_the_models_own() -> None:
    llama = tiny("llama")
    first = view.positions(llama, 6).data["panels"][0]
    rotary = next(m for m in llama.modules() if type(m).__name__ == "Rotary")
    cos, _ = rotary.table(torch.arange(6)[None], torch.tensor([[6]]))
    np.testing.assert_array_equal(first["values"], cos[0, 0].numpy())
    learned = tiny("gpt2")
    table = view.positions(learned, 6).data["panels"][0]["values"]
    np.testing.assert_array_equal(table, learned.embed.position.weight[:6].detach().numpy())
    t5 = tiny("t5")
    bias = view.positions(t5, 6).data["panels"][0]
    at = bias["columns"].index("-2")
    expected = t5.encoder.bias.table(t5.encoder.bias.bucket(torch.tensor(-2)))
    np.testing.assert_array_equal(bias["values"][:, at], expected.detach().numpy())
    with pytest.raises(InputError, match="has no positions: order comes from its recurrence"):
        view.positions(tiny("lstm"))


def test_the_map_is_the_principal_components_and_neighbours_are_of_the_full_space() -> None:
    vectors = torch.randn(40, 8, generator=torch.Generator().manual_seed(0)) * torch.arange(8, 0, -1)
    figure = view.embeddings(vectors, names=[f"w{i}" for i in range(40)], count=40, neighbours=3, select="w7")
    spread = figure.data["points"].var(0, ddof=1)
    values = torch.linalg.eigvalsh(torch.cov(vectors.double().T)).flip(0)[:2]
    np.testing.assert_allclose(spread, values.numpy(), rtol=1e-5)
    cosine = torch.nn.functional.cosine_similarity(vectors[7], vectors)
    cosine[7] = -1
    near = [figure.data["words"][i] for i in figure.data["near"][7]]
    assert near == [f"w{i}" for i in cosine.topk(3).indices.tolist()]


def test_words_of_a_word2vec_are_mapped() -> None:
    vectors = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
    model = heedful.Word2Vec([f"word{chr(97 + i)}" for i in range(12)], vectors)
    figure = view.embeddings(model, words=["worda", "wordb", "wordc"])
    assert figure.data["names"] == ["worda", "wordb", "wordc"]
    assert figure.data["words"][figure.data["near"][0][0]] == model.neighbours("worda", 1)[0][0]


@pytest.mark.parametrize("kind", ["bert", "gpt2", "t5"])
def test_the_picture_of_a_transformers_model_is_its_attentions(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    small = {
        "bert": {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 16,
        },
        "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2},
        "t5": {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2},
    }[kind]
    extra = {"decoder_start_token_id": 0} if kind == "t5" else {}
    config = transformers.AutoConfig.for_model(kind, vocab_size=50, **small, **extra)
    if kind == "t5":
        model = transformers.T5ForConditionalGeneration(config)
    else:
        model = transformers.AutoModel.from_config(config, attn_implementation="sdpa")
    before = model.config._attn_implementation
    ids = torch.tensor([IDS])
    figure = view.attention(model, IDS, [0, 3, 4] if kind == "t5" else None)
    assert model.config._attn_implementation == before
    assert model.training
    model.eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        more = {"decoder_input_ids": torch.tensor([[0, 3, 4]])} if kind == "t5" else {}
        out = model(input_ids=ids, output_attentions=True, **more)
    theirs = (
        (*out.encoder_attentions, *out.decoder_attentions, *out.cross_attentions) if more else out.attentions
    )
    for mine, layer in zip(figure.data["patterns"], theirs, strict=True):
        np.testing.assert_array_equal(mine["values"], layer[0].numpy())
    assert view.attention(tokens=[str(i) for i in IDS], pattern=theirs[:2]).data["patterns"]


def test_a_live_widget_carries_the_figure() -> None:
    pytest.importorskip("anywidget")
    figure = view.attention(tokens=["a", "b"], pattern=torch.eye(2))
    widget = figure.widget()
    assert json.loads(widget.figure)["kind"] == "attention"
    assert "export" in str(widget._esm)
    shown_as = figure._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in shown_as
    assert shown_as["text/html"].startswith("<iframe")


def test_without_anywidget_a_figure_is_still_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "anywidget", None)
    figure = view.attention(tokens=["a", "b"], pattern=torch.eye(2))
    assert set(figure._repr_mimebundle_()) == {"text/plain", "text/html"}
    with pytest.raises(MissingPackage, match=r"heedful\[notebook\]"):
        figure.widget()


def test_without_matplotlib_a_png_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(MissingPackage, match=r"heedful\[plot\]"):
        view.attention(tokens=["a"], pattern=[[1.0]]).save(tmp_path / "x.png")


BAD = [
    (lambda m: view.attention(), "give a model and a text"),
    (lambda m: view.attention(m), "give a model and a text"),
    (lambda m: view.attention(m, "a text"), "no tokenizer"),
    (lambda m: view.attention(m, IDS, layer=9), "layer=9 is outside 0 … 1"),
    (lambda m: view.attention(m, IDS, layer="blocks.0.att"), "did you mean 'blocks.0.attn'"),
    (lambda m: view.attention(m, IDS, head=7), "head=7 is outside"),
    (lambda m: view.attention(m, IDS, head="all"), "give a number, 'mean' or 'max'"),
    (lambda m: view.attention(m, IDS, scale="cubic"), "choose one of linear, sqrt, log"),
    (lambda m: view.attention(m, IDS, palette="jet"), "choose one of blue, cividis"),
    (lambda m: view.attention(m, list(range(5)) * 2000), "shorten it to"),
    (lambda m: view.attention(tokens=["a"]), "both tokens= and pattern="),
    (lambda m: view.attention(tokens=["a"], pattern=torch.eye(2)), "does not fit 1 queries and 1 keys"),
    (lambda m: view.attention(tokens="ab", pattern=torch.eye(2)), "tokens is one string"),
    (lambda m: view.attention(tokens=["a"], pattern=[[float("nan")]]), "not finite numbers"),
    (lambda m: view.attention(tokens=["a"], pattern=[1.0]), r"has shape \(1,\)"),
    (lambda m: view.attention(tokens=["a"], pattern=[[1.0], [1.0, 2.0]]), "rows of numbers"),
    (lambda m: view.attention(7, "text"), "a int is not a model"),
    (lambda m: view.attention(lambda **k: None, "text"), "needs the model's tokenizer"),
    (lambda m: view.attention(lambda **k: None, IDS), "gave no attentions"),
    (lambda m: view.next_token(m, IDS, top_p=2.0), "top_p=2.0 must be"),
    (lambda m: view.positions(m, 1), "between 2 and 2048"),
    (lambda m: view.embeddings(torch.zeros(3, 2)), "vectors .V, D. and names="),
    (lambda m: view.embeddings(m, table="target"), "no table 'target'"),
    (lambda m: view.embeddings(m, words=[1]), "at least 2 words"),
    (lambda m: view.embeddings(m, words=[1, 10**6]), "outside 0"),
]


@pytest.mark.parametrize(("call", "line"), BAD, ids=[line for _, line in BAD])
def test_a_bad_input_is_named(call: object, line: str) -> None:
    with pytest.raises(InputError, match=line) as fault:
        call(tiny("gpt2"))  # type: ignore[operator]
    assert "\n" not in str(fault.value)


def test_panels_whose_names_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"2 rows and 1 columns have names, the values are \(3, 1\)"):
        panels.bars("three", [1.0, 2.0, 3.0], ["a", "b"])


def test_surprise_is_that_of_the_library() -> None:
    model = tiny("gpt2")
    (panel,) = view.surprisal(model, IDS).data["panels"]
    assert panel["values"][:, 0].tolist() == list(surprisal(model, IDS).bits[1:])
    assert panel["rows"][0] == "1: 9"


def test_a_name_without_a_known_ending_and_a_run_that_is_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.html, \.svg, \.png, \.pdf, \.csv or \.json"):
        view.attention(tokens=["a"], pattern=[[1.0]]).save(tmp_path / "x.gif")
    with pytest.raises(NotFound, match="give the folder of a run"):
        view.training(tmp_path / "nowhere")
    (tmp_path / "metrics.jsonl").write_text('{"train/global_step": 1, "train/loss": 2.0}\n')
    with pytest.raises(InputError, match="logged no 'accuracy'"):
        view.training(tmp_path, "accuracy")


def test_numbers_beside_a_figure_read_as_people_write_them() -> None:
    assert [brief(v) for v in (0, 0.4123, 12.34, 2000, 15000, -2.5e6, 1e-5)] == [
        "0", "0.412", "12.3", "2000", "15k", "−2.5M", "1e-05",
    ]  # fmt: skip
    assert [percent(p) for p in (1, 0.99999, 0.9997, 0.224, 0.00014, 6.1e-5, 1e-8, 0)] == [
        "100 %", "> 99.99 %", "99.97 %", "22.4 %", "0.01 %", "0.006 %", "< 0.001 %", "0",
    ]  # fmt: skip
    assert ticks(0, 3, 6, 1.0) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("path", "said"), [("none/x.html", "folder not found"), ("x.svg", "is a folder"), (5, "got a int")]
)
def test_a_place_where_nothing_can_be_written_is_said(tmp_path: Path, path: str | int, said: str) -> None:
    figure = view.attention(tokens=["a"], pattern=[[1.0]])
    (tmp_path / "x.svg").mkdir()
    with pytest.raises(ConfigError, match=said):
        figure.save(tmp_path / path if isinstance(path, str) else path)  # type: ignore[arg-type]


def test_positions_are_as_many_as_the_model_has_and_as_can_be_drawn() -> None:
    model = tiny("gpt2")
    assert view.positions(model, length=2000).about["positions"] == model.config.context  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="between 2 and 2048"):
        view.positions(model, length=10**6)
    with pytest.raises(InputError, match="no run was named"):
        view.training([])


def test_a_line_with_a_gap_is_drawn_in_two_pieces_and_a_ninth_line_has_its_own_dash() -> None:
    from heedful.classroom.figures import canvas
    from heedful.classroom.figures.canvas import Stroke
    from heedful.classroom.figures.panels import line_chart

    x, flat = [0.0, 1.0, 2.0, 3.0, 4.0], [1.0] * 5
    curves = [("a", x, [1.0, 2.0, float("nan"), 3.0, 4.0]), *((str(k), x, flat) for k in range(8))]
    shapes, _, _ = line_chart(curves, "x", "y")
    strokes = [s for s in shapes if isinstance(s, Stroke) and s.width == 1.8]
    assert [len(s.points) for s in strokes[:2]] == [2, 2]
    assert len(strokes) == 10
    assert strokes[-1].colour == strokes[0].colour == canvas.OKABE_ITO[0]
    assert strokes[-1].dash != strokes[0].dash
