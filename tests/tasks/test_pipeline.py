"""Finding a task and a model for it; what all pipelines have in common."""

from __future__ import annotations

import functools
import itertools
import socket
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful import pipeline
from heedful.core.devices import resolve_device
from heedful.core.errors import ConfigError, HeedfulError, InputError, NotFound
from heedful.core.images import draw_text
from heedful.tasks import Truncated
from heedful.tasks.model_inputs import input_limit, tokenize, with_special_tokens
from heedful.tasks.registry import TASKS, find_task, infer_task, task_names
from heedful.text.tokenizer import Tokenizer
from tests.tasks.conftest import TAGS, Tiny

STORY = "The cat sat on the mat."
ASKED: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "text-classification": (("Cats are fickle creatures",), {}),
    "sentiment-analysis": (("Cats are fickle creatures",), {}),
    "zero-shot-classification": ((STORY, ["cats", "politics"]), {}),
    "token-classification": (("Ada Lovelace lived in London.",), {"ignore_labels": []}),
    "ner": (("Ada Lovelace lived in London.",), {"ignore_labels": []}),
    "question-answering": ((), {"question": "Where did the cat sit?", "context": STORY}),
    "fill-mask": (("The cat sat on the [MASK].",), {}),
    "next-sentence": ((STORY, "Then it fell asleep."), {}),
    "next-sentence-prediction": ((STORY, "Then it fell asleep."), {}),
    "feature-extraction": ((STORY,), {}),
    "sentence-similarity": (({"source_sentence": STORY, "sentences": ["A cat sat."]},), {}),
    "text-generation": ((STORY,), {"max_new_tokens": 2}),
    "conversational": (([{"role": "user", "content": "Hello"}],), {"max_new_tokens": 2}),
    "text2text-generation": ((STORY,), {"max_new_tokens": 2}),
    "summarization": ((STORY,), {"max_new_tokens": 2, "min_length": 0}),
    "translation": ((STORY,), {}),
    "image-to-text": ((draw_text("2026", 16, 96),), {"max_new_tokens": 2}),
}


loaded = functools.cache(heedful.load)  # several tasks share a model


@pytest.mark.parametrize("task", [task for task, model in task_names().items() if model])
def test_every_task_runs_with_its_own_model_and_no_network(
    task: str, offline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AssertionError, match="socket"):
        socket.socket()
    monkeypatch.setattr(sys.modules["heedful.tasks.registry"], "load", loaded)
    try:
        nlp = pipeline(task)
    except NotFound:
        pytest.skip(f"the model {task_names()[task]!r} is not installed")
    given, options = ASKED["translation" if task.startswith("translation") else task]
    assert nlp.task == task
    assert nlp.equation
    assert nlp(*given, **options)


def test_a_task_that_does_not_exist_is_answered_with_the_nearest() -> None:
    with pytest.raises(
        NotFound, match="no task is called 'sentiment-analyis'; did you mean 'sentiment-analysis'"
    ):
        pipeline("sentiment-analyis")


@pytest.mark.parametrize(
    ("task", "meant"),
    [("NER", "ner"), ("translation_en-to-de", "translation_en_to_de"), ("Fill_Mask", "fill-mask")],
)
def test_a_task_in_other_letters_is_answered_with_the_nearest(task: str, meant: str) -> None:
    with pytest.raises(NotFound, match=f"did you mean '{meant}'"):
        pipeline(task)


def test_what_is_no_task_and_no_model_is_one_clear_line() -> None:
    with pytest.raises(InputError, match="a task is named by a text, one of .*; got 3"):
        pipeline(3)  # type: ignore[arg-type]
    wrong = {"a int": 3, "a list": [], "a Linear": torch.nn.Linear(2, 2), "an empty text": ""}
    for got, bad in wrong.items():
        with pytest.raises(InputError, match=f"model= is {got}; give a folder"):
            pipeline("ner", model=bad)  # type: ignore[arg-type]


def test_nothing_asked_for_lists_the_tasks() -> None:
    with pytest.raises(InputError, match="name a task or a model; the tasks are text-classification, "):
        pipeline()


def test_other_names_are_the_same_task() -> None:
    assert find_task("ner") is TASKS["token-classification"]
    assert find_task("sentiment-analysis") is TASKS["text-classification"]
    assert find_task("next-sentence-prediction") is TASKS["next-sentence"]


def test_languages_in_the_name_of_a_translation_choose_its_model() -> None:
    assert find_task("translation_en_to_fr").model == "translate-en-fr"
    with pytest.raises(InputError, match="no bundled model supports translation_fi_to_sv; .* give model="):
        pipeline("translation_fi_to_sv")


@pytest.mark.parametrize(
    ("head", "task"),
    [("classify", "text-classification"), ("tag", "token-classification"), ("mlm", "fill-mask"),
     ("pretrain", "fill-mask"), ("next", "next-sentence"), ("none", "feature-extraction"),
     ("span", "question-answering")],
)  # fmt: skip
def test_without_a_task_the_head_tells(tiny: Tiny, head: str, task: str) -> None:
    assert pipeline(model=tiny(head)).task == task


def test_a_decoder_that_was_taught_to_summarise_is_known_by_its_prompt() -> None:
    model = heedful.build("llama", layers=1, dim=16, heads=2, vocab=20)
    assert infer_task(model) == "text-generation"
    model.hf_config["task_prompt"] = "Sum up:\n{text}\n=>"
    assert infer_task(model) == "summarization"


def test_a_head_that_no_task_uses_is_said() -> None:
    with pytest.raises(InputError, match="a 'detect' head does not belong to a task"):
        pipeline(model=heedful.build("electra", head="detect", layers=1, dim=16, heads=2, vocab=20))


def test_a_head_that_does_not_fit_names_what_is_needed_and_what_would_do(tiny: Tiny) -> None:
    with pytest.raises(InputError) as caught:
        pipeline("ner", model=tiny("classify"))
    assert "needs a head that labels every token (tag)" in caught.value.message
    assert "good for text-classification" in caught.value.message
    assert caught.value.hint == "the bundled 'entities' would do"
    with pytest.raises(InputError, match="this bert has no head"):
        pipeline("fill-mask", model=tiny("none"))


def test_a_classifier_without_a_class_of_entailment_does_no_zero_shot(tiny: Tiny) -> None:
    with pytest.raises(InputError, match="needs a classifier of entailment"):
        pipeline("zero-shot-classification", model=tiny("classify"))


def test_a_folder_and_a_model_give_the_same(tiny: Tiny, tmp_path: Path) -> None:
    model = tiny("classify")
    folder = heedful.save(model, tmp_path)
    expected = pipeline("text-classification", model=model)("a cat")
    assert pipeline("text-classification", model=folder)("a cat") == expected
    assert pipeline("text-classification", model=str(folder))("a cat") == expected


def test_a_tokenizer_can_be_given_beside_the_model(tiny: Tiny, tmp_path: Path) -> None:
    model = tiny("classify")
    expected = pipeline(model=model)("a cat")
    folder, tokenizer = heedful.save(model, tmp_path), model.tokenizer
    model.tokenizer = None
    assert pipeline(model=model, tokenizer=tokenizer)("a cat") == expected
    assert pipeline(model=model, tokenizer=folder)("a cat") == expected
    with pytest.raises(InputError, match="the tokenizer of this model is none; give tokenizer="):
        pipeline(model=model)
    with pytest.raises(InputError, match="the tokenizer of this model is a list"):
        pipeline(model=model, tokenizer=["a", "cat"])


def test_a_model_in_training_mode_is_put_to_evaluation(tiny: Tiny) -> None:
    model = tiny("classify").train()
    nlp = pipeline(model=model)
    assert not model.training
    assert nlp("a cat") == nlp("a cat")


def test_what_transformers_takes_and_nothing_depends_on_is_let_through(tiny: Tiny) -> None:
    nlp = pipeline(
        model=tiny("classify"), framework="pt", device=-1, trust_remote_code=False, revision="main"
    )
    assert nlp("a cat", padding=True, num_workers=0) == nlp("a cat")


def test_weights_are_loaded_in_the_type_asked_for(tiny: Tiny, tmp_path: Path) -> None:
    folder = heedful.save(tiny("classify"), tmp_path)
    for name in ("bfloat16", torch.bfloat16):
        nlp = pipeline(model=folder, torch_dtype=name)
        assert next(nlp.model.parameters()).dtype == torch.bfloat16
        assert nlp("a cat")[0]["label"] in ("NEGATIVE", "POSITIVE")
    kept = pipeline(model=folder, model_kwargs={"torch_dtype": torch.bfloat16})
    assert next(kept.model.parameters()).dtype == torch.bfloat16
    assert next(pipeline(model=folder, dtype="auto").model.parameters()).dtype == torch.float32
    with pytest.raises(ConfigError, match="dtype='int4' is unknown; choose one of float32"):
        pipeline(model=folder, dtype="int4")


def test_devices_are_counted_as_in_transformers() -> None:
    assert all(resolve_device(name) == torch.device("cpu") for name in (-1, -2, None, "cpu"))
    for bad in ("gpu", 1.5, "cuda:x"):
        with pytest.raises(InputError, match="is unknown"):
            resolve_device(bad, InputError)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="device=99 is not available: torch finds no such GPU"):
        resolve_device(99, InputError)


def test_an_option_that_does_not_exist_is_answered_with_the_nearest(tiny: Tiny) -> None:
    with pytest.raises(InputError, match="text-classification has no option 'topp_k'; did you mean 'top_k'"):
        pipeline(model=tiny("classify"))("a cat", topp_k=2)
    with pytest.raises(InputError, match="has no option 'topp_k'"):
        pipeline(model=tiny("classify"), topp_k=2)


def test_options_may_be_called_what_they_once_were(tiny: Tiny) -> None:
    nlp = pipeline("fill-mask", model=tiny("mlm"), topk=2)
    assert nlp("a [MASK]") == nlp("a [MASK]", top_k=2)
    assert len(nlp("a [MASK]", topk=3)) == len(nlp("a [MASK]", top_k=3)) == 3
    judge = pipeline("zero-shot-classification", model=tiny("none"))
    labels = ["cats", "London"]
    assert judge("a cat", labels, multi_class=True) == judge("a cat", labels, multi_label=True)
    assert judge("a cat", labels, multi_class=True) != judge("a cat", labels)


def test_labels_of_a_call_win_over_those_of_the_pipeline_however_they_are_given(tiny: Tiny) -> None:
    judge = pipeline("zero-shot-classification", model=tiny("none"), candidate_labels=["milk"])
    expected = pipeline("zero-shot-classification", model=tiny("none"))("a cat", ["cats", "London"])
    assert (
        judge("a cat", ["cats", "London"]) == judge("a cat", candidate_labels=["cats", "London"]) == expected
    )
    assert judge("a cat")["labels"] == ["milk"]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda nlp: nlp(), "takes inputs, several texts as a list: missing"),
        (lambda nlp: nlp("a", "b"), "takes inputs, several texts as a list: too many"),
        (lambda nlp: nlp("a", batch_size="2"), "batch_size='2' must be a whole number"),
        (lambda nlp: nlp("a", top_k="all"), "top_k='all' must be a whole number"),
        (lambda nlp: nlp("a", top_k=1.5), "top_k=1.5 must be a whole number"),
    ],
)
def test_a_call_that_cannot_be_is_one_clear_line(tiny: Tiny, call: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        call(pipeline("text-classification", model=tiny("classify")))
    assert "\n" not in str(error.value)


def test_options_of_the_tokenizer_that_change_nothing_here_are_refused(tiny: Tiny) -> None:
    features = pipeline(model=tiny("none"))
    with pytest.warns(Truncated):
        assert len(features("a cat sat", tokenize_kwargs={"max_length": 3, "truncation": True})[0]) == 3
    with pytest.raises(InputError, match="the tokenizer has no option 'add_special_tokens' here"):
        features("a cat", tokenize_kwargs={"add_special_tokens": False})
    with pytest.raises(InputError, match="the tokenizer has no option 'stride' here"):
        pipeline(model=tiny("mlm"))("a [MASK]", tokenizer_kwargs={"stride": 3})


def test_a_dataset_of_torch_is_read_item_by_item(tiny: Tiny) -> None:
    class Texts(torch.utils.data.Dataset[str]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, i: int) -> str:
            return f"cat {i}"

    nlp = pipeline(model=tiny("classify"))
    near(list(nlp(Texts(), batch_size=2)), nlp(["cat 0", "cat 1", "cat 2"]))


def test_defaults_hold_for_every_call_until_one_says_otherwise(tiny: Tiny) -> None:
    nlp = pipeline("fill-mask", model=tiny("mlm"), top_k=2)
    assert len(nlp("a [MASK]")) == 2
    assert len(nlp("a [MASK]", top_k=3)) == 3


@pytest.mark.parametrize(
    ("head", "labels"),
    [("classify", None), ("tag", TAGS), ("mlm", None), ("none", None)],
    ids=lambda v: str(v),
)
def test_batches_lists_and_generators_equal_single_texts(tiny: Tiny, head: str, labels: Any) -> None:
    nlp = pipeline(model=tiny(head, labels))
    mask = "[MASK] " if head == "mlm" else ""
    texts = [
        mask + t for t in ("", "a", "the cat 🐈 sat", "مرحبا", "Ada lived in London, then in Paris.")
    ] * 2
    singles = [nlp(text) for text in texts]
    singles = [one[0] for one in singles] if head == "classify" else singles  # a list around one text
    for size in (1, 3, 32):
        near(nlp(texts, batch_size=size), singles)
        near(list(nlp((t for t in texts), batch_size=size)), singles)
    assert nlp([]) == []


def near(a: Any, b: Any) -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        near(list(a.values()), list(b.values()))
    elif isinstance(a, list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            near(x, y)
    else:
        assert a == (pytest.approx(b, abs=1e-4) if isinstance(b, float) else b)


def test_a_generator_is_read_no_farther_than_a_batch(tiny: Tiny) -> None:
    seen = []

    def texts() -> Any:
        for i in range(10):
            seen.append(i)
            yield "a cat"

    answers = pipeline(model=tiny("classify"))(texts(), batch_size=2)
    assert seen == []
    next(answers)
    assert seen == [0, 1]


@pytest.mark.parametrize(
    "bad", [3, None, [3], [None], {"no": "text"}, b"bytes", "\ud800", ["fine", "\udfff"]]
)
@pytest.mark.parametrize("head", ["classify", "tag", "mlm", "none", "next"])
def test_what_is_no_text_is_one_clear_line(tiny: Tiny, head: str, bad: Any) -> None:
    with pytest.raises(InputError) as error:
        pipeline(model=tiny(head))(bad)
    assert "\n" not in str(error.value)


def test_a_batch_of_nothing_is_refused(tiny: Tiny) -> None:
    with pytest.raises(InputError, match="batch_size=0 must be at least 1"):
        pipeline(model=tiny("classify"))("a cat", batch_size=0)


LONG = "the cat sat on the mat " * 30


def test_a_text_that_is_too_long_is_an_error_with_a_way_out(tiny: Tiny) -> None:
    nlp = pipeline(model=tiny("classify"))
    with pytest.raises(
        InputError, match=r"input 1 has \d+ tokens and this model reads 64; pass truncation=True"
    ):
        nlp(["short", LONG])


def test_what_truncation_cuts_off_is_reported_once(tiny: Tiny) -> None:
    nlp = pipeline(model=tiny("classify"))
    tokens = len(nlp.tokenizer.encode(LONG, special=False))
    with pytest.warns(Truncated) as told:
        nlp(["short", LONG, LONG], truncation=True)
    assert told[0].filename == __file__
    lost = f"{tokens - 62} of {tokens} tokens of input"
    assert [str(w.message) for w in told] == [f"cut off: {lost} 1, {lost} 2"]
    with pytest.warns(Truncated, match=f"{tokens - 8} of {tokens} tokens of input 0"):
        nlp(LONG, max_length=10)
    with pytest.raises(
        InputError, match="truncation='longest' is unknown; True, False, or one of longest_first"
    ):
        nlp(LONG, truncation="longest")


def test_nothing_is_reported_where_nothing_is_cut(tiny: Tiny) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pipeline(model=tiny("classify"))(["short", "shorter"], truncation=True)


def test_a_cut_text_reads_as_its_beginning(vocabularies: dict[str, Tokenizer]) -> None:
    for tokenizer in vocabularies.values():
        whole, cut = tokenize(tokenizer, LONG), tokenize(tokenizer, LONG).truncate(12)
        assert cut.ids == [*whole.ids[:11], whole.ids[-1]]
        assert cut.offsets[1:11] == whole.offsets[1:11]
        assert cut.num_truncated == len(whole) - 12


@pytest.mark.parametrize(
    ("strategy", "kept"), [("longest_first", (5, 4)), ("only_first", (5, 4)), ("only_second", (8, 1))]
)
def test_of_a_pair_the_right_text_is_cut(
    vocabularies: dict[str, Tokenizer], strategy: str, kept: tuple[int, int]
) -> None:
    found = tokenize(vocabularies["bert"], "the " * 8, "the " * 4).truncate(12, strategy)
    assert (len(found.token_range(0)), len(found.token_range(1))) == kept
    assert found.num_truncated == 3
    assert [found.type_ids[i] for i in found.token_range(1)] == [1] * kept[1]


def test_a_pair_of_two_long_texts_keeps_half_of_each(vocabularies: dict[str, Tokenizer]) -> None:
    found = tokenize(vocabularies["bert"], LONG, LONG).truncate(23)
    assert len(found) == 23
    assert (len(found.token_range(0)), len(found.token_range(1))) == (10, 10)


def test_windows_hold_every_token_once_and_again_what_they_share(vocabularies: dict[str, Tokenizer]) -> None:
    tokenizer = vocabularies["bert"]
    whole = tokenize(tokenizer, "where?", LONG)
    question = len(whole.token_range(0))
    parts = whole.windows(20, stride=4)
    fit = 20 - 3 - question
    assert all(len(p) == 20 for p in parts[:-1])
    assert len(parts[-1]) <= 20
    inside = [[p.offsets[i] for i in p.token_range(1)] for p in parts]
    for before, after in itertools.pairwise(inside):
        assert before[-4:] == after[:4]
    joined = inside[0] + [span for part in inside[1:] for span in part[4:]]
    assert joined == [whole.offsets[i] for i in whole.token_range(1)]
    assert [p.window_start for p in parts] == [k * (fit - 4) for k in range(len(parts))]


def test_a_stride_as_wide_as_a_window_is_refused(vocabularies: dict[str, Tokenizer]) -> None:
    with pytest.raises(InputError, match="stride=18 must be from 0 to 17: a window of 20 tokens has 18"):
        tokenize(vocabularies["bert"], LONG).windows(20, stride=18)


def test_the_input_limit_is_the_smallest_that_model_and_tokenizer_name(tiny: Tiny) -> None:
    model = tiny("classify")
    assert input_limit(model, model.tokenizer) == 64
    shorter = Tokenizer(model.tokenizer.backend, model.tokenizer.roles, settings={"model_max_length": 40})
    assert input_limit(model, shorter) == 40
    endless = Tokenizer(model.tokenizer.backend, model.tokenizer.roles, settings={"model_max_length": 10**30})
    assert input_limit(model, endless) == 64


def test_a_tokenizer_that_puts_nothing_around_gets_what_its_encoder_was_trained_with(
    vocabularies: dict[str, Tokenizer],
) -> None:
    import tokenizers

    bare = tokenizers.Tokenizer.from_str(vocabularies["bert"].backend.to_str())
    bare.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A", pair="$A $B", special_tokens=[]
    )
    plain = Tokenizer(bare, vocabularies["bert"].roles)
    assert with_special_tokens(plain).encode_pair("a", "cat") == vocabularies["bert"].encode_pair("a", "cat")
    assert with_special_tokens(vocabularies["bert"]) is vocabularies["bert"]


def test_what_a_pipeline_is_fits_on_a_line(tiny: Tiny) -> None:
    assert repr(pipeline(model=tiny("tag", TAGS))) == "pipeline('token-classification', bert, tag head)"


def test_a_pipeline_tells_how_its_answer_is_reached(tiny: Tiny) -> None:
    assert pipeline(model=tiny("tag", TAGS)).equation == "p = softmax(u) over the labels, at every token."


def test_all_errors_are_heedfuls_own(tiny: Tiny) -> None:
    with pytest.raises(HeedfulError, match="'no-such-model' is not a folder"):
        pipeline("ner", model="no-such-model")


def test_special_tokens_have_the_names_that_old_code_calls_them_by(tiny: Tiny) -> None:
    nlp: Any = pipeline("fill-mask", model=tiny("mlm"))
    assert nlp.tokenizer.mask_token == "[MASK]"
    assert nlp.tokenizer.mask_token_id == nlp.tokenizer.mask
    assert nlp.tokenizer.eos_token is None
    assert nlp.tokenizer.eos_token_id is None
    assert nlp(f"The {nlp.tokenizer.mask_token} sat") == nlp("The [MASK] sat")
    assert nlp.tokenizer.model_max_length > 10**9  # nobody set one
    with pytest.raises(AttributeError, match="a Tokenizer has no 'masc_token'"):
        nlp.tokenizer.masc_token  # noqa: B018


def test_a_tokenizer_is_called_as_old_code_calls_it(tiny: Tiny) -> None:
    tokenizer = pipeline("fill-mask", model=tiny("mlm")).tokenizer
    alone = tokenizer("a cat")
    assert alone["input_ids"] == tokenizer.encode("a cat")
    assert alone["attention_mask"] == [1] * len(alone["input_ids"])
    assert tokenizer(["a cat", "he"])["input_ids"] == tokenizer.encode_all(["a cat", "he"])
    pair = tokenizer("a cat", "he", add_special_tokens=False)
    assert (pair["input_ids"], pair["token_type_ids"]) == tokenizer.encode_pair("a cat", "he", special=False)


def test_a_pipeline_knows_the_names_of_its_labels(tiny: Tiny) -> None:
    assert pipeline(model=tiny("classify", ["no", "yes"])).labels == ["no", "yes"]
