"""What heedful costs: counted in imports and bytes, never in seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import heedful
from heedful.weights.hub import bundled_models

ROOT = Path(__file__).parents[1]


def python(code: str, *arguments: str) -> str:
    run = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return run.stdout.strip()


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = (
        "import sys, heedful;"
        "print([m for m in ('torch', 'numpy', 'tokenizers', 'typer') if m in sys.modules])"
    )
    assert python(code) == "[]"


def test_loading_a_model_never_imports_what_only_some_need() -> None:
    code = (
        "import sys, heedful; heedful.load, heedful.build, heedful.Watch;"
        "rare = ('transformers', 'gguf', 'sentencepiece', 'huggingface_hub', 'numba', 'torch._dynamo');"
        "print([m for m in rare if m in sys.modules])"
    )
    assert python(code) == "[]"


def test_opening_the_bundled_models_never_imports_a_compiler() -> None:
    names = [name for name, path in bundled_models().items() if (path / "config.json").is_file()]
    code = (
        "import sys, heedful\nfor name in sys.argv[1:]: heedful.load(name)\n"
        "print([m for m in ('torch._dynamo', 'sympy', 'numba', 'transformers') if m in sys.modules])"
    )
    assert names
    assert python(code, *names) == "[]"


def test_classifying_imports_no_task_but_its_own() -> None:
    code = (
        "import sys\nfrom heedful.cli import main\n"
        "try: main(['classify', 'Great fun.'])\nexcept SystemExit as end: assert not end.code\n"
        "rare = ('torch._dynamo', 'numba', 'yaml', 'rich.progress', 'heedful.decode.loop', 'heedful.view',"
        " 'heedful.tasks.likelihood', 'heedful.tasks.pipelines.text_generation',"
        " 'heedful.tasks.pipelines.question_answering')\n"
        "print([m for m in rare if m in sys.modules])"
    )
    assert python(code).splitlines()[-1] == "[]"


def test_loading_holds_the_weights_once(tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        from cost import LOAD
    finally:
        sys.path.pop(0)
    heedful.save(heedful.build("llama", dim=512, layers=8, heads=8, vocab=32000), tmp_path)
    peak, model = map(int, python(LOAD, str(tmp_path)).split())
    file = (tmp_path / "model.safetensors").stat().st_size
    assert peak <= 1.15 * max(file, model)
