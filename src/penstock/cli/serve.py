"""`penstock serve`: the hub over WebSocket and HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.session import Session, command


def register(app: typer.Typer, panel: str) -> None:
    command(
        app,
        "serve",
        panel=panel,
        examples=(
            "penstock serve                               # http://127.0.0.1:8400",
            "penstock serve --port 8401                   # a second instance, same file",
            "penstock serve --host 0.0.0.0 --tokens-file tokens.toml",
        ),
    )(serve)


def serve(
    session: Session,
    host: Annotated[
        str | None,
        typer.Option(
            help="The address to listen on; anything but loopback needs tokens.",
            show_default="127.0.0.1",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="The port; 0 takes a free one.", show_default="8400", min=0, max=65_535),
    ] = None,
    tokens_file: Annotated[
        str | None,
        typer.Option(help="API keys and their rights, made with 'penstock tokens'."),
    ] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option(help="A web page that may connect: https://app.example.com. Repeatable."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="What this instance is called.", show_default="host:pid"),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Listen beyond loopback without tokens."),
    ] = False,
) -> None:
    """Serve topics over WebSocket and HTTP, until Ctrl-C or SIGTERM.

    Any number of instances can share one database; clients that lose one resume on another.
    """
    with session.connect(
        shows_warnings=True,
        bind_host=host,
        bind_port=port,
        tokens_file=tokens_file,
        origins=tuple(origin) if origin else None,
        name=name,
    ) as hub:
        # Imported here: the other commands start faster without it.
        from penstock.server.serve import serve as run

        run(hub, insecure=insecure, on_ready=lambda address: _tell(session, hub.url, address))


def _tell(session: Session, url: str, address: str) -> None:
    if session.is_json:
        typer.echo(f'{{"address": "{address}"}}')
        return
    websocket = address.replace("http", "ws", 1)
    typer.echo(f"penstock serves {url}\n")
    typer.echo(f"  page       {address}/")
    typer.echo(f"  websocket  {websocket}/ws")
    typer.echo(f"  http       {address}/v1/topics   (reference: {address}/docs)")
    typer.echo(f"  metrics    {address}/metrics\n")
    typer.echo("Ctrl-C stops it.")
