"""Renders the Helm chart in several ways and checks every object against the schemas of Kubernetes.

helm is built from its Go module, into build/deploy-tools; the schemas come from a Python package.
Without Go nothing is checked, and it says so. Run by make test-deploy: the first run takes minutes.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import NamedTemporaryFile

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "deploy" / "helm" / "chatd"
TOOLS = ROOT / "build" / "deploy-tools"
HELM = "helm.sh/helm/v3/cmd/helm@v3.22.0"
SCHEMAS = "kubernetes-validate==1.37.0"
VERSIONS = ("1.31", "1.37")
BUILD_TIMEOUT_S = 1800

DATABASE = "databaseUrl=postgresql://chatd@db/chatd"
ALL = (
    *("postgres.enabled=true", "autoscaling.enabled=true", "networkPolicy.enabled=true"),
    *("ingress.enabled=true", "ingress.className=nginx", "url=https://chat.example.com"),
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


if __name__ == "__main__":
    main()
