"""`penstock tokens`: keys are shown once, stored as hashes, and good for what was said."""

from __future__ import annotations

import subprocess
import sys

import jwt
import pytest

from penstock.clock import SystemClock
from penstock.errors import Unauthorized
from penstock.server.auth import Tokens, make_authenticator
from tests.acceptance.terminal import COMMAND, Terminal
from tests.factories import settings_for


def tokens_of(terminal: Terminal, **settings: str) -> Tokens:
    found = make_authenticator(
        settings_for("memory:", tokens_file=str(terminal.folder / "tokens.toml"), **settings),
        SystemClock(),
    )
    assert isinstance(found, Tokens)
    return found


def test_a_key_is_printed_once_and_works(terminal: Terminal) -> None:
    made = terminal.done("tokens", "create", "shop", "--publish", "orders", "-s", "canvas-*")
    (key,) = made.lines
    file = terminal.folder / "tokens.toml"
    assert file.stat().st_mode & 0o777 == 0o600
    assert key not in file.read_text()
    assert key not in made.err
    access = tokens_of(terminal).authenticate(key)
    assert (access.subject, access.publish, access.subscribe) == (
        "shop",
        ("orders",),
        ("canvas-*",),
    )
    assert key not in terminal.done("tokens", "list").out


def test_keys_are_listed_with_their_rights(terminal: Terminal) -> None:
    terminal.done("tokens", "create", "shop", "--publish", "orders", "--expires", "30d")
    terminal.done("tokens", "create", "boss", "--admin", "*")
    boss, shop = terminal.done("tokens", "list", "--json").json
    assert (boss["name"], boss["admin"], boss["expires"]) == ("boss", ["*"], None)
    assert (shop["publish"], shop["status"]) == (["orders"], "good")
    assert shop["expires"].endswith("+00:00")


def test_rights_on_mailboxes_are_given_listed_and_signed(terminal: Terminal) -> None:
    """M11: put, read, admin, each by name or glob."""
    made = terminal.done(
        *("tokens", "create", "shop", "--mailboxes-put", "user-*", "--mailboxes-admin", "user-*")
    )
    access = tokens_of(terminal).authenticate(made.lines[0])
    assert (access.mailboxes_put, access.mailboxes_admin) == (("user-*",), ("user-*",))
    assert access.mailboxes_read == ()
    assert "put user-*; admin user-*" in terminal.done("tokens", "list").out
    signed = terminal.done(
        *("tokens", "jwt", "ann", "--mailboxes-read", "user-ann"),
        *("--key", terminal.folder / "k", "--new-key", "--json"),
    )
    reader = tokens_of(terminal, jwt_key_file=str(terminal.folder / "k"))
    assert reader.authenticate(signed.json["token"]).mailboxes_read == ("user-ann",)


def test_a_revoked_key_is_refused_and_its_name_is_free(terminal: Terminal) -> None:
    key = terminal.done("tokens", "create", "shop", "-p", "orders", "--json").json["token"]
    assert terminal.done("tokens", "revoke", "shop", "--json").json["was_key"]
    with pytest.raises(Unauthorized):
        tokens_of(terminal).authenticate(key)
    again = terminal.done("tokens", "create", "shop", "-p", "orders", "--json").json["token"]
    assert tokens_of(terminal).authenticate(again).subject == "shop"


def test_a_signed_token_works_until_its_subject_is_revoked(terminal: Terminal) -> None:
    made = terminal.done(
        "tokens", "jwt", "ann", "-s", "notes", "--key", terminal.folder / "k", "--new-key", "--json"
    )
    token = made.json["token"]
    assert (terminal.folder / "k").stat().st_mode & 0o777 == 0o600
    assert jwt.decode(token, options={"verify_signature": False})["aud"] == "penstock"
    terminal.done("tokens", "create", "other", "-p", "x")
    key_file = str(terminal.folder / "k")
    assert tokens_of(terminal, jwt_key_file=key_file).authenticate(token).subscribe == ("notes",)
    assert not terminal.done("tokens", "revoke", "ann", "--json").json["was_key"]
    with pytest.raises(Unauthorized):
        tokens_of(terminal, jwt_key_file=key_file).authenticate(token)


def test_a_new_key_does_not_replace_one_that_is_there(terminal: Terminal) -> None:
    arguments = ("tokens", "jwt", "ann", "-s", "a", "--key", terminal.folder / "k", "--new-key")
    terminal.done(*arguments)
    before = (terminal.folder / "k").read_bytes()
    terminal.done(*arguments)
    assert (terminal.folder / "k").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create", "shop"), "would allow nothing"),
        (("create", "shop", "-p", "a\nb"), "--publish"),
        (("create", "", "-p", "a"), "not valid"),
        (("list",), "cannot be read"),
        (("jwt", "ann", "-s", "a"), "no key to sign with"),
        (("jwt", "ann", "-s", "a", "--key", "missing"), "cannot be read"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(
    terminal: Terminal, arguments: tuple[str, ...], said: str
) -> None:
    failed = terminal.run("tokens", *arguments)
    assert failed.code == 1
    assert failed.err.startswith("error: ")
    assert said in failed.err
    assert list(terminal.folder.iterdir()) == []


def test_a_name_that_is_taken_is_refused(terminal: Terminal) -> None:
    terminal.done("tokens", "create", "shop", "-p", "orders")
    before = (terminal.folder / "tokens.toml").read_bytes()
    assert terminal.run("tokens", "create", "shop", "-p", "other").code == 1
    assert (terminal.folder / "tokens.toml").read_bytes() == before


def test_keys_made_at_the_same_time_are_all_there(terminal: Terminal) -> None:
    assert COMMAND[0] == sys.executable
    running = [
        subprocess.Popen(
            [*COMMAND, "tokens", "create", f"t{n}", "-p", "a"],
            cwd=terminal.folder,
            env=terminal.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for n in range(6)
    ]
    assert [process.wait(60) for process in running] == [0] * 6
    names = {line["name"] for line in terminal.done("tokens", "list", "--json").json}
    assert names == {f"t{n}" for n in range(6)}


def test_beyond_loopback_the_server_does_not_start_without_tokens(terminal: Terminal) -> None:
    refused = terminal.run("serve", "--host", "0.0.0.0", "--port", "0")
    assert refused.code == 1
    assert "Without tokens" in refused.err
    assert "--insecure" in refused.err
