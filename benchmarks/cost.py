"""What heedful costs beside torch: import time, help text, memory while loading, first use.

python benchmarks/cost.py                          prints a table
python benchmarks/cost.py --json                   the same as one object
python benchmarks/cost.py --first-use              processor seconds of commands, beside `import torch`
python benchmarks/cost.py --first-use ../before/src    … beside those of another version, taking turns
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 3
SOURCE = Path(__file__).resolve().parents[1] / "src"

RUN = "from heedful.cli import main; main({})"
OPEN = "import heedful; heedful.load({!r})"
FIRST_USE = {
    "import torch": "import torch",
    "heed --help": RUN.format(["--help"]),
    "heed ls": RUN.format(["ls"]),
    'heed classify "Great fun."': RUN.format(["classify", "Great fun."]),
    'heed tag "Ada lived in London."': RUN.format(["tag", "Ada lived in London."]),
    'heed fill "The cat sat on the [MASK]."': RUN.format(["fill", "The cat sat on the [MASK]."]),
    'heed translate "How are you?"': RUN.format(["translate", "How are you?"]),
    "heed generate smollm2-135m-instruct, 8 tokens": RUN.format(
        ["generate", "smollm2-135m-instruct", "The capital of France is", "--max-tokens", "8"]
    ),
    'heedful.load("smollm2-135m-instruct")': OPEN.format("smollm2-135m-instruct"),
    'heedful.load("sentiment")': OPEN.format("sentiment"),
    'heedful.load("prose")': OPEN.format("prose"),
}

LOAD = """
import sys, torch, heedful
from heedful.weights.loading import load
def status(key):
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith(key)) * 1024
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
model = load(sys.argv[1])
size = sum(p.numel() * p.element_size() for p in model.parameters())
print(status("VmHWM") - before, size)
"""


def seconds(code: str, repeats: int = 9) -> float:
    """The shortest wall time of `python -c code`: what it costs when nothing else runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return min(times)


def processor_seconds(code: str, source: Path) -> float:
    """Processor time, of user and system and all threads, of a new process that runs code."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"PYTHONPATH": str(source)}
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def print_first_use(sources: list[Path]) -> None:
    """Print the least processor seconds of each call over the rounds, in which the versions take turns."""
    for name, code in FIRST_USE.items():
        used = [[processor_seconds(code, source) for source in sources] for _ in range(ROUNDS)]
        print("".join(f"{min(column):>8.2f}" for column in zip(*used, strict=True)), "", name, flush=True)


def loading_peak(dim: int = 1024, layers: int = 12) -> tuple[int, int, int]:
    """Peak memory over the baseline, file size and model size, in bytes, for a LLaMA of 200 M parameters."""
    import heedful

    with tempfile.TemporaryDirectory() as folder:
        model = heedful.build("llama", dim=dim, layers=layers, heads=16, vocab=32000)
        heedful.save(model, folder)
        out = subprocess.run(
            [sys.executable, "-c", LOAD, folder], check=True, capture_output=True, text=True
        ).stdout
        peak, size = map(int, out.split())
        return peak, (Path(folder) / "model.safetensors").stat().st_size, size


def main() -> None:
    if "--first-use" in sys.argv:
        others = sys.argv[sys.argv.index("--first-use") + 1 :]
        return print_first_use([*map(Path, others), SOURCE])
    torch_import, ours = (
        seconds("import torch"),
        seconds("import torch, heedful; heedful.load, heedful.build, heedful.Watch"),
    )
    help_text = seconds("import sys; sys.argv = ['heed', '--help']\nfrom heedful.cli import main\nmain()")
    peak, file, model = loading_peak()
    rows = {
        "import heedful alone (s)": round(seconds("import heedful") - seconds("pass"), 3),
        "import torch (s)": round(torch_import, 3),
        "import torch and heedful, its public names touched (s)": round(ours, 3),
        "heed --help (s)": round(help_text, 3),
        "loading: peak over baseline (MiB)": round(peak / 2**20, 1),
        "loading: file (MiB)": round(file / 2**20, 1),
        "loading: peak / larger of file and model": round(peak / max(file, model), 3),
    }
    return print(
        json.dumps(rows)
        if "--json" in sys.argv
        else "\n".join(f"{value:>10}  {name}" for name, value in rows.items())
    )


if __name__ == "__main__":
    main()
