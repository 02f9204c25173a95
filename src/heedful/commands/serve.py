"""`heed serve`: models behind the HTTP contract of OpenAI's clients."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.commands.generate import Device, Dtype

if TYPE_CHECKING:
    from heedful.serve.served_model import ServedModel


def serve(
    models: Annotated[list[str], typer.Argument(metavar="MODEL…", help="Folders, .gguf files, names.")],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes one that is free.")] = 8000,
    api_key: Annotated[
        str | None, typer.Option(envvar="HEED_API_KEY", help="Answer only those who send this key.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Other hosts without a key.")] = False,
    max_queue: Annotated[int, typer.Option(min=1, help="Requests that may wait; more get 429.")] = 64,
    max_batch: Annotated[int, typer.Option(min=1, help="Texts that one request may ask for.")] = 64,
    ctx: Annotated[int | None, typer.Option(min=2, help="At most so many tokens, prompt and answer.")] = None,
    request_timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one request.")] = 600.0,
    drain_timeout: Annotated[float, typer.Option(min=0, help="Seconds for the last answers.")] = 30.0,
    strict_length: Annotated[
        bool, typer.Option("--strict-length", help="Refuse more tokens than fit, rather than write fewer.")
    ] = False,
    chat_template: Annotated[
        Path | None, typer.Option(help="A Jinja file, for conversations with any of the models.")
    ] = None,
    device: Device = "cpu",
    dtype: Dtype = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="A line for each request.")] = False,
) -> None:
    """Answer OpenAI's clients: completions, conversations, embeddings. SIGTERM or Ctrl-C ends it.

    Examples:

      heed serve smollm2-135m-instruct

      heed serve ./my-model all-minilm-l6-v2 --port 8080

      HEED_API_KEY=secret heed serve ./my-model --host 0.0.0.0
    """
    from heedful.errors import InputError, MissingPackage

    try:
        from heedful.serve.draining import run_until_signal
        from heedful.serve.openai_app import Limits, create_openai_app
        from heedful.server.guard import LOOPBACK_HOSTS, AccessRules
        from heedful.server.sockets import bind_socket
    except ImportError as error:
        raise MissingPackage(f"the server needs {error.name}", hint="pip install 'heedful[serve]'") from None
    own = host == "localhost" or host == "::1" or host.startswith("127.")
    if api_key == "":
        raise InputError("the key is empty", hint="give one, or leave it out")
    if not own and api_key is None and not insecure:
        raise InputError(
            f"{host} can be reached by others", hint="give --api-key, or --insecure to serve everyone"
        )
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, stream=sys.stderr, format="%(message)s"
    )
    template = None if chat_template is None else read_template(chat_template)
    with bind_socket(port, host) as sock:
        ready = [loaded(name, device, dtype, ctx, template) for name in models]
        if len({one.id for one in ready}) < len(ready):
            raise InputError(
                f"two models are called alike: {', '.join(one.id for one in ready)}", hint="rename one"
            )
        rules = AccessRules((*LOOPBACK_HOSTS, host) if own else None, api_key)
        app, server = create_openai_app(
            ready, queue=max_queue, limits=Limits(max_batch, request_timeout, strict_length), rules=rules
        )
        for one in ready:
            print(announcement(one), file=sys.stderr)
        shown = f"[{host}]" if ":" in host else host
        print(f"http://{shown}:{sock.getsockname()[1]}/v1", flush=True)
        run_until_signal(app, server, sock, patience=drain_timeout)


def read_template(path: Path) -> str:
    from heedful.errors import NotFound

    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise NotFound(f"the template {path} cannot be read ({error})", hint="give a text file") from None


def loaded(name: str, device: str, dtype: str | None, ctx: int | None, template: str | None) -> ServedModel:
    """A model, under the name that clients ask for: a folder's own, else the name as given."""
    from heedful.commands.generate import load_model
    from heedful.serve.served_model import make_served_model

    path = Path(name).expanduser()
    id = path.resolve().name.removesuffix(".gguf") if path.exists() else name
    return make_served_model(id, load_model(name, device, dtype), ctx=ctx, template=template)


def announcement(one: ServedModel) -> str:
    """What a model can be asked for, in one line."""
    line = f"{one.id}: {one.kind}, {one.context:,} tokens, {' '.join(one.can) or 'nothing to ask for'}"
    if one.stepper is not None and one.chat == "plain":
        line += "; no chat template: a conversation is read as plain lines of “role: text”"
    if one.stepper is not None and one.chat == "last message":
        line += "; of a conversation the last message is read"
    return line
