"""Which server and token a command uses, and the file of sign-ins."""

import stat
from pathlib import Path

import pytest

from chatd.cli.target import (
    DEFAULT_URL,
    Profiles,
    SavedSignIn,
    Target,
    TargetFlags,
    check_name,
    choose_server,
    profiles_path,
)
from chatd.settings.schema import SettingsError

WORK = SavedSignIn(url="https://chat.example.com", token="token-of-work", username="ada")
HOME_SERVER = SavedSignIn(url="http://127.0.0.1:9000", token="token-of-home")
USER = 1000
NO_FLAGS = TargetFlags()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """With an administrator's token in the data directory, and two sign-ins."""
    data = tmp_path / ".local" / "share" / "chatd"
    data.mkdir(parents=True)
    (data / "admin-token").write_text("token-of-admin\n")
    profiles = Profiles(tmp_path / ".config" / "chatd" / "profiles.toml")
    profiles.save("home", HOME_SERVER)
    profiles.save("work", WORK)
    (tmp_path / "token").write_text("token-of-file\n")
    return tmp_path


def choose(home: Path, flags: TargetFlags = NO_FLAGS, **env: str) -> Target:
    """`env` is without HOME."""
    return choose_server(flags, {"HOME": str(home), **env}, uid=USER)


def chosen(target: Target) -> tuple[str, str]:
    return target.server.url, target.server.token


# Which one


def test_the_last_sign_in_counts(home: Path) -> None:
    target = choose(home)
    assert (*chosen(target), target.profile) == (WORK.url, WORK.token, "work")


def test_flags_count_before_the_environment_and_that_before_the_profiles(home: Path) -> None:
    by_profile = TargetFlags(profile="home")
    by_url = TargetFlags(url="http://127.0.0.1:5000/api/v1", token_file=home / "token")
    env = {"CHATD_URL": "http://127.0.0.1:6000", "CHATD_TOKEN": "token-of-env"}
    assert chosen(choose(home, by_url, **env)) == ("http://127.0.0.1:5000", "token-of-file")
    assert chosen(choose(home, by_profile, **env)) == (HOME_SERVER.url, HOME_SERVER.token)
    assert chosen(choose(home, NO_FLAGS, **env)) == ("http://127.0.0.1:6000", "token-of-env")
    assert chosen(choose(home, CHATD_PROFILE="home")) == (HOME_SERVER.url, HOME_SERVER.token)


def test_a_url_that_was_signed_in_at_uses_that_token(home: Path) -> None:
    target = choose(home, TargetFlags(url=f"{WORK.url}/"))
    assert (*chosen(target), target.profile) == (WORK.url, WORK.token, "work")


def test_a_token_without_a_url_is_for_the_local_server(home: Path) -> None:
    """It was not given for the server of a profile."""
    assert chosen(choose(home, CHATD_TOKEN=" token-of-env ")) == (DEFAULT_URL, "token-of-env")
    token_file = str(home / "token")
    assert chosen(choose(home, CHATD_TOKEN_FILE=token_file)) == (DEFAULT_URL, "token-of-file")


def test_the_data_directory_names_the_local_server(home: Path, tmp_path: Path) -> None:
    data = tmp_path / "other"
    data.mkdir()
    (data / "admin-token").write_text("token-of-other")
    found = choose(home, TargetFlags(data_dir=data), CHATD_PROFILE="work")
    assert chosen(found) == (DEFAULT_URL, "token-of-other")


def test_the_variable_of_servers_has_the_administrators_token(home: Path, tmp_path: Path) -> None:
    """As in a container, where no file has it. It goes to the server of this host only."""
    empty = {"CHATD_DATA_DIR": str(tmp_path / "none"), "HOME": str(tmp_path / "no-home")}
    here = choose_server(NO_FLAGS, {**empty, "CHATD_ADMIN_TOKEN": "token-of-variable"}, uid=USER)
    assert chosen(here) == (DEFAULT_URL, "token-of-variable")
    assert chosen(choose(home, CHATD_ADMIN_TOKEN="token-of-variable")) == (WORK.url, WORK.token)
    elsewhere = TargetFlags(url="https://other.example.com")
    with pytest.raises(SettingsError, match="no token"):
        choose(home, elsewhere, CHATD_ADMIN_TOKEN="token-of-variable")


def test_the_users_settings_name_the_data_directory(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "admin-token").write_text("token-of-settings")
    settings = tmp_path / ".config" / "chatd" / "chatd.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(f'data_dir = "{data}"\n')
    assert chosen(choose(tmp_path)) == (DEFAULT_URL, "token-of-settings")
    settings.write_text("data_dir = ")
    with pytest.raises(SettingsError, match="no server is known here"):
        choose(tmp_path)


def test_a_chatd_toml_of_the_current_directory_names_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be in a repository of somebody else."""
    (tmp_path / "admin-token").write_text("token-of-a-stranger")
    (tmp_path / "chatd.toml").write_text(f'data_dir = "{tmp_path}"\n')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match="no server is known here"):
        choose(tmp_path / "home")


def test_the_administrators_token_goes_to_no_other_machine(home: Path) -> None:
    local = TargetFlags(url="http://localhost:7871")
    assert chosen(choose(home, local)) == ("http://localhost:7871", "token-of-admin")
    with pytest.raises(SettingsError, match="chatd login URL"):
        choose(home, TargetFlags(url="http://elsewhere.example.com"))


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (TargetFlags(url="http://x", profile="work"), "give one of them"),
        (TargetFlags(profile="nobody"), "There are home, work: chatd login URL"),
        (TargetFlags(url="elsewhere"), "--url: 'elsewhere' must begin with http"),
        (TargetFlags(token_file=Path("/nonexistent")), "cannot read the token: /nonexistent"),
    ],
)
def test_what_cannot_be_used_is_explained(home: Path, flags: TargetFlags, text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        choose(home, flags)


def test_without_anything_it_says_how_to_begin(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="start one with chatd serve, or sign in at one"):
        choose(tmp_path)


def test_a_token_file_with_something_else_is_refused_without_showing_it(home: Path) -> None:
    (home / "token").write_text("secret text\nof several lines")
    with pytest.raises(SettingsError, match="contains no token") as refused:
        choose(home, TargetFlags(url="http://127.0.0.1", token_file=home / "token"))
    assert "secret" not in str(refused.value)


# The file


def test_only_this_account_can_read_the_file(home: Path) -> None:
    path = profiles_path({"HOME": str(home)})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    with pytest.raises(SettingsError, match=f"run chmod 600 {path}"):
        Profiles(path)


def test_what_was_saved_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "chatd" / "profiles.toml"
    odd = SavedSignIn(url='http://x/"\\', token="t", username='äda "x"\n')
    Profiles(path).save("chat.example.com-7870", odd)
    found = Profiles(path)
    assert (found.names, found.get("chat.example.com-7870")) == (["chat.example.com-7870"], odd)
    assert found.default == "chat.example.com-7870"
    found.forget("chat.example.com-7870")
    assert (Profiles(path).names, Profiles(path).default) == ([], "")


@pytest.mark.parametrize(
    "text", ["default = ", "[profiles.x]\nurl = 7", "profiles = 'secret'", "\x00", "[profiles.x]"]
)
def test_a_broken_file_says_what_to_do_and_shows_no_secret(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profiles.toml"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(SettingsError, match="remove it and sign in again") as refused:
        Profiles(path)
    assert str(path) in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("name", ["", "-x", "a b", "x" * 65, "ä", "a\nb"])
def test_other_names_of_profiles_are_refused(name: str) -> None:
    with pytest.raises(SettingsError):
        check_name(name)


def test_a_saved_token_is_not_printed() -> None:
    assert WORK.token not in f"{WORK} {WORK!r} {WORK.server!r}"
