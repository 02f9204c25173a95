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


STAGES = """
import sys

def report(*names):
    print(sorted(sys.modules.keys() & set(names)))

import heedful
report('torch', 'numpy', 'tokenizers', 'typer')
heedful.load, heedful.build, heedful.Watch
report('transformers', 'gguf', 'sentencepiece', 'huggingface_hub', 'numba', 'torch._dynamo')
from heedful.cli import main
try: main(['classify', 'Great fun.'])
except SystemExit as end: assert not end.code
tasks = ('text_generation', 'question_answering')
report('torch._dynamo', 'numba', 'yaml', 'rich.progress', 'heedful.decode.loop', 'heedful.view',
       'heedful.tasks.likelihood', *(f'heedful.tasks.pipelines.{name}' for name in tasks))
for name in sys.argv[1:]: heedful.load(name)
report('torch._dynamo', 'sympy', 'numba', 'transformers')
"""


def test_importing_loading_and_classifying_import_nothing_that_they_do_not_need() -> None:
    names = [name for name, path in bundled_models().items() if (path / "config.json").is_file()]
    assert names
    printed = python(STAGES, *names).splitlines()
    assert [line for line in printed if line.startswith("[")] == ["[]"] * 4, printed


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
