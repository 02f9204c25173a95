"""`heed serve`: serve models over HTTP for OpenAI's clients."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.commands.generate import Device, Dtype
from heedful.commands.text_arguments import read_file

if TYPE_CHECKING:
    from heedful.serve.served_model import ServedModel


def serve_command(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL", help="Folders, .gguf files or names of models.")
    ],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8000,
    api_key: Annotated[
        str | None, typer.Option(envvar="HEED_API_KEY", help="Answer only clients that send this key.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Serve other hosts without a key.")] = False,
    max_queue: Annotated[int, typer.Option(min=1, help="Requests that may wait; further ones get 429.")] = 64,
    max_batch: Annotated[
        int, typer.Option(min=1, help="Most texts of a model generated at once, and in one request.")
    ] = 64,
    ctx: Annotated[
        int | None, typer.Option(min=2, help="Limit prompt and answer together to N tokens.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens that one answer may have.")] = None,
    request_timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one request.")] = 600.0,
    drain_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds to finish running answers at the end.")
    ] = 30.0,
    strict_length: Annotated[
        bool,
        typer.Option(
            "--strict-length", help="Refuse requests for more tokens than fit, instead of cutting answers."
        ),
    ] = False,
    chat_template: Annotated[
        Path | None, typer.Option(help="A Jinja file to use as every model's chat template.")
    ] = None,
    device: Device = "cpu",
    dtype: Dtype = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log a line for each request.")] = False,
) -> None:
    """Serve completions, chat and embeddings for OpenAI's clients. SIGTERM or Ctrl-C ends it.

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
    local = host == "localhost" or host == "::1" or host.startswith("127.")
    if api_key == "":
        raise InputError("the key is empty", hint="give one, or leave it out")
    if not local and api_key is None and not insecure:
        raise InputError(
            f"{host} can be reached by others", hint="give --api-key, or --insecure to serve everyone"
        )
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, stream=sys.stderr, format="%(message)s"
    )
    template = None if chat_template is None else read_file(chat_template)
    with bind_socket(port, host) as sock:
        served = [load_served_model(name, device, dtype, ctx, template, max_batch) for name in models]
        if len({one.id for one in served}) < len(served):
            raise InputError(
                f"two models have the same name: {', '.join(one.id for one in served)}", hint="rename one"
            )
        rules = AccessRules((*LOOPBACK_HOSTS, host) if local else None, api_key)
        app, server = create_openai_app(
            served,
            queue=max_queue,
            limits=Limits(max_batch, request_timeout, strict_length, max_tokens),
            rules=rules,
        )
        for one in served:
            print(announcement(one), file=sys.stderr)
        address = f"[{host}]" if ":" in host else host
        print(f"http://{address}:{sock.getsockname()[1]}/v1", flush=True)
        run_until_signal(app, server, sock, patience=drain_timeout)


def load_served_model(
    name: str, device: str, dtype: str | None, ctx: int | None, template: str | None, max_rows: int
) -> ServedModel:
    """Load a model under the name that clients use: a folder's own name, or the name as given."""
    from heedful.commands.generate import load_model
    from heedful.serve.served_model import make_served_model

    path = Path(name).expanduser()
    id = path.resolve().name.removesuffix(".gguf") if path.exists() else name
    return make_served_model(
        id, load_model(name, device, dtype), ctx=ctx, template=template, max_rows=max_rows
    )


def announcement(one: ServedModel) -> str:
    """Return one line about what a model can do."""
    line = f"{one.id}: {one.kind}, {one.context:,} tokens, {' '.join(one.can) or 'no endpoint'}"
    if one.batch is not None and one.chat == "plain":
        line += "; no chat template: a conversation is read as plain lines of “role: text”"
    if one.batch is not None and one.chat == "last message":
        line += "; only the last message of a conversation is read"
    return line
