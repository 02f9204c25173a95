"""`heed serve`: serve models over HTTP for OpenAI's clients."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.cli.model_arguments import Device, Dtype, load_model
from heedful.cli.options import options_from
from heedful.cli.text_arguments import read_file
from heedful.core.errors import InputError, MissingPackage
from heedful.serve.openai_server import ServerSettings

if TYPE_CHECKING:
    from heedful.serve.served_model import ServedModel


@options_from(ServerSettings)
def serve_command(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL", help="Folders, .gguf files or names of models.")
    ],
    settings: ServerSettings,
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
    try:
        from heedful.serve.guard import LOOPBACK_HOSTS, AccessRules, bind_socket
        from heedful.serve.openai_app import Limits, create_openai_app
        from heedful.serve.openai_server import run_until_signal
    except ImportError as error:
        raise MissingPackage(f"the server needs {error.name}", hint="pip install 'heedful[serve]'") from None
    settings.check_access()
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, stream=sys.stderr, format="%(message)s"
    )
    template = None if settings.chat_template is None else read_file(Path(settings.chat_template))
    limits = Limits(settings.max_batch, settings.request_timeout, settings.strict_length, settings.max_tokens)
    host = settings.host
    with bind_socket(settings.port, host) as sock:
        served = [load_served_model(name, device, dtype, template, settings) for name in models]
        if len({one.id for one in served}) < len(served):
            raise InputError(
                f"two models have the same name: {', '.join(one.id for one in served)}", hint="rename one"
            )
        rules = AccessRules((*LOOPBACK_HOSTS, host) if settings.local else None, settings.api_key)
        app, server = create_openai_app(served, queue=settings.max_queue, limits=limits, rules=rules)
        for one in served:
            print(announcement(one), file=sys.stderr)
        address = f"[{host}]" if ":" in host else host
        print(f"http://{address}:{sock.getsockname()[1]}/v1", flush=True)
        run_until_signal(app, server, sock, patience=settings.drain_timeout)


def load_served_model(
    name: str, device: str, dtype: str | None, template: str | None, settings: ServerSettings
) -> ServedModel:
    """Load a model under the name that clients use: a folder's own name, or the name as given."""
    from heedful.serve.served_model import make_served_model

    path = Path(name).expanduser()
    id = path.resolve().name.removesuffix(".gguf") if path.exists() else name
    loaded = load_model(name, device, dtype)
    return make_served_model(id, loaded, ctx=settings.ctx, template=template, max_rows=settings.max_batch)


def announcement(one: ServedModel) -> str:
    """Return one line about what a model can do."""
    line = f"{one.id}: {one.model.kind}, {one.context:,} tokens, {' '.join(one.can) or 'no endpoint'}"
    if one.batch is not None and one.chat == "plain":
        line += "; no chat template: a conversation is read as plain lines of “role: text”"
    if one.batch is not None and one.chat == "last message":
        line += "; only the last message of a conversation is read"
    return line
