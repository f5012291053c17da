"""`chatd admin users`, `groups` and `limits`: users, groups with their members, and spend limits,
over the API of a server."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from chatd.cli.options import AsJson, ServerFinder, with_target

if TYPE_CHECKING:
    from chatd.client.resources import Group, UserAccount
    from chatd.client.server import ServerApi

Role = Literal["admin", "member", "viewer"]
Period = Literal["day", "week", "month"]

MAX_LISTED_USERS: Final = 100_000
MAX_LISTED_LIMITS: Final = 10_000
_USER_HEADINGS: Final = ("NAME", "ROLE", "STATUS", "SEEN", "EMAIL")
_GROUP_HEADINGS: Final = ("MEMBERS", "NAME")
_LIMIT_HEADINGS: Final = ("LIMIT", "FOR", "MEMBERS")

UserName = Annotated[str, typer.Argument(metavar="USER", help="The user's name for signing in")]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")]
ForUser = Annotated[
    str | None, typer.Option("--user", metavar="NAME", help="The limit of this user")
]
ForGroup = Annotated[
    str | None, typer.Option("--group", metavar="NAME", help="The limit of each member")
]

users: Final = typer.Typer(
    help="List, add, change and remove users.", no_args_is_help=True, rich_markup_mode=None
)
groups: Final = typer.Typer(
    help="List, add and remove groups and their members.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
limits: Final = typer.Typer(
    help="Show, set and remove spend limits: of everyone, of groups, of users.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


# Users


@users.command("list")
@with_target
def list_users(*, as_json: AsJson = False, server: ServerFinder) -> None:
    """List the users by name."""
    from chatd.cli.api_session import run_command
    from chatd.cli.output import print_json, print_table

    async def work(api: "ServerApi") -> None:
        listed = api.list_users()
        if as_json:
            print_json(await listed.raw_items(MAX_LISTED_USERS))
            return
        found = await listed.items(MAX_LISTED_USERS)
        print_table(_USER_HEADINGS, [_user_row(one) for one in found])

    run_command(server, work)


@users.command("add")
@with_target
def add_user(
    name: UserName,
    *,
    role: Annotated[Role, typer.Option(help="What the user may do")] = "member",
    email: Annotated[str | None, typer.Option(metavar="ADDRESS", help="The user's email")] = None,
    full_name: Annotated[
        str, typer.Option("--full-name", metavar="TEXT", help="The name to show")
    ] = "",
    is_service: Annotated[
        bool, typer.Option("--service", help="A service account: it uses tokens only")
    ] = False,
    with_password: Annotated[
        bool,
        typer.Option("--password", help="Read a password from the terminal or standard input"),
    ] = False,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Add a user.

    Without a password the user signs in by the OpenID provider, or by a link that chatd admin
    sign-in-link prints on the server's machine.
    """
    from chatd.cli import process
    from chatd.cli.api_session import report_errors, run_command
    from chatd.cli.output import print_json, print_notice

    fields: dict[str, object] = {"username": name, "role": role, "name": full_name}
    fields |= {"email": email, "is_service": is_service}
    if with_password:
        with report_errors():
            fields["password"] = process.read_password()

    async def work(api: "ServerApi") -> None:
        made = await api.create_user(fields)
        if as_json:
            print_json(made)
            return
        print_notice(f"added {made.username}, {made.role}")

    run_command(server, work)


@users.command("change")
@with_target
def change_user(
    user: UserName,
    *,
    role: Annotated[Role | None, typer.Option(help="Another role")] = None,
    email: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Another email")] = None,
    full_name: Annotated[
        str | None, typer.Option("--full-name", metavar="TEXT", help="Another name to show")
    ] = None,
    is_active: Annotated[
        bool | None,
        typer.Option("--enable/--disable", help="A disabled user cannot sign in or use a token"),
    ] = None,
    with_password: Annotated[
        bool,
        typer.Option(
            "--password",
            help="Read a new password from the terminal or standard input; ends the"
            " user's sessions",
        ),
    ] = False,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Change a user's role, names or password, or disable a user."""
    from chatd.cli import process
    from chatd.cli.api_session import UsageProblem, report_errors, run_command
    from chatd.cli.output import print_json, print_notice

    fields: dict[str, object] = {"role": role, "email": email, "name": full_name}
    fields = {name: value for name, value in fields.items() if value is not None}
    if is_active is not None:
        fields["status"] = "active" if is_active else "suspended"
    password = ""
    with report_errors():
        if not fields and not with_password:
            raise UsageProblem("say what to change, such as --role viewer or --disable")
        if with_password:
            password = process.read_password()

    async def work(api: "ServerApi") -> None:
        changed = await _find_user(api, user)
        if fields:
            changed = await api.change_user(changed.id, fields)
        if password:
            changed = await api.set_user_password(changed.id, password)
        if as_json:
            print_json(changed)
            return
        print_notice(f"changed {changed.username}: {changed.role}, {changed.status}")

    run_command(server, work)


@users.command("remove")
@with_target
def remove_user(
    user: UserName, *, yes: Yes = False, as_json: AsJson = False, server: ServerFinder
) -> None:
    """Remove a user. The chats stay, and administrators can read them."""
    from chatd.cli.api_session import confirm, report_errors, run_command
    from chatd.cli.output import print_json, print_notice

    with report_errors():
        confirm(f"Remove the user {user}?", yes=yes)

    async def work(api: "ServerApi") -> None:
        found = await _find_user(api, user)
        await api.delete_user(found.id)
        if as_json:
            print_json({"removed": str(found.id)})
            return
        print_notice(f"removed {found.username}")

    run_command(server, work)


def _user_row(user: "UserAccount") -> tuple[str, ...]:
    from chatd.cli.output import short_time

    return (
        f"{user.username} (service)" if user.is_service else user.username,
        user.role,
        user.status,
        short_time(user.last_seen_at, datetime.now(UTC)),
        user.email or "",
    )


async def _find_user(api: "ServerApi", name: str) -> "UserAccount":
    """Raises UsageProblem."""
    from chatd.cli.api_session import UsageProblem

    found = await api.list_users().items(MAX_LISTED_USERS)
    wanted = name.lower()
    user = next((one for one in found if wanted in (one.username.lower(), str(one.id))), None)
    if user is None:
        raise UsageProblem(f"there is no user {name!r}; chatd admin users list shows them")
    return user


# Groups


@groups.command("list")
@with_target
def list_groups(*, as_json: AsJson = False, server: ServerFinder) -> None:
    """List the groups by name."""
    from chatd.cli.api_session import run_command
    from chatd.cli.output import print_json, print_table

    async def work(api: "ServerApi") -> None:
        listed = api.list_groups()
        if as_json:
            print_json(await listed.raw_items(MAX_LISTED_USERS))
            return
        found = await listed.items(MAX_LISTED_USERS)
        print_table(_GROUP_HEADINGS, [(str(one.member_count), one.name) for one in found])

    run_command(server, work)


@groups.command("add")
@with_target
def add_group(group: GroupName, *, as_json: AsJson = False, server: ServerFinder) -> None:
    """Add a group."""
    from chatd.cli.api_session import run_command
    from chatd.cli.output import print_json, print_notice

    async def work(api: "ServerApi") -> None:
        made = await api.create_group(group)
        if as_json:
            print_json(made)
            return
        print_notice(f"added the group {made.name}")

    run_command(server, work)


@groups.command("remove")
@with_target
def remove_group(
    group: GroupName, *, yes: Yes = False, as_json: AsJson = False, server: ServerFinder
) -> None:
    """Remove a group. What is shared with it is no longer shared."""
    from chatd.cli.api_session import confirm, report_errors, run_command
    from chatd.cli.output import print_json, print_notice

    with report_errors():
        confirm(f"Remove the group {group}?", yes=yes)

    async def work(api: "ServerApi") -> None:
        found = await _find_group(api, group)
        await api.delete_group(found.id)
        if as_json:
            print_json({"removed": str(found.id)})
            return
        print_notice(f"removed the group {found.name}")

    run_command(server, work)


@groups.command("members")
@with_target
def list_members(group: GroupName, *, as_json: AsJson = False, server: ServerFinder) -> None:
    """List the members of a group."""
    from chatd.cli.api_session import run_command
    from chatd.cli.output import print_json, print_table

    async def work(api: "ServerApi") -> None:
        listed = api.list_group_members((await _find_group(api, group)).id)
        if as_json:
            print_json(await listed.raw_items(MAX_LISTED_USERS))
            return
        found = await listed.items(MAX_LISTED_USERS)
        print_table(_USER_HEADINGS, [_user_row(one) for one in found])

    run_command(server, work)


@groups.command("add-member")
@with_target
def add_member(
    group: GroupName, user: UserName, *, as_json: AsJson = False, server: ServerFinder
) -> None:
    """Add a user to a group."""
    from chatd.cli.api_session import run_command
    from chatd.cli.output import print_json, print_notice

    async def work(api: "ServerApi") -> None:
        found, member = await _find_group(api, group), await _find_user(api, user)
        changed = await api.add_group_member(found.id, member.id)
        if as_json:
            print_json(changed)
            return
        print_notice(f"{member.username} is in {changed.name}: {changed.member_count} members")

    run_command(server, work)


@groups.command("remove-member")
@with_target
def remove_member(
    group: GroupName, user: UserName, *, as_json: AsJson = False, server: ServerFinder
) -> None:
    """Take a user out of a group."""
    from chatd.cli.api_session import run_command
    from chatd.cli.output import print_json, print_notice

    async def work(api: "ServerApi") -> None:
        found, member = await _find_group(api, group), await _find_user(api, user)
        await api.remove_group_member(found.id, member.id)
        if as_json:
            print_json({"group": str(found.id), "removed": str(member.id)})
            return
        print_notice(f"{member.username} is not in {found.name}")

    run_command(server, work)


async def _find_group(api: "ServerApi", name: str) -> "Group":
    """Raises UsageProblem."""
    from chatd.cli.api_session import UsageProblem

    found = await api.list_groups().items(MAX_LISTED_USERS)
    wanted = name.lower()
    group = next((one for one in found if wanted in (one.name.lower(), str(one.id))), None)
    if group is None:
        raise UsageProblem(f"there is no group {name!r}; chatd admin groups list shows them")
    return group


# Spend limits


@limits.command("list")
@with_target
def list_limits(*, as_json: AsJson = False, server: ServerFinder) -> None:
    """List the spend limits. A user's own comes first, then the strictest of the groups, then that
    of everyone."""
    from chatd.cli.api_session import run_command
    from chatd.cli.output import dollars, print_json, print_notice, print_table

    async def work(api: "ServerApi") -> None:
        default = await api.get_spend_limits()
        of_groups = api.list_group_limits()
        of_users = api.list_user_limits()
        if as_json:
            print_json(
                {
                    "default": default,
                    "groups": await of_groups.raw_items(MAX_LISTED_LIMITS),
                    "users": await of_users.raw_items(MAX_LISTED_LIMITS),
                }
            )
            return
        amount, period = default.spend_limit_micros, f"a {default.period}"
        at = "chatd.toml" if default.source == "settings" and amount is not None else ""
        rows = [("none" if amount is None else dollars(amount), "everyone", at)]
        rows += [
            (dollars(one.spend_limit_micros), f"group {one.group_name}", str(one.member_count))
            for one in await of_groups.items(MAX_LISTED_LIMITS)
        ]
        rows += [
            (dollars(one.spend_limit_micros), f"user {one.username}", "")
            for one in await of_users.items(MAX_LISTED_LIMITS)
        ]
        print_table((f"{_LIMIT_HEADINGS[0]} {period}".upper(), *_LIMIT_HEADINGS[1:]), rows)
        if default.unpriced_model_count:
            count = default.unpriced_model_count
            print_notice(f"{count} enabled models have no price: no limit stops their use.")

    run_command(server, work)


@limits.command("set")
@with_target
def set_limit(
    amount: Annotated[str, typer.Argument(metavar="DOLLARS", help="Such as 25 or 0.50")],
    *,
    user: ForUser = None,
    group: ForGroup = None,
    period: Annotated[
        Period | None,
        typer.Option(help="Of all limits, set with that of everyone [as it is]"),
    ] = None,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Set the limit of everyone, or with --user or --group that of a user or a group."""
    from chatd.cli.api_session import UsageProblem, report_errors, run_command
    from chatd.cli.chats.run_report import read_dollars
    from chatd.cli.output import dollars, print_json, print_notice

    with report_errors():
        _check_target(user, group)
        if period is not None and (user or group):
            raise UsageProblem("--period is of all limits: set it with that of everyone")
        micros = read_dollars(amount, "the limit")

    async def work(api: "ServerApi") -> None:
        if user is not None:
            found = await _find_user(api, user)
            made, about = await api.set_user_limit(found.id, micros), found.username
        elif group is not None:
            named = await _find_group(api, group)
            made, about = await api.set_group_limit(named.id, micros), f"each of {named.name}"
        else:
            kept = period or (await api.get_spend_limits()).period
            made, about = await api.set_default_limit(micros, kept), "everyone"
        if as_json:
            print_json(made)
            return
        print_notice(f"{about} may spend {dollars(micros)}")

    run_command(server, work)


@limits.command("remove")
@with_target
def remove_limit(
    *,
    user: ForUser = None,
    group: ForGroup = None,
    everyone: Annotated[
        bool, typer.Option("--everyone", help="The limit of users who have no other")
    ] = False,
    as_json: AsJson = False,
    server: ServerFinder,
) -> None:
    """Remove a limit; the next wider one counts, and for everyone that of chatd.toml."""
    from chatd.cli.api_session import UsageProblem, report_errors, run_command
    from chatd.cli.output import print_json, print_notice

    with report_errors():
        _check_target(user, group)
        if everyone == bool(user or group):
            raise UsageProblem("say which limit: --user, --group or --everyone")

    async def work(api: "ServerApi") -> None:
        if user is not None:
            found = await _find_user(api, user)
            await api.delete_user_limit(found.id)
        elif group is not None:
            await api.delete_group_limit((await _find_group(api, group)).id)
        else:
            await api.delete_default_limit()
        if as_json:
            print_json({"removed": user or group or "everyone"})
            return
        print_notice(f"removed the limit of {user or group or 'everyone'}")

    run_command(server, work)


def _check_target(user: str | None, group: str | None) -> None:
    from chatd.cli.api_session import UsageProblem

    if user is not None and group is not None:
        raise UsageProblem("say --user or --group, not both")
