"""Settings: precedence, derived names, and errors that name the key and its source."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from chatd.services.workspaces.workspaces import check_workspace_settings
from chatd.settings.config_file import default_data_dir, read_config
from chatd.settings.keys import setting_keys
from chatd.settings.loader import ConfigFile, load_settings
from chatd.settings.schema import (
    AuditSettings,
    BackupSettings,
    ChatSettings,
    DatabaseSettings,
    DemoSettings,
    FileSettings,
    HookSettings,
    LimitSettings,
    LogSettings,
    McpServerEntry,
    McpSettings,
    ModelEntry,
    OidcSettings,
    OtelSettings,
    ProviderEntry,
    RepositorySettings,
    ServerSettings,
    Settings,
    SettingsError,
    SignInSettings,
    SlackSettings,
    WebhookSettings,
    WorkerSettings,
    WorkspaceSettings,
    redact_url,
)
from chatd.settings.shown import shared_digests, shown_settings
from tools.docs import SETTINGS

HOME = Path("/home/ada")
DATA = HOME / "data"
FILE = Path("/etc/chatd/chatd.toml")
POOL_SIZE = "expected a whole number from 2 to 500"
TIME = "expected a number above 0 and up to 3600"
SEEDS = "spec: seed: kind: expected one of empty, git, directory, demo"
NINE = "spec: limits: processes: expected a whole number, got a text"


def loaded(
    toml: str | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, str | None] | None = None,
    data_dir: Path | None = DATA,
) -> Settings:
    file = None if toml is None else ConfigFile(path=FILE, text=toml)
    return load_settings(file, {"HOME": str(HOME), **(env or {})}, flags or {}, data_dir=data_dir)


def refusal(
    toml: str | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, str | None] | None = None,
) -> str:
    with pytest.raises(SettingsError) as caught:
        loaded(toml, env, flags)
    return caught.value.message


def test_without_any_source_the_defaults_apply() -> None:
    assert loaded() == Settings(data_dir=DATA, database=DatabaseSettings(), log=LogSettings())


def test_every_key_can_be_set_in_a_file() -> None:
    toml = """
        data_dir = "/srv/chatd"
        [database]
        url = "postgresql://ada@db/chatd"
        pool_size = 3
        statement_timeout_s = 4
        lock_timeout_s = 0.5
        [log]
        level = "debug"
        format = "json"
    """
    assert loaded(toml) == Settings(
        data_dir=Path("/srv/chatd"),
        database=DatabaseSettings(
            url="postgresql://ada@db/chatd",
            pool_size=3,
            statement_timeout_s=4.0,
            lock_timeout_s=0.5,
        ),
        log=LogSettings(level="debug", format="json"),
    )


def test_every_key_can_be_set_in_the_environment() -> None:
    env = {
        "CHATD_DATA_DIR": "/srv/chatd",
        "CHATD_DATABASE_URL": "postgres://db/chatd",
        "CHATD_DATABASE_POOL_SIZE": "3",
        "CHATD_DATABASE_STATEMENT_TIMEOUT_S": "4",
        "CHATD_DATABASE_SLOW_STATEMENT_S": "0.25",
        "CHATD_DATABASE_LOCK_TIMEOUT_S": "0.5",
        "CHATD_DATABASE_START_WAIT_S": "7",
        "CHATD_LOG_LEVEL": "error",
        "CHATD_LOG_FORMAT": "json",
        "CHATD_SERVER_HOST": "::1",
        "CHATD_SERVER_PORT": "0",
        "CHATD_SERVER_PROCESSES": "4",
        "CHATD_SERVER_URL": "https://chat.example.com",
        "CHATD_SERVER_ALLOWED_HOSTS": '["chat.local"]',
        "CHATD_SERVER_ALLOWED_ORIGINS": '["https://app.example.com"]',
        "CHATD_SERVER_FRAME_ORIGINS": '["https://app.example.com"]',
        "CHATD_SERVER_TRUSTED_PROXIES": '["10.0.0.0/8"]',
        "CHATD_SERVER_OPEN_BROWSER": "false",
        "CHATD_SERVER_METRICS_TOKEN": "a-token-of-prometheus",
        "CHATD_SERVER_JOIN": "false",
        "CHATD_SERVER_NOTIFICATIONS": "nats://nats:4222",
        "CHATD_SERVER_PEER_ADDRESS": "10.0.0.2:7871",
        "CHATD_SERVER_PREVIEW_HOST": "preview.example.com",
        "CHATD_SIGN_IN_PASSWORDS": "false",
        "CHATD_HOOKS_PRIVATE_ADDRESSES": "true",
        "CHATD_REPOSITORIES_PRIVATE_ADDRESSES": "true",
        "CHATD_SLACK_API_URL": "http://127.0.0.1:7/api",
        "CHATD_SLACK_PRIVATE_ADDRESSES": "true",
        "CHATD_OIDC_ISSUER": "https://login.example.com",
        "CHATD_OIDC_CLIENT_ID": "chatd",
        "CHATD_OIDC_CLIENT_SECRET": "hush",
        "CHATD_OIDC_NAME": "Example",
        "CHATD_OIDC_SCOPES": "openid email",
        "CHATD_OIDC_ALLOWED_DOMAINS": '["example.com"]',
        "CHATD_OIDC_AUTO_CREATE": "true",
        "CHATD_OIDC_LINK_BY_EMAIL": "true",
        "CHATD_OIDC_TRUST_EMAIL": "true",
        "CHATD_OIDC_GROUPS_CLAIM": "groups",
        "CHATD_OIDC_GROUPS": '["crew"]',
        "CHATD_OIDC_ADMIN_GROUPS": '["ops"]',
        "CHATD_OIDC_VIEWER_GROUPS": '["audit"]',
        "CHATD_WORKER_SLOTS": "2",
        "CHATD_WORKER_CHILD_SLOTS": "3",
        "CHATD_WORKER_DRAIN_S": "4",
        "CHATD_LIMITS_RUNNING": "5",
        "CHATD_LIMITS_RUNNING_PER_USER": "6",
        "CHATD_LIMITS_RUNNING_SUBAGENTS": "7",
        "CHATD_LIMITS_RUNNING_SUBAGENTS_PER_USER": "8",
        "CHATD_LIMITS_RUNNING_SUBAGENTS_PER_CHAT": "25",
        "CHATD_LIMITS_SUBAGENTS_PER_CHAT": "26",
        "CHATD_LIMITS_CALLS_PER_ANSWER": "27",
        "CHATD_LIMITS_CONCURRENT_CALLS": "28",
        "CHATD_LIMITS_STEP_OUTPUT_BYTES": "20000",
        "CHATD_LIMITS_STREAMS_PER_USER": "16",
        "CHATD_LIMITS_REQUESTS_PER_MINUTE": "21",
        "CHATD_LIMITS_NEW_CHATS_PER_MINUTE": "22",
        "CHATD_LIMITS_UPLOADS_PER_MINUTE": "23",
        "CHATD_LIMITS_TOPICS_PER_SOCKET": "17",
        "CHATD_LIMITS_SPEND_MICROS": "9",
        "CHATD_LIMITS_SPEND_PERIOD": "week",
        "CHATD_LIMITS_UNPRICED": "refuse",
        "CHATD_LIMITS_UNCHECKED": "refuse",
        "CHATD_CHATS_TITLES": "false",
        "CHATD_CHATS_INTERRUPT_SUBAGENTS": "stop",
        "CHATD_CHATS_QUESTION_HOURS": "24",
        "CHATD_CHATS_APPROVAL_HOURS": "25",
        "CHATD_CHATS_MAX_STEPS": "26",
        "CHATD_CHATS_OUTAGE_HOURS": "27",
        "CHATD_CHATS_COMPACTION_KEPT_TOKENS": "28000",
        "CHATD_CHATS_COMPACTION_CEILING_TOKENS": "290000",
        "CHATD_CHATS_CLEAR_RESULTS_STEPS": "30",
        "CHATD_CHATS_AUTO_ARCHIVE_DAYS": "10",
        "CHATD_CHATS_RETENTION_DAYS": "11",
        "CHATD_CHATS_DELETED_MESSAGES_DAYS": "13",
        "CHATD_CHATS_USAGE_DAYS": "14",
        "CHATD_CHATS_DEBUG_DAYS": "3",
        "CHATD_FILES_STORE": "s3",
        "CHATD_FILES_S3_ENDPOINT": "https://s3.test",
        "CHATD_FILES_S3_BUCKET": "files",
        "CHATD_FILES_S3_REGION": "eu-central-1",
        "CHATD_FILES_S3_PREFIX": "chatd/",
        "CHATD_FILES_S3_ACCESS_KEY_ID": "id",
        "CHATD_FILES_S3_SECRET_ACCESS_KEY": "secret",
        "CHATD_FILES_MAX_BYTES": "18",
        "CHATD_FILES_USER_BYTES": "19",
        "CHATD_FILES_USER_FILES": "20",
        "CHATD_FILES_WEB_IMAGES": "off",
        "CHATD_WORKSPACES_ENABLED": "false",
        "CHATD_WORKSPACES_ALLOW_UNSAFE": "true",
        "CHATD_WORKSPACES_ROOTS": '["/srv/code"]',
        "CHATD_WORKSPACES_TTL_S": "12",
        "CHATD_WORKSPACES_GIT_PRIVATE_HOSTS": '["git.internal"]',
        "CHATD_WORKSPACES_RETENTION_DAYS": "15",
        "CHATD_WORKSPACES_BUILD_SLOTS": "13",
        "CHATD_WORKSPACES_DESKTOP_RECORDINGS": "false",
        "CHATD_WORKSPACES_MAX_COPY_BYTES": "1048577",
        "CHATD_WORKSPACES_RUNNERS_PER_USER": "16",
        "CHATD_WORKSPACES_CLONE_TIMEOUT_S": "14",
        "CHATD_AUDIT_RETENTION_DAYS": "24",
        "CHATD_BACKUP_EVERY_HOURS": "12",
        "CHATD_BACKUP_DIRECTORY": "/mnt/backups",
        "CHATD_BACKUP_KEEP": "3",
        "CHATD_BACKUP_PASSPHRASE": "correct horse",
        "CHATD_BACKUP_WORKSPACES": "true",
        "CHATD_OTEL_TRACES": "true",
        "CHATD_OTEL_METRICS": "true",
        "CHATD_OTEL_ENDPOINT": "http://127.0.0.1:4318",
        "CHATD_OTEL_SAMPLE": "0.5",
        "CHATD_OTEL_CONTENT": "true",
        "CHATD_WEBHOOKS_PRIVATE_ADDRESSES": "true",
        "CHATD_WEBHOOKS_PUSH_CONTACT": "mailto:ops@example.com",
        "CHATD_DEMO_KILL_WORKER": "false",
        "CHATD_TEMPLATES": "[]",
        "CHATD_MCP_PRIVATE_HOSTS": '["mcp.internal"]',
        "CHATD_MCP_SERVERS": '[{"slug": "notes", "url": "https://mcp.example.com/mcp"}]',
        "CHATD_PROVIDERS": '[{"name": "a", "kind": "anthropic"}]',
        "CHATD_MODELS": '[{"name": "m", "provider": "a", "model": "x"}]',
    }
    assert {key.variable for key in setting_keys().values()} == set(env)
    assert loaded(env=env) == Settings(
        data_dir=Path("/srv/chatd"),
        database=DatabaseSettings(
            url="postgres://db/chatd",
            pool_size=3,
            statement_timeout_s=4.0,
            slow_statement_s=0.25,
            lock_timeout_s=0.5,
            start_wait_s=7.0,
        ),
        log=LogSettings(level="error", format="json"),
        server=ServerSettings(
            host="::1",
            port=0,
            url="https://chat.example.com",
            allowed_hosts=("chat.local",),
            allowed_origins=("https://app.example.com",),
            frame_origins=("https://app.example.com",),
            trusted_proxies=("10.0.0.0/8",),
            open_browser=False,
            metrics_token="a-token-of-prometheus",
            join=False,
            notifications="nats://nats:4222",
            peer_address="10.0.0.2:7871",
            preview_host="preview.example.com",
            processes=4,
        ),
        sign_in=SignInSettings(passwords=False),
        otel=OtelSettings(
            traces=True,
            metrics=True,
            endpoint="http://127.0.0.1:4318",
            sample=0.5,
            content=True,
        ),
        backup=BackupSettings(
            every_hours=12.0,
            directory="/mnt/backups",
            keep=3,
            passphrase="correct horse",
            workspaces=True,
        ),
        mcp=McpSettings(private_hosts=("mcp.internal",)),
        mcp_servers=(McpServerEntry(slug="notes", url="https://mcp.example.com/mcp"),),
        demo=DemoSettings(kill_worker=False),
        oidc=OidcSettings(
            issuer="https://login.example.com",
            client_id="chatd",
            client_secret="hush",
            name="Example",
            scopes="openid email",
            allowed_domains=("example.com",),
            auto_create=True,
            link_by_email=True,
            trust_email=True,
            groups_claim="groups",
            groups=("crew",),
            admin_groups=("ops",),
            viewer_groups=("audit",),
        ),
        worker=WorkerSettings(slots=2, child_slots=3, drain_s=4.0),
        limits=LimitSettings(
            running=5,
            running_per_user=6,
            running_subagents=7,
            running_subagents_per_user=8,
            running_subagents_per_chat=25,
            subagents_per_chat=26,
            calls_per_answer=27,
            concurrent_calls=28,
            step_output_bytes=20000,
            streams_per_user=16,
            requests_per_minute=21,
            new_chats_per_minute=22,
            uploads_per_minute=23,
            topics_per_socket=17,
            spend_micros=9,
            spend_period="week",
            unpriced="refuse",
            unchecked="refuse",
        ),
        chats=ChatSettings(
            titles=False,
            interrupt_subagents="stop",
            question_hours=24,
            approval_hours=25,
            outage_hours=27,
            compaction_kept_tokens=28_000,
            compaction_ceiling_tokens=290_000,
            clear_results_steps=30,
            max_steps=26,
            auto_archive_days=10,
            retention_days=11,
            deleted_messages_days=13,
            usage_days=14,
            debug_days=3,
        ),
        audit=AuditSettings(retention_days=24),
        files=FileSettings(
            store="s3",
            max_bytes=18,
            user_bytes=19,
            user_files=20,
            web_images="off",
            s3_endpoint="https://s3.test",
            s3_bucket="files",
            s3_region="eu-central-1",
            s3_prefix="chatd/",
            s3_access_key_id="id",
            s3_secret_access_key="secret",
        ),
        workspaces=WorkspaceSettings(
            enabled=False,
            allow_unsafe=True,
            roots=(Path("/srv/code"),),
            git_private_hosts=("git.internal",),
            ttl_s=12,
            retention_days=15,
            build_slots=13,
            desktop_recordings=False,
            max_copy_bytes=1048577,
            runners_per_user=16,
            clone_timeout_s=14,
        ),
        hooks=HookSettings(private_addresses=True),
        repositories=RepositorySettings(private_addresses=True),
        slack=SlackSettings(api_url="http://127.0.0.1:7/api", private_addresses=True),
        webhooks=WebhookSettings(private_addresses=True, push_contact="mailto:ops@example.com"),
        providers=(ProviderEntry(name="a", kind="anthropic"),),
        models=(ModelEntry(name="m", provider="a", model="x"),),
    )


def test_models_and_providers_are_tables_in_the_file() -> None:
    toml = """
        [[providers]]
        name = "house"
        kind = "openai-compat"
        base_url = "http://127.0.0.1:8080/v1"

        [[models]]
        name = "small"
        provider = "house"
        model = "smol"
        options = { user = "x" }
        prices = { input = 0.5, output = "1.25" }
    """
    got = loaded(toml)
    assert [provider.name for provider in got.providers] == ["house"]
    assert got.models[0].options == {"user": "x"}


def test_the_repr_of_a_provider_has_no_key() -> None:
    entry = ProviderEntry(name="a", kind="anthropic", api_key="sk-secret")
    assert "sk-secret" not in repr(Settings(data_dir=Path("/x"), providers=(entry,)))


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("[[models]]\nname = 'm'\nprovider = 'p'", ' "m": model is missing'),
        ("[[models]]\nmodel = 'x'\nprovider = 'p'", ", number 1: name is missing"),
        (
            "[[providers]]\nname = 'p'\nkind = 'x'\napikey = 'sk-1'",
            ' "p": unknown key apikey; did you mean api_key?',
        ),
        (
            "[[providers]]\nname = 'p'\nkind = 'x'\nzebra = 'sk-1'",
            (
                ' "p": unknown key zebra; there are name, kind, base_url, api_key, api_key_env,'
                " headers, region, proxy, ca_file, client_cert, client_key, connect_timeout_s,"
                " silence_timeout_s, answer_timeout_s"
            ),
        ),
        (
            "[[models]]\nname = 'm'\nprovider = 'p'\nmodel = 'x'\nprices = { inputs = 1 }",
            ' "m": prices: unknown key inputs; did you mean input?',
        ),
        (
            "[[models]]\nname = 'm'\nprovider = 'p'\nmodel = 'x'\ncontext_limit = '9'",
            ' "m": context_limit: expected a whole number, got a text',
        ),
        ("[[providers]]\nname = ''\nkind = 'x'", ": name: expected a text that is not empty"),
        ("providers = ['sk-1']", ", number 1: expected a table, got a text"),
        ("providers = 'sk-1'", ": expected a list, got a text"),
        ("[workspaces]\nroots = ['/srv', '']", "roots, number 2: expected a path"),
    ],
)
def test_a_bad_table_is_refused_without_showing_it(toml: str, said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        loaded(toml)
    assert refused.value.message.startswith(f"{FILE}: ")
    assert refused.value.message.endswith(said)
    assert "sk-1" not in refused.value.message


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ({"descripton": ""}, "unknown key descripton; did you mean description?"),
        ({"spec": {"netwrok": "none"}}, "spec: unknown key netwrok; did you mean network?"),
        ({"spec": {"network": "some"}}, "spec: network: expected one of none, allow, full"),
        ({"spec": {"seed": {"kind": "gti"}}}, SEEDS),
        (
            {"spec": {"seed": {"kind": "git", "url": "", "rev": ""}}},
            "spec: seed: unknown key rev; there are url, ref, allow_private",
        ),
        ({"spec": {"seed": {"kind": "git"}}}, "spec: seed: url is missing"),
        (
            {"parameters": [{"name": "a"}, {"name": "b", "defualt": ""}]},
            "parameters: number 2: unknown key defualt; did you mean default?",
        ),
        ({"spec": {"limits": {"processes": "9"}}}, NINE),
        ({"spec": {"env": {"A": 1}}}, "spec: env: expected a text, got a whole number"),
    ],
)
def test_a_bad_template_is_refused_by_its_name(template: dict[str, object], said: str) -> None:
    settings = Settings(data_dir=DATA, templates=({"name": "t", **template},))
    with pytest.raises(SettingsError) as refused:
        check_workspace_settings(settings, {})
    assert refused.value.message == f'templates "t": {said}'


def test_a_good_template_is_not_refused() -> None:
    seed = {"kind": "git", "url": "https://git.example.org/x.git"}
    spec = {"seed": seed, "env": {"ANY": "thing"}, "mounts": [{"source": "/a", "target": "/b"}]}
    templates: tuple[dict[str, object], ...] = ({"name": "t", "spec": spec},)
    check_workspace_settings(Settings(data_dir=DATA, templates=templates), {"CHATD_SECRET": ""})


def test_the_environment_wins_over_the_file_and_a_flag_over_both() -> None:
    toml = "[database]\npool_size = 3\nlock_timeout_s = 3\nstatement_timeout_s = 3"
    env = {"CHATD_DATABASE_POOL_SIZE": "4", "CHATD_DATABASE_LOCK_TIMEOUT_S": "4"}
    got = loaded(toml, env, {"database.pool_size": "5", "database.url": None}).database
    assert got == DatabaseSettings(pool_size=5, lock_timeout_s=4.0, statement_timeout_s=3.0)


def test_every_key_has_unique_names_and_a_description() -> None:
    every = list(setting_keys().values())
    assert len({key.variable for key in every}) == len(every)
    assert len({key.flag for key in every}) == len(every)
    assert [key.name for key in every if not key.help] == []


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[database]\nulr = 'x'", "unknown key database.ulr; did you mean database.url?"),
        ("url = 'x'", "unknown key url; did you mean database.url?"),
        ("zebra = 1", "unknown key zebra; there are data_dir, database, log, server"),
        ("[zebra]\nurl = 1", "unknown key zebra; there are data_dir, database, log, server"),
        ("[log]\nzebra = 1", "unknown key log.zebra; [log] has level, format"),
        ("database = 1", "database: expected a table, [database], got 1"),
        (
            "database = 'postgresql://ada:hush@db/chatd'",
            "database: expected a table, [database], got a text",
        ),
        ("[data_dir]\nx = 1", "data_dir: expected a path, got a table"),
        ("data_dir = ''", "data_dir: expected a path, got nothing"),
        ("data_dir = 3", "data_dir: expected a path, got 3"),
        (
            "[database]\npool_size = '3'",
            f'database.pool_size: {POOL_SIZE}, got "3"; leave out the quotes',
        ),
        ("[database]\npool_size = true", f"database.pool_size: {POOL_SIZE}, got true"),
        ("[database]\npool_size = 1", f"database.pool_size: {POOL_SIZE}, got 1"),
        ("[database]\nlock_timeout_s = 0", f"database.lock_timeout_s: {TIME}, got 0"),
        ("[database]\nlock_timeout_s = nan", f"database.lock_timeout_s: {TIME}, got nan"),
        (
            "[log]\nlevel = 'loud'",
            'log.level: expected one of debug, info, warning, error, got "loud"',
        ),
        (
            "[log]\nlevel = ['x']",
            "log.level: expected one of debug, info, warning, error, got a list",
        ),
        (
            "[workspaces]\nenabled = 'true'",
            'workspaces.enabled: expected true or false, got "true"; leave out the quotes',
        ),
        ("[server]\nhost = ''", "server.host: expected a text that is not empty, got nothing"),
        ("[database", "not valid TOML: Expected ']' at the end of a table declaration"),
    ],
)
def test_a_bad_file_is_refused_by_file_and_key(toml: str, message: str) -> None:
    said = refusal(toml)
    assert said.startswith(f"{FILE}: {message}")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("CHATD_DATABASE_POOL_SIZE", "many", f'CHATD_DATABASE_POOL_SIZE: {POOL_SIZE}, got "many"'),
        ("CHATD_LOG_FORMAT", "xml", 'CHATD_LOG_FORMAT: expected one of text, json, got "xml"'),
        (
            "CHATD_DATABSE_URL",
            "x",
            "unknown environment variable CHATD_DATABSE_URL; did you mean CHATD_DATABASE_URL?",
        ),
        (
            "CHATD_ZEBRA",
            "x",
            "unknown environment variable CHATD_ZEBRA; unset it, or see docs/settings.md",
        ),
        ("CHATD_PROVIDERS", "sk-1", "CHATD_PROVIDERS: expected a list as JSON, in square brackets"),
        ("CHATD_MODELS", "{}", "CHATD_MODELS: expected a list as JSON, in square brackets"),
    ],
)
def test_a_bad_variable_is_refused_by_name(variable: str, value: str, message: str) -> None:
    assert refusal(env={variable: value}) == message


def test_a_bad_flag_is_refused_by_name() -> None:
    assert refusal(flags={"log.level": "loud"}).startswith("--log-level: expected one of")
    assert refusal(flags={"server.port": "\nlong" * 20}) == (
        f'--port: expected a whole number from 0 to 65535, got "{"?long" * 12}…"'
    )


def test_a_bad_value_is_refused_even_when_a_later_source_overrides_it() -> None:
    said = refusal("[database]\npool_size = 0", flags={"database.pool_size": "5"})
    assert said == f"{FILE}: database.pool_size: {POOL_SIZE}, got 0"


def test_an_error_does_not_show_an_address_with_its_password() -> None:
    said = refusal(env={"CHATD_DATABASE_URL": "ada:hunter2@db/chatd"})
    assert said == ("CHATD_DATABASE_URL: expected an address such as postgresql://user@host/name")
    said = refusal("[server]\nnotifications = 'http://ada:hunter2@nats'")
    assert "expected postgresql, or an address such as nats://nats.example.com:4222" in said
    assert "hunter2" not in said


def test_a_variable_that_is_set_but_empty_counts_as_not_set() -> None:
    assert loaded(env={"CHATD_DATABASE_URL": "", "CHATD_LOG_LEVEL": ""}) == loaded()


def test_variables_of_kubernetes_services_are_ignored() -> None:
    env = {
        "CHATD_CONFIG": "/x",
        "CHATD_SERVICE_HOST": "10.0.0.1",
        "CHATD_SERVICE_PORT_HTTP": "80",
        "CHATD_PORT": "tcp://10.0.0.1:80",
        "CHATD_PORT_80_TCP_ADDR": "10.0.0.1",
        "CHATD_API_PORT_80_TCP": "tcp://10.0.0.1:80",
        "CHATDX": "1",
    }
    assert loaded(env=env) == loaded()


def test_a_path_in_a_file_is_relative_to_the_file() -> None:
    assert loaded("data_dir = 'data'").data_dir == FILE.parent / "data"


@pytest.mark.parametrize("source", ["file", "environment"])
def test_a_tilde_means_the_home_directory(source: str) -> None:
    toml = "data_dir = '~/chats'" if source == "file" else None
    env = {"CHATD_DATA_DIR": "~/chats"} if source == "environment" else {}
    assert loaded(toml, env).data_dir == HOME / "chats"


def test_without_a_home_the_data_directory_must_be_named() -> None:
    named = loaded(flags={"data_dir": "/srv"}, data_dir=None)
    assert named.data_dir == Path("/srv")
    with pytest.raises(SettingsError, match="use --data-dir"):
        loaded(data_dir=None)


def test_the_default_data_directory_depends_on_the_user() -> None:
    env = {"HOME": "/home/ada", "XDG_DATA_HOME": "/data"}
    assert default_data_dir(env, uid=0) == Path("/var/lib/chatd")
    assert default_data_dir(env, uid=1000) == Path("/data/chatd")
    assert default_data_dir({**env, "XDG_DATA_HOME": "data"}, uid=1) == Path(
        "/home/ada/.local/share/chatd"
    )
    assert default_data_dir({}, uid=1000) is None


def test_the_config_file_is_searched_in_order(tmp_path: Path) -> None:
    def write(name: str) -> ConfigFile:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}")
        return ConfigFile(path=path, text=f"# {name}")

    env = {"HOME": str(tmp_path / "home")}
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    assert read_config(None, env, cwd) is None
    at_home = write("home/.config/chatd/chatd.toml")
    assert read_config(None, env, cwd) == at_home
    xdg = write("xdg/chatd/chatd.toml")
    assert read_config(None, {**env, "XDG_CONFIG_HOME": str(tmp_path / "xdg")}, cwd) == xdg
    here = write("cwd/chatd.toml")
    assert read_config(None, env, cwd) == here
    by_variable = write("variable.toml")
    env["CHATD_CONFIG"] = str(by_variable.path)
    assert read_config(None, env, cwd) == by_variable
    by_flag = write("cwd/flag.toml")
    assert read_config(Path("flag.toml"), env, cwd) == by_flag


@pytest.mark.parametrize("origin", ["--config", "CHATD_CONFIG"])
def test_a_named_config_file_must_be_readable(origin: str, tmp_path: Path) -> None:
    wanted = tmp_path / "gone.toml"
    flag = wanted if origin == "--config" else None
    with pytest.raises(SettingsError) as caught:
        read_config(flag, {"CHATD_CONFIG": str(wanted)}, tmp_path)
    assert caught.value.message == f"{origin}: cannot read {wanted}: No such file or directory"


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"\xff", "the file is not UTF-8 text"), (b"#" * 1_000_001, "the file is larger")],
)
def test_an_invalid_config_file_is_refused(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "chatd.toml").write_bytes(content)
    with pytest.raises(SettingsError, match=reason):
        read_config(None, {}, tmp_path)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ada:hunter2@db:5432/chatd", "postgresql://ada:***@db:5432/chatd"),
        ("postgresql://ada:hun@ter/2@db/chatd", "postgresql://ada:***@db/chatd"),
        ("postgresql://:hunter2@db/chatd", "postgresql://:***@db/chatd"),
        ("postgresql://ada@db/chatd", "postgresql://ada@db/chatd"),
        ("postgresql:///chatd?host=/run", "postgresql:///chatd?host=/run"),
        (
            "postgresql://db/chatd?user=ada&password=hunter2&sslpassword=hunter2",
            "postgresql://db/chatd?user=ada&password=***&sslpassword=***",
        ),
        ("hunter2", "***"),
    ],
)
def test_a_password_in_an_address_is_redacted(url: str, shown: str) -> None:
    assert redact_url(url) == shown
    assert "hunter2" not in repr(Settings(data_dir=DATA, database=DatabaseSettings(url=url)))


def test_the_repr_of_settings_is_complete_except_the_password() -> None:
    database = DatabaseSettings(url="postgresql://ada:hunter2@db/chatd")
    assert repr(database) == (
        "DatabaseSettings(url='postgresql://ada:***@db/chatd', pool_size=10, "
        "statement_timeout_s=15.0, slow_statement_s=1.0, lock_timeout_s=5.0, start_wait_s=60.0)"
    )


@pytest.mark.promise("P13")
@pytest.mark.parametrize("address", ["nats://ada:hunter2@nats", "tls://hunter2@nats:4333/prod"])
def test_no_password_of_nats_is_shown_or_compared(address: str) -> None:
    settings = Settings(data_dir=DATA, server=ServerSettings(notifications=address))
    assert "hunter2" not in repr(settings)
    shown = shown_settings(settings)
    assert shown["server.notifications"] == address.replace("ada:", "").replace("hunter2", "***")
    other = ServerSettings(notifications=address.replace("hunter2", "another"))
    assert shared_digests(settings) == shared_digests(Settings(data_dir=DATA, server=other))


def test_every_setting_is_in_the_table_of_the_docs() -> None:
    text = SETTINGS.read_text()
    assert all(f"| `{name}` |" in text for name in setting_keys())
