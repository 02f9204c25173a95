"""Settings of generation: one object for everybody who asks for text.

A language model only gives the probability of each next token. How a text is made of them is a choice: take
the most likely token each time (greedy), draw one at random (sampling), or keep several texts and search for
the best (beams, contrastive). Drawing from all tokens goes astray sooner or later, because the many unlikely
ones together have a fair chance; top_k, top_p, min_p and typical cut this tail off before the draw.
`GenerationSettings` holds these choices. `heedful.generate` and `heedful.stream` take its fields as keywords;
commands, pipelines, servers and the studio fill it under their own names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, get_args

from heedful.core.checks import Option, check_integer, check_number, find_options, is_integer
from heedful.core.errors import InputError, nearest

NARROWING = ("top_k", "top_p", "min_p", "typical")  # rules that only a draw has a use for
BEAM_SETTINGS = ("length_penalty", "early_stopping", "groups", "diversity", "coverage")
CONSTRAINTS = ("choices", "regex", "schema")


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """How a text is written. None stands for the default of a field.

    Without a temperature the most likely token is taken, unless there is something only a draw has a use for:
    top_k, top_p, min_p, typical, several texts. Then the temperature is 1.
    """

    max_tokens: Annotated[
        int, Option("Generate at most N tokens.", ("--max-tokens", "--max-new-tokens"), minimum=1)
    ] = 128
    temperature: Annotated[
        float | None, Option("Sample at this temperature; 0 takes the most likely token.", minimum=0)
    ] = None
    top_k: Annotated[int | None, Option("Sample from the K most likely tokens.", minimum=1)] = None
    top_p: Annotated[
        float | None,
        Option("Sample from the most likely tokens that together have this probability.", above=0, maximum=1),
    ] = None
    min_p: Annotated[
        float | None,
        Option("Drop tokens less likely than this share of the most likely one.", minimum=0, maximum=1),
    ] = None
    typical: Annotated[
        float | None,
        Option(
            "Sample from the most typical tokens that together have this probability.", above=0, maximum=1
        ),
    ] = None
    repetition: Annotated[
        float, Option("Divide the logits of tokens that occurred before by this.", above=0)
    ] = 1.0
    presence: Annotated[float, Option("Subtract this once from the logits of tokens that were written.")] = (
        0.0
    )
    frequency: Annotated[
        float, Option("Subtract this from a token's logit for each time that it was written.")
    ] = 0.0
    no_repeat: Annotated[int | None, Option("Write no sequence of N tokens twice.", minimum=1)] = None
    bias: Annotated[
        Mapping[int, float] | None, Option("Add these numbers to the logits of these tokens.")
    ] = None
    stop: Annotated[
        Sequence[str],
        Option("Stop before this text; give it several times for several texts.", metavar="TEXT"),
    ] = ()
    eos: Annotated[
        int | Sequence[int] | None,
        Option("Stop after these tokens; the default is the model's own, and () never stops."),
    ] = None
    seed: Annotated[int | None, Option("Draw with this seed; the same one gives the same text.")] = None
    logprobs: Annotated[
        int, Option("Report the N most likely tokens next to each chosen one.", minimum=0)
    ] = 0
    choices: Annotated[Sequence[str] | None, Option("Generate one of these texts.")] = None
    regex: Annotated[str | None, Option("Generate only text that matches this expression.")] = None
    schema: Annotated[Mapping[str, Any] | str | None, Option("Generate JSON of this schema.")] = None
    draft: Annotated[Any, Option("Let a smaller model, or its stepper, propose tokens.")] = None
    lookup: Annotated[
        int | None, Option("Propose what followed the same last N tokens before.", minimum=1)
    ] = None
    propose: Annotated[int, Option("Propose N tokens at once.", minimum=1)] = 4
    watch: Annotated[Any, Option("Let this heedful.Watch see every pass.")] = None
    n: Annotated[int | None, Option("Generate N texts.", minimum=1)] = None
    beams: Annotated[int | None, Option("Search with N beams.", ("--beams", "--num-beams"), minimum=1)] = None
    length_penalty: Annotated[
        float, Option("Divide the score of a text by its length to this power; 0 leaves scores alone.")
    ] = 1.0
    early_stopping: Annotated[
        bool | Literal["never"],
        Option(
            "End a search once enough texts are finished (True), once no running text seems to beat them "
            "(False), or once none can ('never')."
        ),
    ] = False
    groups: Annotated[int, Option("Search with the beams in N groups that avoid each other.", minimum=1)] = 1
    diversity: Annotated[
        float, Option("Subtract this for a token that an earlier group chose.", minimum=0)
    ] = 0.0
    coverage: Annotated[float, Option("Weight of attending to every token of the source.", minimum=0)] = 0.0
    contrastive: Annotated[
        float | None,
        Option(
            "Search for a text that does not repeat itself; 0 prefers likely tokens, 1 new ones.",
            minimum=0,
            maximum=1,
        ),
    ] = None

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) is None:
                object.__setattr__(self, field.name, field.default)
        for name, kinds, option in NUMERIC_FIELDS:
            value = getattr(self, name)
            if value is not None:
                bounds: Any = {"minimum": option.minimum, "maximum": option.maximum}
                if int in kinds:
                    value = check_integer(name, value, **bounds)
                else:
                    value = check_number(name, value, above=option.above, **bounds)
                object.__setattr__(self, name, value)
        self._check_texts()
        if self.searches:
            self._check_search()
        elif any(
            getattr(self, field.name) != field.default
            for field in fields(self)
            if field.name in BEAM_SETTINGS
        ):
            raise InputError(f"{', '.join(BEAM_SETTINGS)} need `beams=…`")
        if self.temperature is None:
            drawn = self.samples > 1 or any(getattr(self, name) is not None for name in NARROWING)
            object.__setattr__(self, "temperature", 1.0 if drawn and not self.searches else 0.0)
        if self.greedy and self.samples > 1 and not self.searches:
            raise InputError(
                f"`n={self.n}` with `temperature=0` gives the same text {self.n} times",
                hint="raise the temperature, or search with `beams=`",
            )

    def _check_texts(self) -> None:
        """Check the fields that are not numbers, and the two ways to propose tokens."""
        bias = {} if self.bias is None else self.bias
        if not isinstance(bias, Mapping) or not all(map(is_integer, bias)):
            raise InputError(
                f"`bias={bias!r}` must be a mapping from ids of tokens to numbers, as {{5: -1.0}}"
            )
        if any(math.isnan(value) or value == math.inf for value in bias.values()):
            raise InputError("bias must be finite, or -inf to forbid a token")
        several = (self.stop,) if isinstance(self.stop, str) else self.stop
        if not isinstance(several, Iterable) or not all(isinstance(text, str) and text for text in several):
            raise InputError(f"`stop={self.stop!r}` must be a text or several, none of them empty")
        object.__setattr__(self, "stop", tuple(several))
        if not isinstance(self.regex, str | None):
            raise InputError(f"`regex={self.regex!r}` must be a text")
        if self.early_stopping not in (True, False, "never"):
            raise InputError(f"`early_stopping={self.early_stopping!r}` must be True, False or 'never'")
        if self.draft is None and self.lookup is None:
            return
        if self.draft is not None and self.lookup is not None:
            raise InputError("draft and lookup both propose tokens", hint="give one of them")
        if self.is_constrained:
            raise InputError("draft and lookup do not go with choices, regex or schema", hint="leave one out")
        if self.watch is not None:
            raise InputError("draft and lookup read guesses, which a watch would show", hint="leave one out")

    def _check_search(self) -> None:
        """Raise an error for settings that do not go together with a search."""
        if self.beams is not None and self.contrastive is not None:
            raise InputError("beams and contrastive are two ways to search", hint="give one of them")
        method = "contrastive" if self.beams is None else "beams"
        width = self.beams or 1
        for name in ("temperature", *NARROWING):
            value = getattr(self, name)
            if value and (method, name) != ("contrastive", "top_k"):
                raise InputError(
                    f"{method} searches and never draws",
                    hint=f"`{name}={value}` is for sampling: leave one of the two out",
                )
        only_contrastive = ("watch", *CONSTRAINTS) if self.beams is None else ()
        for name in ("stop", "draft", "lookup", "logprobs", *only_contrastive):
            if getattr(self, name):
                raise InputError(f"{method} does not go with {name}", hint="leave one of them out")
        if self.samples > width:
            raise InputError(
                f"`n={self.n}` is more than the {width} texts that {method} keeps", hint="ask for fewer"
            )
        if width % self.groups:
            raise InputError(
                f"`groups={self.groups}` does not divide `beams={width}`", hint=f"choose a divisor of {width}"
            )
        if self.groups > 1 and not self.diversity:
            raise InputError(
                f"`groups={self.groups}` would all search alike without diversity",
                hint="give a diversity above 0",
            )
        if self.groups == 1 and self.diversity:
            raise InputError(
                f"`diversity={self.diversity}` keeps groups apart", hint="give `groups=2` or more"
            )

    @property
    def samples(self) -> int:
        """The number of texts for each prompt."""
        return 1 if self.n is None else self.n

    @property
    def searches(self) -> bool:
        """Whether the text is searched for, and neither drawn nor written token by token."""
        return self.beams is not None or self.contrastive is not None

    @property
    def is_constrained(self) -> bool:
        """Whether the text must have a form."""
        return any(getattr(self, name) is not None for name in CONSTRAINTS)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.temperature == 0

    @property
    def looks_back(self) -> bool:
        """Whether a rule needs the tokens so far."""
        return self.repetition != 1 or self.presence != 0 or self.frequency != 0 or self.no_repeat is not None

    @property
    def forbids(self) -> bool:
        """Whether a rule can leave no token at all."""
        return self.no_repeat is not None or -math.inf in (self.bias or {}).values()

    @property
    def changes(self) -> bool:
        """Whether any rule would change which token is most likely."""
        return self.looks_back or bool(self.bias)

    @property
    def drawing(self) -> tuple[float | None, ...]:
        """The values that a draw depends on: rows that have the same can be drawn together."""
        return (self.temperature, self.top_k, self.top_p, self.min_p, self.typical)


# Read once: looking up the types of the fields takes longer than checking their values.
FIELD_OPTIONS = {name: option for name, _, option in find_options(GenerationSettings)}
NUMERIC_FIELDS = [
    (name, kinds, option)
    for name, hint, option in find_options(GenerationSettings)
    if (kinds := set(get_args(hint) or [hint])) <= {int, float, type(None)}
]


def read_settings(keywords: Mapping[str, Any]) -> GenerationSettings:
    """Return keywords of `heedful.generate` as settings; raise an error for one that does not exist."""
    for name in keywords:
        if name not in FIELD_OPTIONS:
            hint = nearest(name, FIELD_OPTIONS) or ", ".join(FIELD_OPTIONS)
            raise InputError(f"unknown setting {name!r}", hint=hint)
    return GenerationSettings(**keywords)
