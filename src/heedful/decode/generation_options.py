"""Options of `heed generate` and `heed chat`: settings of generation, each with its help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from heedful.core.checks import Option


@dataclass(frozen=True)
class SamplingOptions:
    """Options of the length of a text and the choice of its tokens; None leaves a rule out."""

    max_tokens: Annotated[int, Option("Generate at most N tokens.", ("--max-tokens", "--max-new-tokens"))] = (
        128
    )
    temperature: Annotated[
        float | None, Option("Sample at this temperature; 0 takes the likeliest token.")
    ] = None
    top_k: Annotated[int | None, Option("Sample from the K likeliest tokens.")] = None
    top_p: Annotated[float | None, Option("Sample from the likeliest tokens that hold this probability.")] = (
        None
    )
    min_p: Annotated[float | None, Option("Drop tokens less likely than this share of the likeliest.")] = None
    repetition: Annotated[float, Option("Divide the logits of tokens that occurred by this.")] = 1.0
    stop: Annotated[
        Sequence[str],
        Option("Stop before this text; give it several times for several texts.", metavar="TEXT"),
    ] = ()
    seed: Annotated[int | None, Option("Draw with this seed; the same one gives the same text.")] = None

    def settings(self) -> dict[str, Any]:
        """Return the settings that were given, under the names that `heedful.generate` takes."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return given | {"stop": list(self.stop) or None}


@dataclass(frozen=True)
class GenerationOptions(SamplingOptions):
    """Options for one prompt, of which several texts may be asked for, and texts of one form."""

    beams: Annotated[int | None, Option("Search with N beams.", ("--beams", "--num-beams"))] = None
    n: Annotated[int | None, Option("Generate N texts.")] = None
    regex: Annotated[str | None, Option("Generate only text that matches this expression.")] = None
