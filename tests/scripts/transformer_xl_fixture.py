"""Write tests/models/transformer_xl.safetensors: weights and answers of the published Transformer-XL.

`transformers` dropped this architecture in version 5. The file was made once with Python 3.11, torch 2.13.0
and transformers 4.37.2:

    python -m venv old && old/bin/pip install torch==2.13.0 transformers==4.37.2 "numpy<2" safetensors
    old/bin/python tests/scripts/transformer_xl_fixture.py

Tensors have their published names. `first` and `second` are two segments of a text. `first.answer` and
`second.answer` are the log-probabilities after each token, and the second segment remembers the first. The
class of transformers begins with a memory of zeros that it attends to. Here it begins with an empty one.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import TransfoXLConfig, TransfoXLLMHeadModel  # type: ignore[attr-defined]

FILE = Path(__file__).parents[1] / "models" / "transformer_xl.safetensors"


@torch.no_grad()
def main() -> None:
    """Write the file."""
    torch.manual_seed(0)
    config = TransfoXLConfig(
        vocab_size=20, cutoffs=[], d_model=8, d_embed=8, n_head=2, d_head=4, d_inner=12, div_val=1, n_layer=2,
        mem_len=6, same_length=True, clamp_len=-1, untie_r=True,
    )  # fmt: skip
    model = TransfoXLLMHeadModel(config).eval()
    for name, parameter in model.named_parameters():
        if name.startswith("crit."):
            parameter.zero_() if name.endswith("bias") else None  # the paper's output has none
        else:
            parameter.normal_(std=0.4)
    tokens = torch.randint(20, (2, 12))
    first, second = tokens[:, :8].contiguous(), tokens[:, 8:].contiguous()
    empty = [torch.zeros(0, 2, 8) for _ in range(2)]
    one = model(first, mems=empty)
    two = model(second, mems=one.mems)
    tensors = {
        name: tensor.contiguous()
        for name, tensor in model.state_dict().items()
        if name.startswith("transformer.") and "inv_freq" not in name
    }
    tensors |= {"first": first, "second": second}
    tensors |= {"first.answer": one.prediction_scores, "second.answer": two.prediction_scores}
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, FILE)


if __name__ == "__main__":
    main()
