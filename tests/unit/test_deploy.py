"""The files of deploy/ say what the rest of the project says: settings, ports, times, names."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from prometheus_client import CollectorRegistry

from chatd.api.route import ApiMetrics
from chatd.app.telemetry import Gauges, SlowStatements, Telemetry
from chatd.settings.keys import setting_keys
from chatd.settings.schema import ServerSettings, WorkerSettings
from tests.support.clock import FakeClock

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "chatd"
# Read by the command line or by services, not settings.
OTHER_VARIABLES = {
    *("CHATD_ADMIN_TOKEN", "CHATD_SECRET", "CHATD_SECRET_KEYS", "CHATD_RUNNER_TOKEN"),
    *("CHATD_COMMIT", "CHATD_CONFIG", "CHATD_UI"),
}
Json = dict[str, Any]


def load(path: Path) -> Json:
    return cast("Json", yaml.safe_load(path.read_text()))


@pytest.fixture(scope="module")
def compose() -> Json:
    return load(DEPLOY / "compose.yaml")


@pytest.mark.parametrize(
    "path",
    [
        DEPLOY / "Containerfile",
        DEPLOY / "compose.yaml",
        *sorted((CHART / "templates").glob("*.yaml")),
    ],
    ids=lambda path: path.name,
)
def test_every_variable_is_a_setting(path: Path) -> None:
    known = {key.variable for key in setting_keys().values()} | OTHER_VARIABLES | {"CHATD_DOMAIN"}
    assert set(re.findall(r"\bCHATD_[A-Z0-9_]+", path.read_text())) <= known


def test_every_value_that_must_be_set_is_in_the_example_and_in_no_other_file(compose: Json) -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    asked = set(re.findall(r"\$\{([A-Z_]+)", text))
    example = (DEPLOY / "compose.env.example").read_text()
    assert asked == set(re.findall(r"^([A-Z_]+)=", example, re.MULTILINE))
    assert re.findall(r"^[A-Z_]+=\S+$", example, re.MULTILINE) == ["CHATD_DOMAIN=localhost"]
    del compose


def test_the_platforms_wait_longer_than_a_drain(compose: Json) -> None:
    drain_s = WorkerSettings().drain_s
    for name in ("chatd-1", "chatd-2"):
        assert int(compose["services"][name]["stop_grace_period"].rstrip("s")) >= drain_s + 30
    values = load(CHART / "values.yaml")
    assert values["drainSeconds"] == drain_s
    assert "add 5 .Values.drainSeconds 30" in (CHART / "templates/deployment.yaml").read_text()


def test_the_servers_of_compose_are_alike_and_confined(compose: Json) -> None:
    services = compose["services"]
    one, two = services["chatd-1"], services["chatd-2"]
    for name, service in (("chatd-1", one), ("chatd-2", two)):
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        peer = service["environment"].pop("CHATD_SERVER_PEER_ADDRESS")
        assert peer == f"{name}:7871"
        service.pop("volumes")
    assert one == two
    assert services["postgres"]["image"] == "docker.io/library/postgres:18"
    network = compose["networks"]["inside"]["ipam"]["config"][0]["subnet"]
    assert network in one["environment"]["CHATD_SERVER_TRUSTED_PROXIES"]
    proxied = (DEPLOY / "Caddyfile").read_text()
    assert f"chatd-1:{ServerSettings().port} chatd-2:{ServerSettings().port}" in proxied


def test_the_image_runs_without_rights_and_without_compilers() -> None:
    stages = (DEPLOY / "Containerfile").read_text().split("\nFROM ")
    last = stages[-1]
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE)
    for word in ("gcc", "build-essential", "npm", "--require-hashes"):
        assert word not in last
    assert "--require-hashes" in stages[-2]
    for name in re.findall(r"requirements/\w+\.txt", stages[-2]):
        assert (ROOT / name).is_file()
    # Every path that is copied from the checkout exists.
    for line in re.findall(r"^COPY (?!--from)(.+) \S+$", "\n".join(stages), re.MULTILINE):
        for name in line.split():
            assert (ROOT / name).exists(), name


def test_the_chart_has_the_version_of_the_project() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    version = re.search(r'^version = "(.+)"$', project, re.MULTILINE)
    chart = load(CHART / "Chart.yaml")
    assert version is not None
    assert (chart["appVersion"], chart["version"]) == (version[1], version[1])


def test_every_value_of_the_chart_is_in_its_schema_and_used() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    templates = "".join(
        path.read_text() for path in (CHART / "templates").iterdir() if path.is_file()
    )

    def check(values: Json, described: Json, path: str) -> None:
        properties = described["properties"]
        assert set(values) == set(properties) - {"global"}, path
        for name, value in values.items():
            inner = properties[name]
            assert f"{path}.{name}" in templates or "properties" in inner, f"{path}.{name}"
            if "properties" in inner:
                check(cast("Json", value), inner, f"{path}.{name}")

    check(load(CHART / "values.yaml"), schema, ".Values")


# Dashboard and alerts

ALERTS = CHART / "files" / "alerts.yaml"
OF_PROMETHEUS = {"le", "instance", "process"}
"""Labels that Prometheus adds, and a server with several processes."""


def dashboard_queries() -> dict[str, str]:
    """By panel and letter."""
    board = json.loads((DEPLOY / "grafana" / "chatd.json").read_text())
    return {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in board["panels"]
        for target in panel.get("targets", ())
    }


def alert_rules() -> dict[str, Json]:
    return {rule["alert"]: rule for group in load(ALERTS)["groups"] for rule in group["rules"]}


def all_queries() -> dict[str, str]:
    return {name: rule["expr"] for name, rule in alert_rules().items()} | dashboard_queries()


@pytest.fixture(scope="module")
def labels() -> dict[str, set[str]]:
    """The labels of each sample, as the server exposes them once everything has happened."""
    registry = CollectorRegistry()
    emit, api = Telemetry(registry), ApiMetrics(registry)
    Gauges(registry).slots.labels("chats").set(1)
    SlowStatements(registry, emit, FakeClock()).report("SELECT 1", 1.0)
    emit("model_failed", error_kind="timeout", provider="p", duration_ms=1)
    emit("prompt_extended", cause="tools", lost_tokens=1)
    tokens = {f"{kind}_tokens": 1 for kind in ("input", "output", "cache_read", "cache_creation")}
    emit("usage_recorded", provider="p", model="m", cost_micros=1, **tokens)
    api.on_reply("GET", "/", 200, 0.1)
    api.on_stream_open("sse")
    samples = (sample for metric in registry.collect() for sample in metric.samples)
    return {sample.name: set(sample.labels) for sample in samples}


@pytest.fixture(scope="module")
def source() -> str:
    return "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))


@pytest.mark.parametrize("name", all_queries())
def test_a_query_uses_metrics_labels_and_events_that_exist(
    name: str, labels: dict[str, set[str]], source: str
) -> None:
    query = all_queries()[name]
    used = re.findall(r"\b(chatd_\w+)(?:{([^}]*)})?", query)
    assert used
    allowed = set(OF_PROMETHEUS)
    for metric, selector in used:
        assert metric in labels, metric
        allowed |= labels[metric]
        assert set(re.findall(r"(\w+)=~?\"", selector)) <= labels[metric], selector
    grouped = {label for by in re.findall(r"by \(([^)]*)\)", query) for label in by.split(", ")}
    assert grouped <= allowed
    for matched in re.findall(r'event=~?"([^"]+)"', query):
        assert all(f'"{event}"' in source for event in matched.split("|")), matched
    assert all(query.count(a) == query.count(b) for a, b in ("()", "[]", "{}"))
    assert query.count('"') % 2 == 0


def test_prometheus_accepts_the_alerts_and_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed (Debian's package prometheus)")
    rules = [
        {"record": "q", "expr": query.replace("$__rate_interval", "5m")}
        for query in dashboard_queries().values()
    ]
    board = tmp_path / "board.yaml"
    groups = [{"name": f"g{n}", "rules": [rule]} for n, rule in enumerate(rules)]
    board.write_text(yaml.safe_dump({"groups": groups}))
    for path in (ALERTS, board):
        done = subprocess.run(
            [promtool, "check", "rules", str(path)], capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_every_alert_has_its_section_for_the_night() -> None:
    text = (ROOT / "docs" / "at-night.md").read_text()
    assert re.findall(r"^### (Chatd\w+)$", text, re.MULTILINE) == list(alert_rules())
    for name, rule in alert_rules().items():
        assert rule["annotations"]["runbook"] == f"docs/at-night.md#{name.lower()}"
        section = text.partition(f"### {name}\n")[2].partition("\n### ")[0]
        assert all(f"**{word}**" in section for word in ("Means", "Look", "Do")), name


def test_the_chart_scales_by_a_metric_that_exists(labels: dict[str, set[str]]) -> None:
    scaled = re.findall(r"name: (chatd_\w+)", (CHART / "templates/service.yaml").read_text())
    assert set(scaled) == {"chatd_running_chats"} <= labels.keys()
