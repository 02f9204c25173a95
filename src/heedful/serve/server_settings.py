"""Options of `heed serve`: where it listens, who may ask, and what one request may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from heedful.core.errors import InputError
from heedful.core.option import Option


@dataclass(frozen=True)
class ServerSettings:
    """The options of a server, beside its models."""

    host: Annotated[str, Option("The address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Option("The port; 0 takes a free one.", minimum=0, maximum=65535)] = 8000
    api_key: Annotated[
        str | None, Option("Answer only clients that send this key.", variable="HEED_API_KEY")
    ] = None
    insecure: Annotated[bool, Option("Serve other hosts without a key.", ("--insecure",))] = False
    max_queue: Annotated[int, Option("Requests that may wait; further ones get 429.", minimum=1)] = 64
    max_batch: Annotated[
        int, Option("Most texts of a model generated at once, and in one request.", minimum=1)
    ] = 64
    ctx: Annotated[int | None, Option("Limit prompt and answer together to N tokens.", minimum=2)] = None
    max_tokens: Annotated[int | None, Option("Tokens that one answer may have.", minimum=1)] = None
    request_timeout: Annotated[float, Option("Seconds for one request.", minimum=0.1)] = 600.0
    drain_timeout: Annotated[float, Option("Seconds to finish running answers at the end.", minimum=0)] = 30.0
    strict_length: Annotated[
        bool,
        Option("Refuse requests for more tokens than fit, instead of cutting answers.", ("--strict-length",)),
    ] = False
    chat_template: Annotated[str | None, Option("A Jinja file to use as every model's chat template.")] = None

    @property
    def local(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    def check_access(self) -> None:
        """Raise InputError for a key that is empty, and for a server that others reach without one."""
        if self.api_key == "":
            raise InputError("the key is empty", hint="give one, or leave it out")
        if not self.local and self.api_key is None and not self.insecure:
            raise InputError(
                f"{self.host} can be reached by others",
                hint="give --api-key, or --insecure to serve everyone",
            )
