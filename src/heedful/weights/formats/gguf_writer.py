"""Writing GGUF files through the `gguf` library, a tensor at a time: only one is held in blocks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from heedful.core.progress import report_progress
from heedful.weights.formats.gguf_header import choose_kind, pack_tensor

FILE_TYPES = {"f32": 0, "f16": 1, "q8_0": 7, "q4_0": 2, "q4_k": 14}  # how the format numbers the schemes


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor], scheme: str) -> None:
    """Write a file whole; `metadata` has general.architecture and what belongs to it."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType, GGUFWriter

    writer = GGUFWriter(path, str(metadata["general.architecture"]))
    writer.add_uint32("general.file_type", FILE_TYPES[scheme])
    writer.add_uint32("general.quantization_version", 2)
    simple = {str: "STRING", bool: "BOOL", int: "UINT32", float: "FLOAT32", bytes: "ARRAY", list: "ARRAY"}
    inner = {str: "STRING", int: "INT32", float: "FLOAT32", bool: "BOOL"}
    for key, value in metadata.items():
        if key == "general.architecture" or value in ([], b""):  # a list without an item cannot be written
            continue
        sub = GGUFValueType[inner[type(value[0])]] if isinstance(value, list) else None
        writer.add_key_value(key, value, GGUFValueType[simple[type(value)]], sub)
    kinds = {name: choose_kind(name, tensor, scheme) for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        numbers, size = GGML_QUANT_SIZES[GGMLQuantizationType[kinds[name]]]
        kind, total = GGMLQuantizationType[kinds[name]], tensor.numel() // numbers * size
        writer.add_tensor_info(name, tuple(tensor.shape), np.dtype(np.float32), total, raw_dtype=kind)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for number, (name, tensor) in enumerate(tensors.items(), 1):
            writer.write_tensor_data(pack_tensor(tensor, kinds[name]))
            report_progress("tensors", number, len(tensors))
    finally:
        writer.close()
