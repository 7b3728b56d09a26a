"""Settings: file < environment < arguments; profiles; unknown names refused (T10)."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import InvalidSettings
from penstock.settings import DEFAULT_URL, FIELDS, PROFILES, load, sources


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str, name: str = "penstock.toml") -> Path:
    path = Path(name)
    path.write_text(text)
    return path


def test_without_anything_there_are_defaults() -> None:
    settings = load(environ={})

    assert (settings.url, settings.durability, settings.profile) == (DEFAULT_URL, "full", "default")
    assert settings.retention_seconds == 86_400


def test_arguments_go_before_the_environment_and_that_before_the_file() -> None:
    write("write_queue_max = 1\ncommit_group_max = 1\ntail_batch_max = 1")
    environ = {"PENSTOCK_COMMIT_GROUP_MAX": "2", "PENSTOCK_TAIL_BATCH_MAX": "2"}
    settings = load(environ=environ, tail_batch_max=3)

    found = (settings.write_queue_max, settings.commit_group_max, settings.tail_batch_max)
    assert found == (1, 2, 3)


def test_the_url_comes_from_the_argument_the_environment_or_the_file() -> None:
    write('url = "sqlite:///file.db"')

    assert load(environ={}).url == "sqlite:///file.db"
    assert load(environ={"PENSTOCK_URL": "memory:"}).url == "memory:"
    assert load("sqlite:///a.db", environ={"PENSTOCK_URL": "memory:"}).url == "sqlite:///a.db"


def test_an_argument_that_is_none_counts_as_not_given() -> None:
    assert load(environ={"PENSTOCK_NAME": "web"}, name=None).name == "web"


def test_a_file_is_named_by_an_argument_or_the_environment() -> None:
    write('name = "default"')
    write('name = "other"', "other.toml")

    assert load(environ={}).name == "default"
    assert load(environ={}, file="other.toml").name == "other"
    assert load(environ={"PENSTOCK_CONFIG": "other.toml"}).name == "other"


def test_a_named_file_that_is_not_there_is_an_error() -> None:
    with pytest.raises(InvalidSettings, match="nowhere"):
        load(environ={}, file="nowhere.toml")


def test_a_file_that_is_no_toml_is_an_error() -> None:
    write("name = ")

    with pytest.raises(InvalidSettings, match="not TOML"):
        load(environ={})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("local_delivery", "false", False),
        ("local_delivery", "1", True),
        ("poll_idle_ms", "250.5", 250.5),
        ("tail_batch_max", "7", 7),
        ("durability", "os", "os"),
    ],
)
def test_the_environment_is_read_as_the_setting_wants_it(
    name: str, text: str, value: object
) -> None:
    assert getattr(load(environ={f"PENSTOCK_{name.upper()}": text}), name) == value


@pytest.mark.parametrize("profile", [name for name in PROFILES if name != "default"])
def test_a_profile_is_a_set_of_defaults(profile: str) -> None:
    settings = load(environ={}, profile=profile)
    for name, value in PROFILES[profile].items():
        assert getattr(settings, name) == value
    assert load(environ={"PENSTOCK_PROFILE": profile}) == settings


def test_the_profiles_pull_in_opposite_directions() -> None:
    quick = load(environ={}, profile="low-latency")
    bulk = load(environ={}, profile="high-throughput")

    assert quick.poll_idle_ms < bulk.poll_idle_ms
    assert quick.conflate_interval_ms < bulk.conflate_interval_ms
    assert quick.commit_group_max < bulk.commit_group_max
    assert (quick.local_delivery, bulk.local_delivery) == (True, False)


def test_what_is_said_goes_before_the_profile_wherever_it_is_said() -> None:
    write("tail_batch_max = 7")

    assert load(environ={}, profile="high-throughput").tail_batch_max == 7


@pytest.mark.parametrize(
    ("arguments", "environ", "name"),
    [
        ({"retention_second": 5}, {}, "retention_seconds"),
        ({}, {"PENSTOCK_DURABLITY": "os"}, "durability"),
        ({"poll_idle": 5}, {}, "poll_idle_ms"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(
    arguments: dict[str, object], environ: dict[str, str], name: str
) -> None:
    with pytest.raises(InvalidSettings) as caught:
        load(environ=environ, **arguments)
    assert name in caught.value.hint


def test_an_unknown_name_in_the_file_is_refused() -> None:
    write("unheard_of_entirely = 1")

    with pytest.raises(InvalidSettings) as caught:
        load(environ={})
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("durability", "never"),
        ("profile", "fast"),
        ("write_queue_max", 0),
        ("write_queue_max", 1.5),
        ("write_queue_max", "many"),
        ("lock_timeout_seconds", -1),
        ("lock_timeout_seconds", 0),
        ("payload_bytes_max", 10**12),
        ("local_delivery", "maybe"),
        ("name", 7),
    ],
)
def test_a_bad_value_is_refused_and_named(name: str, value: object) -> None:
    with pytest.raises(InvalidSettings, match=name):
        load(environ={}, **{name: value})
    write(f"{name} = {value!r}".replace("'", '"'))
    with pytest.raises(InvalidSettings, match=name):
        load(environ={})


@pytest.mark.parametrize(
    "arguments",
    [
        {"poll_active_ms": 500},
        {"lag_critical_messages": 10},
        {"lag_critical_seconds": 1},
        {"profile": "high-throughput", "poll_idle_ms": 100},
    ],
    ids=str,
)
def test_values_that_contradict_each_other_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidSettings, match="below"):
        load(environ={}, **arguments)


def test_settings_do_not_change() -> None:
    with pytest.raises(AttributeError):
        load(environ={}).name = "other"


def test_limits_say_their_unit() -> None:
    """A number's name ends in what it counts."""
    units = ("_min", "_max", "_ms", "_seconds", "_bytes", "_messages")
    numbers = [n for n in FIELDS if isinstance(getattr(load(environ={}), n), (int, float))]

    without_unit = {"local_delivery", "bind_port"}
    assert [n for n in numbers if not n.endswith(units) and n not in without_unit] == []


def test_each_value_has_a_source() -> None:
    """The last word counts, as in what is in force."""
    write("name = 'file'\ntail_batch_max = 7\npoll_idle_ms = 900.0")
    found = sources(
        "memory:",
        environ={"PENSTOCK_NAME": "web", "PENSTOCK_PROFILE": "high-throughput"},
        poll_idle_ms=800.0,
    )

    assert set(found) == set(FIELDS)
    assert (found["url"], found["poll_idle_ms"]) == ("arguments", "arguments")
    assert (found["name"], found["profile"]) == ("environment", "environment")
    assert found["tail_batch_max"] == "file"
    assert found["commit_group_max"] == "profile high-throughput"
    assert found["write_queue_max"] == "default"


def test_several_values_in_the_environment_stand_between_commas() -> None:
    settings = load(environ={"PENSTOCK_ORIGINS": "https://a.example, https://b.example"})

    assert settings.origins == ("https://a.example", "https://b.example")
    assert load(environ={"PENSTOCK_TRUSTED_PROXIES": ""}).trusted_proxies == ()
