"""`heed generate`, `heed chat` and `heed bench`, called as the command line calls them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import heedful
from heedful.cli import main
from heedful.cli.tools import bytes_per_step
from heedful.weights.exporting import export_gguf
from tests.decode.toy import letters
from tests.properties.tiny import tiny

CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
Heed = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny LLaMA that writes bytes and has a chat template."""
    model = tiny("llama", vocab=260)
    model.tokenizer = letters()
    model.tokenizer.chat_template = CHAT
    return str(heedful.save(model, tmp_path_factory.mktemp("talker") / "model"))


@pytest.fixture
def heed(capsys: pytest.CaptureFixture[str]) -> Heed:
    """Run a command: its exit code, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(arguments)
        said = capsys.readouterr()
        return int(end.value.code or 0), said.out, said.err

    return run


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """A person at a terminal who types these lines and leaves."""
    waiting = iter(lines)

    def answer(prompt: str = "") -> str:
        for line in waiting:
            return line
        raise EOFError

    monkeypatch.setattr("builtins.input", answer)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)


def test_the_seed_that_generate_says_writes_the_text_again(heed: Heed, talker: str) -> None:
    line = ("generate", talker, "abc", "--temperature", "1", "--max-tokens", "12", "--json")
    code, out, err = heed(*line, "-v")
    seed = re.search(r"seed=(\d+)", err)
    assert code == 0
    assert seed is not None
    again = heed(*line, "--seed", seed[1])[1]
    assert json.loads(again) == json.loads(out)


@pytest.mark.parametrize(
    "options", [(), ("--n", "2", "--seed", "0"), ("--json",)], ids=["stream", "n", "json"]
)
def test_a_text_that_ends_because_the_context_is_full_says_so(
    heed: Heed, talker: str, options: tuple[str, ...]
) -> None:
    code, _, err = heed("generate", talker, "abc", "--max-tokens", "200", *options)
    assert code == 0
    assert re.search(r"ends after \d+ of 200 tokens, because the model's context of 64 tokens is full", err)
    assert "note:" not in heed("generate", talker, "abc", "--max-tokens", "9", *options)[2]


def test_an_answer_that_fills_the_context_says_so(
    heed: Heed, talker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "hello")
    _, _, err = heed("chat", talker, "--max-tokens", "200", "--seed", "0")
    assert "the conversation fills the model's context" in err


def test_a_gpu_that_is_not_there_is_no_fault_of_ours(
    heed: Heed, talker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, _, err = heed("generate", talker, "abc", "--device", "cuda")
    assert code == 3
    assert "--device cuda is not available: torch finds no such GPU" in err


def test_a_step_reads_neither_the_encoder_nor_experts_that_no_token_visits() -> None:
    size = lambda parameters: sum(p.nbytes for p in parameters)
    writer = tiny("transformer")
    once = [p for n, p in writer.decoder.named_parameters() if ".cross.k." in n or ".cross.v." in n]
    read = {*writer.decoder.parameters(), *writer.head.parameters()} - set(once)
    assert bytes_per_step(writer, 1) == size(read)
    assert len(once) > 0
    mixture = tiny("mixtral")
    experts = [p for n, p in mixture.named_parameters() if ".experts." in n]
    others = size(mixture.parameters()) - size(experts) - size([mixture.embed.table])
    active, count = mixture.config.active, mixture.config.experts
    assert bytes_per_step(mixture, 1) == pytest.approx(others + size(experts) * active / count, rel=1e-3)
    assert bytes_per_step(mixture, 1000) == pytest.approx(others + size(experts), rel=1e-3)
    tied = tiny("gpt2")
    assert size([tied.embed.table]) < bytes_per_step(tied, 1) <= size(tied.parameters())


def test_a_step_reads_a_quantised_file_as_it_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heedful.kernels.cpu.block_tensor.MIN_VALUES", 1)
    model = tiny("llama", vocab=260, dim=64, hidden=128)
    model.tokenizer = letters()
    plain, short = bytes_per_step(model, 1), heedful.load(export_gguf(model, tmp_path / "a.gguf", "q8_0"))
    assert bytes_per_step(short, 1) < plain / 2


def test_a_bench_longer_than_the_context_names_its_flags(heed: Heed, talker: str) -> None:
    code, _, err = heed("bench", talker, "--prompt", "60", "--tokens", "60")
    assert code == 3
    assert "--prompt 60 and --tokens 60" in err


def test_an_answer_that_fails_does_not_end_the_conversation(
    heed: Heed, talker: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    saved = tmp_path / "talk.json"
    typed(
        monkeypatch, "one", "/set top_p 7", "/set top_p 0.9", "x" * 500, "/save /no/such/place",
        "three", f"/save {saved}",
    )  # fmt: skip
    code, _, err = heed("chat", talker, "--max-tokens", "4", "--seed", "0")
    assert code == 0
    assert "top_p=7.0 must be" in err
    assert "the prompt has" in err
    assert "could not write /no/such/place" in err
    assert [m["content"] for m in json.loads(saved.read_text()) if m["role"] == "user"] == ["one", "three"]


def test_a_message_from_a_pipe_that_cannot_be_answered_is_an_error(
    heed: Heed, talker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "x" * 500)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    code, _, err = heed("chat", talker)
    assert code == 3
    assert "the prompt has" in err


def test_the_folder_of_a_run_stands_for_its_best_checkpoint(heed: Heed, talker: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(talker, run / "checkpoints" / "step-000002")
    (run / "checkpoints" / "step-000004").mkdir()
    (run / "best.json").write_text(json.dumps({"checkpoint": "step-000002", "step": 2}))
    code, out, _ = heed("generate", str(run), "abc", "--max-tokens", "4")
    assert (code, out) == heed("generate", talker, "abc", "--max-tokens", "4")[:2]


def test_a_place_that_cannot_be_written_is_no_fault_of_ours(heed: Heed) -> None:
    code, _, err = heed("recipe", "cp", "gpt2", "/no/such/place.yaml")
    assert code == 3
    assert err.startswith("error: /no/such/place.yaml: No such file or directory\nhint: check the path")
    assert "fault" not in err
