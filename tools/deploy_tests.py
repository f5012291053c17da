"""Renders the Helm chart in several ways, checks every object against the schemas of Kubernetes,
and installs, upgrades and uninstalls it at a real API server.

helm, kube-apiserver and etcd are built from their Go modules, into build/deploy-tools; the schemas
come from a Python package, those of ServiceMonitor and PrometheusRule from the Go module of their
operator. There are no nodes: what is admitted is tested, not what pods do. Without Go nothing is
checked, and it says so. Run by make test-deploy: the first run takes up to half an hour.
"""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "deploy" / "helm" / "chatd"
TOOLS = ROOT / "build" / "deploy-tools"
HELM = "helm.sh/helm/v3/cmd/helm@v3.22.0"
SCHEMAS = "kubernetes-validate==1.37.0"
VERSIONS = ("1.31", "1.37")
KUBERNETES = "1.34.4"
ETCD = "go.etcd.io/etcd/server/v3@v3.6.5"
OPERATOR = "github.com/prometheus-operator/prometheus-operator@v0.76.0"
STAGED = (
    *("api", "apiextensions-apiserver", "apimachinery", "apiserver", "cli-runtime", "client-go"),
    *("cloud-provider", "cluster-bootstrap", "code-generator", "component-base"),
    *("component-helpers", "controller-manager", "cri-api", "cri-client", "csi-translation-lib"),
    *("dynamic-resource-allocation", "endpointslice", "externaljwt", "kms", "kube-aggregator"),
    *("kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet", "metrics"),
    *("mount-utils", "pod-security-admission", "sample-apiserver", "sample-cli-plugin"),
    "sample-controller",
)
BUILD_TIMEOUT_S = 1800
START_TIMEOUT_S = 120.0
SPACE, WORKSPACES = "chatd", "chatd-workspaces"

DATABASE = "databaseUrl=postgresql://chatd@db/chatd"
ALL = (
    *("postgres.enabled=true", "autoscaling.enabled=true", "networkPolicy.enabled=true"),
    *("networkPolicy.namespaces={ingress-nginx,monitoring}", "ipv6=true"),
    *("ingress.enabled=true", "ingress.className=nginx", "url=https://chat.example.com:8443"),
    *("ingress.tlsSecret=tls", "trustedProxies={10.0.0.0/8}", "serviceMonitor.enabled=true"),
    *("prometheusRule.enabled=true", "runner.enabled=true", "runner.tokenSecret=runner"),
    *("settings=[limits]", "runner.storageClass=fast"),
)
GOOD = {
    "an external database": (DATABASE,),
    "a database of the chart": ("postgres.enabled=true",),
    "a secret of others": ("existingSecret=keys", "replicas=5", "drainSeconds=300"),
    "everything": ALL,
}
# The text is part of what helm says.
BAD = {
    "no database": ((), "Set databaseUrl"),
    "an ingress without a host": ((DATABASE, "ingress.enabled=true"), "needs url"),
    "a runner without a token": ((DATABASE, "runner.enabled=true"), "runner.tokenSecret"),
    "an unknown value": ((DATABASE, "replica=3"), "replica"),
    "a wrong address": (("databaseUrl=mysql://db",), "databaseUrl"),
    "two databases": ((DATABASE, "postgres.enabled=true"), "two databases"),
    "a short token": ((DATABASE, "secrets.adminToken=short"), "adminToken"),
}


def main() -> None:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        print("NOT RUN: the chart is not tested, because Go is not installed.")
        return
    check = set_up(go)
    failed = [name for name, values in GOOD.items() if not is_valid(name, values, check)]
    failed += [name for name, (values, says) in BAD.items() if not is_refused(name, values, says)]
    if shutil.which("kubectl") is None:
        print("NOT RUN: the chart is not installed anywhere, because kubectl is not installed.")
    else:
        with api_server(go) as cluster:
            failed += [test.__name__ for test in AT_A_SERVER if not passes(test, cluster)]
    if failed:
        sys.exit(f"FAILED: {', '.join(failed)}")


def set_up(go: str) -> Path:
    """The program that checks objects."""
    env = {**os.environ, "GOBIN": str(TOOLS), "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
    if not (TOOLS / "helm").exists():
        print("Building helm: some minutes ...", flush=True)
        subprocess.run([go, "install", HELM], env=env, check=True, timeout=BUILD_TIMEOUT_S)
    python = TOOLS / "python"
    check = python / "bin" / "kubernetes-validate"
    if not check.exists():
        subprocess.run([sys.executable, "-m", "venv", python], check=True, timeout=BUILD_TIMEOUT_S)
        install = [python / "bin" / "pip", "install", "--quiet", SCHEMAS]
        subprocess.run(install, check=True, timeout=BUILD_TIMEOUT_S)
    return check


def render(values: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    flags = [word for value in values for word in ("--set", value)]
    command = [TOOLS / "helm", "template", "trial", CHART, "--namespace", "chatd"]
    command += ["--kube-version", f"{VERSIONS[-1]}.0", *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def is_valid(name: str, values: tuple[str, ...], check: Path) -> bool:
    rendered = render(values)
    good, said = rendered.returncode == 0, rendered.stderr
    with NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(rendered.stdout)
        file.flush()
        for version in VERSIONS if good else ():
            # Kinds of other projects, such as ServiceMonitor, have no schema here.
            command = [check, "--strict", "--quiet", "--no-warn", "-k", version, file.name]
            checked = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=120
            )
            good = good and checked.returncode == 0
            said += checked.stdout + checked.stderr
    print(f"{'ok    ' if good else 'FAILED'} {name} {said.strip()}")
    return good


def is_refused(name: str, values: tuple[str, ...], says: str) -> bool:
    rendered = render(values)
    good = rendered.returncode != 0 and says in rendered.stderr
    print(f"{'ok    ' if good else 'FAILED'} refused: {name}" + ("" if good else rendered.stderr))
    return good


# At an API server


class Cluster:
    """An API server without nodes and controllers, and the two programs that talk to it."""

    def __init__(self, kubeconfig: Path) -> None:
        self._env = {**os.environ, "KUBECONFIG": str(kubeconfig), "HOME": str(kubeconfig.parent)}

    def helm(self, *words: str, values: tuple[str, ...] = ()) -> str:
        flags = [word for value in values for word in ("--set", value)]
        return self._run([str(TOOLS / "helm"), *words, "--namespace", SPACE, *flags])

    def install(self, name: str, *values: str) -> None:
        self.helm("install", name, str(CHART), values=values)

    def kubectl(self, *words: str, given: object = None) -> str:
        text = None if given is None else json.dumps(given)
        return self._run(["kubectl", *words], text)

    def get(self, *words: str, namespace: str = SPACE) -> dict[str, Any]:
        return json.loads(self.kubectl("get", "--namespace", namespace, *words, "--output=json"))

    def keys(self, name: str = "chatd-keys") -> dict[str, str]:
        return self.get("secret", name)["data"]

    def may(self, account: str, verb: str, resource: str, namespace: str) -> bool:
        who = f"--as=system:serviceaccount:{SPACE}:{account}"
        kind, _, part = resource.partition("/")
        command = ["kubectl", "auth", "can-i", verb, kind, f"--subresource={part}", who]
        command += ["--namespace", namespace]
        done = subprocess.run(
            command, env=self._env, capture_output=True, text=True, check=False, timeout=60
        )
        return done.stdout.strip() == "yes"

    def _run(self, command: list[str], text: str | None = None) -> str:
        done = subprocess.run(
            command, input=text, env=self._env, capture_output=True, text=True, check=False,
            timeout=120,
        )  # fmt: skip
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout + done.stderr


def test_a_release_is_installed_upgraded_and_uninstalled(cluster: Cluster) -> None:
    """Its keys stay, also for the next release of the same name."""
    cluster.install("chatd", DATABASE)
    made = cluster.keys()
    assert set(made) == {"admin-token", "secret", "secret-keys", "metrics-token", "database-url"}
    before = cluster.get("deployment", "chatd")["spec"]["template"]
    cluster.helm("upgrade", "chatd", str(CHART), values=(DATABASE,))
    assert (cluster.keys(), cluster.get("deployment", "chatd")["spec"]["template"]) == (
        made,
        before,
    ), "an upgrade without a change restarts the servers"
    other = f"{DATABASE}2"
    cluster.helm("upgrade", "chatd", str(CHART), values=(other, "settings=[limits]"))
    assert {name for name, text in cluster.keys().items() if made[name] != text} == {"database-url"}
    after = cluster.get("deployment", "chatd")["spec"]["template"]
    changed = after["metadata"]["annotations"].items() - before["metadata"]["annotations"].items()
    assert {name for name, _ in changed} == {"checksum/settings", "checksum/keys"}
    cluster.helm("rollback", "chatd", "1")
    cluster.helm("uninstall", "chatd")
    kinds = "deployments,statefulsets,services,configmaps,ingresses,poddisruptionbudgets,secrets"
    left = cluster.get(kinds, "--selector=app.kubernetes.io/instance=chatd")["items"]
    assert [one["metadata"]["name"] for one in left] == ["chatd-keys"]
    cluster.install("chatd", DATABASE)
    assert cluster.keys() == made
    cluster.helm("uninstall", "chatd")


def test_the_password_of_the_charts_database_stays_while_it_is_disabled(cluster: Cluster) -> None:
    cluster.install("pg", "postgres.enabled=true")
    made = cluster.keys("pg-chatd-keys")
    cluster.helm("upgrade", "pg", str(CHART), values=(DATABASE,))
    cluster.helm("upgrade", "pg", str(CHART), values=("postgres.enabled=true",))
    assert cluster.keys("pg-chatd-keys")["postgres-password"] == made["postgres-password"]
    cluster.helm("uninstall", "pg")


def test_everything_is_admitted_under_the_restricted_standard(cluster: Cluster) -> None:
    cluster.install("all", *ALL)
    cluster.helm("upgrade", "all", str(CHART), values=(*ALL, "replicas=3", "slots=50"))
    found = cluster.get("deployments,statefulsets")["items"]
    names = ["all-chatd", "all-chatd-postgres", "all-chatd-runner"]
    assert sorted(one["metadata"]["name"] for one in found) == names
    for workload in found:
        template = workload["spec"]["template"]
        claims = workload["spec"].get("volumeClaimTemplates", ())
        volumes = [
            {"name": claim["metadata"]["name"], "persistentVolumeClaim": {"claimName": "c"}}
            for claim in claims
        ]
        spec = {**template["spec"], "volumes": [*template["spec"]["volumes"], *volumes]}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**template["metadata"], "name": "trial", "namespace": SPACE},
            "spec": spec,
        }
        cluster.kubectl("create", "--dry-run=server", "--filename=-", given=pod)
        assert not template["spec"].get("hostNetwork")
        grace, drain = template["spec"]["terminationGracePeriodSeconds"], 60
        assert "server" not in template["metadata"]["labels"].values() or grace >= 5 + drain + 30
    ingress = cluster.get("ingress", "all-chatd")["spec"]
    assert [rule["host"] for rule in ingress["rules"]] == ["chat.example.com"]
    monitor = cluster.get("servicemonitor", "all-chatd")["spec"]
    assert monitor["endpoints"][0]["authorization"]["credentials"]["key"] == "metrics-token"
    assert cluster.get("prometheusrule", "all-chatd")["spec"]["groups"]
    cluster.helm("uninstall", "all")


NEEDED = {
    ("pods", verb) for verb in ("get", "list", "watch", "create", "delete")
} | {("persistentvolumeclaims", verb) for verb in ("get", "list", "create", "patch", "delete")} | {
    ("secrets", "list"), ("secrets", "create"), ("secrets", "delete"), ("pods/log", "get"),
}  # fmt: skip
"""What workspaces/kubernetes asks for; the cluster of its tests refuses everything else."""


def test_the_runner_may_do_what_it_needs_in_its_namespace_and_no_more(cluster: Cluster) -> None:
    cluster.install("run", DATABASE, "runner.enabled=true", "runner.tokenSecret=runner")
    verbs = ("get", "list", "watch", "create", "update", "patch", "delete")
    resources = ("pods", "pods/log", "pods/exec", "persistentvolumeclaims", "secrets", "roles")
    asked = {(resource, verb) for resource in resources for verb in verbs}
    runner, server = "run-chatd-runner", "run-chatd"
    allowed = {one for one in asked if cluster.may(runner, one[1], one[0], WORKSPACES)}
    assert allowed == NEEDED, allowed ^ NEEDED
    for resource in ("pods", "secrets"):
        assert not cluster.may(runner, "list", resource, SPACE)
        assert not cluster.may(server, "list", resource, WORKSPACES)
    cluster.helm("uninstall", "run")


def test_a_secret_of_others_is_used_and_left_alone(cluster: Cluster) -> None:
    given = {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "mine", "namespace": SPACE}}
    cluster.kubectl("create", "--filename=-", given={**given, "stringData": {"secret": "s"}})
    cluster.install("own", "existingSecret=mine")
    (container,) = cluster.get("deployment", "own-chatd")["spec"]["template"]["spec"]["containers"]
    named = [variable.get("valueFrom", {}).get("secretKeyRef") for variable in container["env"]]
    assert {one["name"] for one in named if one} == {"mine"}
    cluster.helm("uninstall", "own")
    assert cluster.keys("mine")


AT_A_SERVER: tuple[Callable[[Cluster], None], ...] = (
    test_a_release_is_installed_upgraded_and_uninstalled,
    test_the_password_of_the_charts_database_stays_while_it_is_disabled,
    test_everything_is_admitted_under_the_restricted_standard,
    test_the_runner_may_do_what_it_needs_in_its_namespace_and_no_more,
    test_a_secret_of_others_is_used_and_left_alone,
)


def passes(test: Callable[[Cluster], None], cluster: Cluster) -> bool:
    name = test.__name__.removeprefix("test_").replace("_", " ")
    try:
        test(cluster)
    except AssertionError as error:
        print(f"FAILED {name}: {error}")
        return False
    print(f"ok     {name}")
    return True


@contextmanager
def api_server(go: str) -> Generator[Cluster]:
    """With two namespaces that enforce the Pod Security Standard `restricted`, and the definitions
    of the operator of Prometheus."""
    build_api_server(go)
    definitions = download(go, OPERATOR) / "example" / "prometheus-operator-crd"
    with TemporaryDirectory(prefix="chatd-cluster-") as place, ExitStack() as stack:
        cluster = Cluster(start_api_server(Path(place), stack))
        for kind in ("servicemonitors", "prometheusrules"):
            path = definitions / f"monitoring.coreos.com_{kind}.yaml"
            cluster.kubectl("create", f"--filename={path}")
        for name in (SPACE, WORKSPACES):
            labels = {"pod-security.kubernetes.io/enforce": "restricted"}
            space = {"metadata": {"name": name, "labels": labels}}
            for one in (
                {"apiVersion": "v1", "kind": "Namespace", **space},
                # A controller would make it.
                {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}},
            ):
                cluster.kubectl("create", f"--namespace={name}", "--filename=-", given=one)
        yield cluster


def start_api_server(place: Path, stack: ExitStack) -> Path:
    """The kubeconfig of its administrator. The programs end with `stack`."""
    client, peer, port = free_port(), free_port(), free_port()
    token, url = secrets.token_hex(16), f"http://127.0.0.1:{client}"
    (place / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
    key = place / "accounts.pem"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    etcd = [TOOLS / "etcd", f"--data-dir={place}/etcd", f"--listen-client-urls={url}"]
    etcd += [f"--advertise-client-urls={url}", f"--listen-peer-urls=http://127.0.0.1:{peer}"]
    server = [TOOLS / "kube-apiserver", f"--etcd-servers={url}", f"--secure-port={port}"]
    server += ["--bind-address=127.0.0.1", f"--cert-dir={place}/certificates"]
    server += [f"--token-auth-file={place}/tokens.csv", "--authorization-mode=RBAC"]
    server += ["--service-cluster-ip-range=10.0.0.0/24", "--service-account-issuer=https://trial"]
    server += [f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"]
    for name, command in (("etcd", etcd), ("kube-apiserver", server)):
        log = stack.enter_context((place / f"{name}.log").open("w"))
        process = subprocess.Popen(command, stdout=log, stderr=log)
        stack.callback(process.wait)
        stack.callback(process.kill)
    access = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [
            {
                "name": "c",
                "cluster": {
                    "server": f"https://127.0.0.1:{port}",
                    "insecure-skip-tls-verify": True,
                },
            }
        ],
        "users": [{"name": "u", "user": {"token": token}}],
    }
    kubeconfig = place / "kubeconfig"
    kubeconfig.write_text(json.dumps(access))
    kubeconfig.chmod(0o600)
    ready = ["kubectl", f"--kubeconfig={kubeconfig}", "get", "--raw", "/readyz"]
    deadline = time.monotonic() + START_TIMEOUT_S
    while subprocess.run(ready, capture_output=True, check=False).returncode != 0:
        if time.monotonic() > deadline:
            said = (place / "kube-apiserver.log").read_text()[-2000:]
            sys.exit(f"FAILED: kube-apiserver does not become ready:\n{said}")
        time.sleep(0.5)
    return kubeconfig


def build_api_server(go: str) -> None:
    """Modules with `replace` in their go.mod cannot be installed, so they are built from modules
    that require them."""
    version = "k8s.io/component-base/version"
    named = {"gitVersion": f"v{KUBERNETES}", "gitMajor": "1", "gitMinor": KUBERNETES.split(".")[1]}
    flags = " ".join(f"-X {version}.{name}={text}" for name, text in named.items())
    replaced = [f"-replace=k8s.io/{name}=k8s.io/{name}@v0.{KUBERNETES[2:]}" for name in STAGED]
    wanted = {
        "etcd": ("go.etcd.io/etcd/server/v3", [f"-require={ETCD}"]),
        "kube-apiserver": (
            "k8s.io/kubernetes/cmd/kube-apiserver",
            [*replaced, f"-require=k8s.io/kubernetes@v{KUBERNETES}"],
        ),
    }
    env = {**os.environ, "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
    for name, (package, edits) in wanted.items():
        if (TOOLS / name).exists():
            continue
        print(f"Building {name}: some minutes ...", flush=True)
        with TemporaryDirectory() as module:
            for command in (
                ["mod", "init", "trial"],
                ["mod", "edit", *edits],
                ["build", f"-ldflags=-s -w {flags}", "-o", str(TOOLS / name), package],
            ):
                subprocess.run(
                    [go, *command], cwd=module, env=env, check=True, timeout=BUILD_TIMEOUT_S
                )


def download(go: str, module: str) -> Path:
    """The files of a Go module."""
    env = {**os.environ, "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
    done = subprocess.run(
        [go, "mod", "download", "-json", module],
        cwd=TOOLS, env=env, capture_output=True, text=True, check=True, timeout=BUILD_TIMEOUT_S,
    )  # fmt: skip
    return Path(json.loads(done.stdout)["Dir"])


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    main()
