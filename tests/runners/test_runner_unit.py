"""The systemd unit of a runner."""

from pathlib import Path

from chatd.app.runner_process import ClusterOptions, RunnerOptions, unit_text


def command_of(options: RunnerOptions) -> str:
    text = unit_text("/usr/bin/chatd", options, Path("/etc/token"), "ada")
    return next(line for line in text.splitlines() if line.startswith("ExecStart="))


def test_a_unit_starts_the_runner_with_all_options_it_was_given() -> None:
    options = RunnerOptions(
        server_url="https://chat.example.com",
        token="secret",
        data_dir=Path("/data"),
        name="rack",
        labels=("gpu",),
        backends=("container",),
        capacity=3,
        roots=(Path("/srv/a"), Path("/srv/b")),
        engine_socket=Path("/run/engine.sock"),
    )
    assert command_of(options) == (
        'ExecStart="/usr/bin/chatd" "runner" "start" "--server" "https://chat.example.com"'
        ' "--token-file" "/etc/token" "--data-dir" "/data" "--backend" "container"'
        ' "--label" "gpu" "--name" "rack" "--capacity" "3" "--allow" "/srv/a" "--allow" "/srv/b"'
        ' "--engine-socket" "/run/engine.sock"'
    )


def test_a_unit_names_the_cluster_of_a_runner() -> None:
    cluster = ClusterOptions(
        kubeconfig=Path("/etc/k"), namespace="w", pod_image="chatd:1", storage_class="fast"
    )
    options = RunnerOptions(
        server_url="http://s", token="", data_dir=Path("/d"), backends=("kubernetes",),
        cluster=cluster,
    )  # fmt: skip
    assert command_of(options).endswith(
        '"--backend" "kubernetes" "--kubeconfig" "/etc/k" "--namespace" "w"'
        ' "--pod-image" "chatd:1" "--storage-class" "fast"'
    )


def test_a_value_in_a_unit_means_to_systemd_what_was_typed() -> None:
    name = 'a "b" %h $HOME c\\d\nUser=root'
    options = RunnerOptions(server_url="http://s", token="", data_dir=Path("/d"), name=name)
    command = command_of(options)
    assert command.endswith(r'"--name" "a \"b\" %%h $$HOME c\\d\nUser=root"')
