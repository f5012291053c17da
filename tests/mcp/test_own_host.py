"""A public address of chatd's own host leads to services behind its firewall."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support import own_host

CHECKOUT: Final = Path(__file__).parents[2]
NAMESPACE: Final = ("unshare", "--map-root-user", "--net", "sh", "-c")
SETUP: Final = (
    "ip link set lo up && ip address add 9.9.9.9/32 dev lo"
    " && ip -6 address add 2620:fe::fe/128 dev lo"
)


def has_namespaces() -> bool:
    try:
        done = subprocess.run([*NAMESPACE, SETUP], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


pytestmark = pytest.mark.skipif(
    not has_namespaces(), reason="this host allows no network namespace"
)


async def attempts(*args: str) -> list[str]:
    command = f'{SETUP} && exec "$0" -m {own_host.__name__} {" ".join(args)}'
    process = await asyncio.create_subprocess_exec(
        *NAMESPACE, command, sys.executable, stdout=asyncio.subprocess.PIPE, cwd=CHECKOUT
    )
    output, _ = await process.communicate()
    return output.decode().splitlines()


@pytest.mark.parametrize("address", ["9.9.9.9", "2620:fe::fe"])
async def test_no_guarded_connection_goes_to_a_public_address_of_the_own_host(
    address: str,
) -> None:
    oauth, dial, served = await attempts(address)
    assert "own host" in oauth
    assert "it is this host" in dial
    assert served == "served: 0"


async def test_the_operator_can_name_the_own_host() -> None:
    assert await attempts("9.9.9.9", "9.9.9.9") == ["oauth: 200", "dial: open", "served: 1"]
