"""The rules of a group of processes: how many there are, what each is told, and their metrics."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from chatd.app.process_group import (
    MAX_AUTO_PROCESSES,
    MemberSpec,
    count_processes,
    member_settings,
    merge_metrics,
    read_spec,
)
from chatd.settings.schema import DatabaseSettings, ServerSettings, Settings, SettingsError

FIRST = b"""# HELP requests_total Requests
# TYPE requests_total counter
requests_total{route="/a b",text="{"} 2.0
# HELP running Chats
# TYPE running gauge
running 1.0
"""
SECOND = b"""# HELP running Chats
# TYPE running gauge
running 3.0
# HELP late Only here
# TYPE late gauge
late{x="1"} 5.0
"""


def test_metrics_of_several_processes_become_one_text_with_a_label() -> None:
    families = {
        family.name: [(sample.labels, sample.value) for sample in family.samples]
        for family in text_string_to_metric_families(merge_metrics({1: SECOND, 0: FIRST}).decode())
    }
    assert families == {
        "requests": [({"process": "0", "route": "/a b", "text": "{"}, 2.0)],
        "running": [({"process": "0"}, 1.0), ({"process": "1"}, 3.0)],
        "late": [({"process": "1", "x": "1"}, 5.0)],
    }


def test_no_process_gives_an_empty_text() -> None:
    assert merge_metrics({}) == b""


def settings_of(server: ServerSettings, database: DatabaseSettings | None = None) -> Settings:
    return Settings(data_dir=Path("/data"), server=server, database=database or DatabaseSettings())


def test_auto_takes_a_process_for_each_core_up_to_a_bound() -> None:
    count = count_processes(settings_of(ServerSettings(processes="auto")))
    assert 1 <= count <= MAX_AUTO_PROCESSES


def test_auto_takes_no_more_than_the_embedded_database_has_connections_for() -> None:
    database = DatabaseSettings(pool_size=150)
    assert count_processes(settings_of(ServerSettings(processes="auto"), database)) == 1


@pytest.mark.parametrize(
    ("processes", "pool_size", "url"),
    [(1, 100, None), (9, 10, None), (10, 5, None), (64, 10, "postgres://db/chatd")],
)
def test_as_many_processes_start_as_the_settings_say(
    processes: int, pool_size: int, url: str | None
) -> None:
    database = DatabaseSettings(pool_size=pool_size, url=url)
    settings = settings_of(ServerSettings(processes=processes), database)
    assert count_processes(settings) == processes


def test_more_processes_than_the_embedded_database_has_connections_for_are_refused() -> None:
    settings = settings_of(ServerSettings(processes=10), DatabaseSettings(pool_size=10))
    with pytest.raises(SettingsError, match="connections"):
        count_processes(settings)


def test_a_member_gets_the_port_of_the_group_and_a_peer_address_of_its_own() -> None:
    settings = settings_of(ServerSettings(port=0, peer_address="10.0.0.2:7871"))
    told = member_settings(settings, MemberSpec(fd=3, number=2, port=4000))
    assert (told.server.port, told.server.peer_address) == (4000, "10.0.0.2:7873")


def test_the_option_for_members_is_refused_to_people() -> None:
    with pytest.raises(SettingsError, match="--member"):
        read_spec("2")
