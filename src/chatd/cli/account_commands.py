"""The work of `chatd admin sign-in-link`, `create-user` and `reset-password`, on the database."""

import sys
from uuid import uuid4

from chatd.api.accounts.passwords import Passwords
from chatd.api.accounts.sign_in import create_link, local_url, sign_in_link
from chatd.cli.deployment import open_deployment
from chatd.cli.server_address import read_address
from chatd.domain.access import ROLES, SystemActor
from chatd.domain.account.entities import User
from chatd.domain.account.rules import check_email, check_password, check_username
from chatd.domain.errors import NotFound
from chatd.domain.ids import CredentialId, UserId
from chatd.settings.schema import Settings, SettingsError
from chatd.store.account import credentials, users
from chatd.store.account.users import NewUser
from chatd.store.conn import Conn


async def print_sign_in_link(settings: Settings, username: str) -> None:
    actor = _actor("sign-in-link")
    async with open_deployment(settings) as pool:
        user = await _find(pool, actor, username)
        link = await _create_link(settings, pool, actor, user)
    print(link)


async def create_user(
    settings: Settings, username: str, *, role: str, email: str | None, password: str | None
) -> None:
    if role not in ROLES:
        raise SettingsError(f"--role: there is no role {role!r}; there are {', '.join(ROLES)}")
    actor = _actor("create-user")
    checked = None if password is None else check_password(password)
    new = NewUser(
        id=UserId(uuid4()),
        username=check_username(username),
        role=role,
        email=None if email is None else check_email(email),
        password_hash=None if checked is None else await Passwords().make_hash(checked),
    )
    async with open_deployment(settings) as pool:
        async with pool.transaction() as session:
            user = await users.create(session, actor, new)
        link = None if password else await _create_link(settings, pool, actor, user)
    print(f"created {user.username}, {user.role}", file=sys.stderr)
    if link is not None:
        print(link)


async def reset_password(settings: Settings, username: str, password: str) -> None:
    actor = _actor("reset-password")
    new_hash = await Passwords().make_hash(check_password(password))
    async with open_deployment(settings) as pool:
        user = await _find(pool, actor, username)
        async with pool.transaction() as session:
            await users.set_password(session, actor, user.id, new_hash)
            ended = await credentials.revoke_of_user(session, actor, user.id, ("session", "link"))
    print(f"the password of {user.username} is set; {ended} sessions and links ended")


async def _find(conn: Conn, actor: SystemActor, username: str) -> User:
    found = await users.find_by_login(conn, actor, username)
    if found is None:
        raise NotFound(f"there is no user {username!r}")
    return found[0]


async def _create_link(settings: Settings, conn: Conn, actor: SystemActor, user: User) -> str:
    """Raises NotFound."""
    if user.is_service or not user.is_active:
        raise NotFound(f"{user.username} is suspended or a service account and cannot sign in")
    secret, _ = await create_link(conn, actor, user.id, CredentialId(uuid4()))
    server = settings.server
    host = f"[{server.host}]" if ":" in server.host else server.host
    running = read_address(settings.data_dir) or f"http://{host}:{server.port}"
    return sign_in_link(server.url or local_url(running), secret)


def _actor(command: str) -> SystemActor:
    return SystemActor(reason=f"chatd admin {command}")
