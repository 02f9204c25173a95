"""`heed serve`: models over HTTP for OpenAI's clients. `heed studio`: models in the browser."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import threading
import webbrowser
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from heedful.cli.commands import command_words
from heedful.cli.models import Device, Dtype, Processes, check_gpus, load_model, split_processes
from heedful.cli.terminal import read_file
from heedful.core.checks import Argument, Option
from heedful.core.errors import InputError
from heedful.core.processes import is_first, launch

if TYPE_CHECKING:
    from heedful.serve.openai_server import ServedModel


Port = Annotated[int, Option("Listen on this port; 0 takes a free one.", minimum=0, maximum=65535)]


@dataclass(frozen=True)
class ServerSettings:
    """The options of a server, besides its models."""

    host: Annotated[str, Option("Listen on this address.")] = "127.0.0.1"
    port: Port = 8000
    api_key: Annotated[
        str | None, Option("Answer only clients that send this key.", variable="HEED_API_KEY")
    ] = None
    insecure: Annotated[bool, Option("Serve other hosts without a key.")] = False
    max_queue: Annotated[int, Option("Let at most N requests wait; further ones get 429.", minimum=1)] = 64
    max_batch: Annotated[
        int, Option("Generate at most N texts of a model at once, and in one request.", minimum=1)
    ] = 64
    ctx: Annotated[int | None, Option("Limit prompt and answer together to N tokens.", minimum=2)] = None
    max_tokens: Annotated[int | None, Option("Limit an answer to N tokens.", minimum=1)] = None
    request_timeout: Annotated[float, Option("End a request after this many seconds.", minimum=0.1)] = 600.0
    drain_timeout: Annotated[
        float, Option("Give running answers this many seconds when the server ends.", minimum=0)
    ] = 30.0
    strict_length: Annotated[
        bool, Option("Refuse requests for more tokens than fit, instead of cutting answers.")
    ] = False
    chat_template: Annotated[str | None, Option("Use this Jinja file as every model's chat template.")] = None

    @property
    def local(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    def check_access(self) -> None:
        """Raise InputError for a key that is empty, and for a server that others reach without one."""
        if self.api_key == "":
            raise InputError("the key is empty", hint="give a key, or leave the option out")
        if not self.local and self.api_key is None and not self.insecure:
            raise InputError(
                f"{self.host} can be reached from other machines",
                hint="give --api-key, or --insecure to serve everyone",
            )


def serve_command(
    context: typer.Context,
    models: Annotated[list[str], Argument("Folders, .gguf files or names of models.", metavar="MODEL")],
    settings: ServerSettings,
    device: Device = "cpu",
    dtype: Dtype = None,
    nproc: Processes = 1,
    verbose: Annotated[bool, Option("Log a line for each request.", ("--verbose", "-v"))] = False,
) -> None:
    """Serve text generation, chat, embeddings and tasks over HTTP. SIGTERM or Ctrl-C ends it.

    Examples:
      heed serve smollm2-135m-instruct
      heed serve ./my-classifier all-minilm-l6-v2 --port 8080
      HEED_API_KEY=secret heed serve ./my-model --host 0.0.0.0
      heed serve ./large-model --nproc 4 --device cuda
    """
    from heedful.serve.guard import LOOPBACK_HOSTS, AccessRules
    from heedful.serve.http_connection import bind_socket
    from heedful.serve.openai_app import Limits, create_openai_app, run_until_signal

    settings.check_access()
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, stream=sys.stderr, format="%(message)s"
    )
    template = None if settings.chat_template is None else read_file(Path(settings.chat_template))
    limits = Limits(settings.max_batch, settings.request_timeout, settings.strict_length, settings.max_tokens)
    if nproc > 1 and "RANK" not in os.environ:
        check_gpus(nproc, device)
        raise typer.Exit(launch(nproc, ["serve", *command_words(context)], alike=True))
    host = settings.host
    with ExitStack() as stack:
        mesh = stack.enter_context(split_processes(nproc, device))
        sock = stack.enter_context(bind_socket(settings.port, host)) if is_first() else None
        served = [load_served_model(name, device, dtype, template, settings, mesh) for name in models]
        if len({one.id for one in served}) < len(served):
            raise InputError(
                f"two models have the same name: {', '.join(one.id for one in served)}", hint="rename one"
            )
        if mesh is not None and not stack.enter_context(lead_processes(served)):
            return
        assert sock is not None
        rules = AccessRules((*LOOPBACK_HOSTS, host) if settings.local else None, settings.api_key)
        app, server = create_openai_app(served, queue=settings.max_queue, limits=limits, rules=rules)
        for one in served:
            print(announcement(one), file=sys.stderr)
        address = f"[{host}]" if ":" in host else host
        print(f"http://{address}:{sock.getsockname()[1]}/v1", flush=True)
        run_until_signal(app, server, sock, patience=settings.drain_timeout)


def lead_processes(served: Sequence[ServedModel]) -> AbstractContextManager[bool]:
    """Return a context that yields True in the process that serves; the others follow it to its end."""
    from heedful.decode.slots import follow_first

    for one in served:
        if one.batch is None:
            raise InputError(
                f"{one.id} generates no text, and --nproc only speeds up generation", hint="leave --nproc out"
            )
    if not is_first():  # the first one ends when a signal comes, and then these do
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    return follow_first([cast(Any, one.batch).slots for one in served])


def load_served_model(
    name: str, device: str, dtype: str | None, template: str | None, settings: ServerSettings, mesh: Any
) -> ServedModel:
    """Load a model under the name that clients use: a folder's own name, or the name as given."""
    from heedful.serve.openai_server import make_served_model

    path = Path(name).expanduser()
    id = path.resolve().name.removesuffix(".gguf") if path.exists() else name
    loaded = load_model(name, device, dtype, mesh)
    return make_served_model(id, loaded, ctx=settings.ctx, template=template, max_rows=settings.max_batch)


def announcement(one: ServedModel) -> str:
    """Return one line about what a model can do."""
    line = f"{one.id}: {one.model.kind}, {one.context:,} tokens, {' '.join(one.can) or 'no endpoint'}"
    if one.batch is not None and one.chat == "plain":
        line += "; no chat template: a conversation is read as plain lines of “role: text”"
    if one.batch is not None and one.chat == "last message":
        line += "; only the last message of a conversation is read"
    return line


# `heed studio`: look inside models in the browser.


def studio_command(
    models: Annotated[
        list[str] | None, Argument("Folders, .gguf files, word vectors or names of models.", metavar="MODEL")
    ] = None,
    port: Port = 0,
    no_browser: Annotated[bool, Option("Print the address and open no browser.")] = False,
    folder: Annotated[Path, Option("Offer the models in this folder as well.", ("--models",))] = Path(
        "models"
    ),
    runs: Annotated[Path, Option("Show the training runs in this folder.")] = Path("runs"),
    dictionary: Annotated[
        Path | None, Option("Show the features of this sparse dictionary: a file, or a folder of SAELens.")
    ] = None,
    texts: Annotated[
        Path | None,
        Option("Look for these features in the lines of this file. [default: the example sentences]"),
    ] = None,
) -> None:
    """Show tokens, attention, arithmetic, predictions, layers, states and training in the browser.

    Only this machine can reach the studio, and only with the address that it prints, which ends in a random
    token. It uses no network. Ctrl-C ends it.

    Examples:
      heed studio
      heed studio ./my-model runs/gpt/checkpoints/step-001000 --port 8080
      heed studio vectors.vec --no-browser
      heed studio ./my-model --dictionary sae.safetensors --texts corpus.txt
    """
    from heedful.serve.http_connection import LOOPBACK, bind_socket
    from heedful.weights.hub import resolve

    for name in models or ():
        resolve(name)  # an unknown name is an error before anything starts
    import uvicorn

    from heedful.classroom.studio.routes.figures import prepare_first_picture
    from heedful.classroom.studio.studio_app import create_studio_app
    from heedful.serve.http_connection import http_config

    sock = bind_socket(port)
    token = secrets.token_urlsafe(24)
    app = create_studio_app(
        models or (), models_folder=folder, runs_folder=runs, token=token, dictionary=dictionary, texts=texts
    )
    server, studio = uvicorn.Server(http_config(app, shutdown_seconds=2)), app.state.studio
    studio.stopping = lambda: server.should_exit
    threading.Thread(target=prepare_first_picture, args=(studio,), daemon=True).start()
    url = f"http://{LOOPBACK}:{sock.getsockname()[1]}/?token={token}"
    print(url, flush=True)
    print("Ctrl-C ends it.", file=sys.stderr)
    if not no_browser:
        webbrowser.open(url)
    try:
        server.run(sockets=[sock])
    except KeyboardInterrupt:  # uvicorn hands Ctrl-C on when it is done
        pass
    finally:
        studio.clients.stop()
        studio.registry.close()
        sock.close()
