"""First weights, before training; and models that have none yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from heedful.nn.context import Part


@torch.no_grad()
def initialise(model: nn.Module, std: float = 0.02) -> None:
    """N(0, std²) for matrices and tables, 0 for biases, 1 for norms   (Radford et al. 2019 §2.3)

    Then parts that start otherwise set themselves.
    """
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    for module in model.modules():
        if isinstance(module, Part):
            module.initialise()


FIRST_VALUES = {fn for name, fn in vars(nn.init).items() if name.endswith("_") and callable(fn)}


class _Unset(TorchFunctionMode):
    """First values are not computed: on `meta` there is nothing to put them in, and asking costs seconds."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in FIRST_VALUES:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


@contextmanager
def outline() -> Iterator[None]:
    """Modules made inside have shapes but no values: they are on `meta` and take no memory."""
    with torch.device("meta"), _Unset():
        yield
