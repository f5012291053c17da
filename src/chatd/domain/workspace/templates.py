"""Who may use a template, template ranking for a model, workspace names, and the parameter values
of a build. Usage and randomness are passed in.
"""

import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, Literal

import msgspec
from msgspec import Struct

from chatd.domain.access.permissions import Role
from chatd.domain.errors import Conflict
from chatd.domain.text import clip
from chatd.domain.workspace.entities import FieldProblem, Parameter, Template, TemplateId
from chatd.domain.workspace.runners import HERE_TEMPLATES

TEMPLATES_PER_PAGE: Final = 10
README_EXCERPT_CHARS: Final = 1000
_MAX_README_BYTES: Final = 64 * 1024
_HALF_LIFE_S: Final = 14 * 86_400.0
# Slightly lower than exact, because sums of logarithms have rounding errors.
_MIN_LEAD: Final = math.log(3) - math.log(2) - 1e-9
_MIN_AFFINITY: Final = math.log(3) - 1e-9
_IGNORED: Final = re.compile(r"[\s_-]+")
_FRONTMATTER: Final = re.compile(r"\A---[ \t]*\r?\n.*?\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)


class TemplateUser(Struct, frozen=True, kw_only=True):
    """A user who chooses a template. `groups` are the names of the user's groups."""

    role: Role
    username: str
    email: str | None = None
    groups: tuple[str, ...] = ()


def needs_own_runner(template: Template) -> bool:
    """Whether its workspaces exist only on a runner that their user has started. Such a template is
    not offered as a choice."""
    return template.origin == "builtin" and template.name in HERE_TEMPLATES.values()


def may_use_template(template: Template, user: TemplateUser | None) -> bool:
    """Whether the template is listed for the user, and a workspace may be created from it. Names
    are compared without case. Administrators may use every template; viewers, who create nothing,
    see all. None: a user who does not exist."""
    if not template.users and not template.groups:
        return True
    if user is None:
        return False
    if user.role in ("admin", "viewer"):
        return True
    names = {name.casefold() for name in (user.username, user.email or "") if name}
    groups = {name.casefold() for name in user.groups}
    is_named = any(name.casefold() in names for name in template.users)
    return is_named or any(name.casefold() in groups for name in template.groups)


NextStep = Literal["use_recommended", "ask_user", "no_match", "none"]


class TemplateUsage(Struct, frozen=True, kw_only=True):
    """Usage of one template in the last 60 days."""

    active: int = 0
    """Existing workspaces of the caller."""
    deleted: int = 0
    """Deleted workspaces of the caller."""
    last_used_at: datetime | None = None
    developers: int = 0
    """How many users use it."""


class RankedTemplate(Struct, frozen=True, kw_only=True):
    template: Template
    signal: TemplateUsage
    tier: int
    affinity: float


class TemplateListing(Struct, frozen=True, kw_only=True):
    templates: tuple[RankedTemplate, ...]
    page: int
    next_page: int | None
    recommended: TemplateId | None
    next_step: NextStep


def list_templates(
    templates: Sequence[Template],
    signals: Mapping[TemplateId, TemplateUsage] | None,
    *,
    query: str = "",
    page: int = 1,
    preferred: str = "",
    now: datetime,
) -> TemplateListing:
    """Rank all templates, then cut a page. `signals` is None if usage could not be read. Without a
    query the template of the name `preferred` is the first, and recommended."""
    folded_query = _folded(query)
    ranked = sorted(
        (
            _rank(template, (signals or {}).get(template.id, TemplateUsage()), folded_query, now)
            for template in templates
            if not template.deleted and not template.deprecated and template.agents_allowed
        ),
        key=lambda r: (-r.tier, -r.affinity, r.template.name, r.template.id.int),
    )
    if folded_query:
        ranked = [r for r in ranked if r.tier > 0]
    first = None if folded_query else _named(ranked, preferred)
    if first is None:
        recommended = _recommended(ranked, queried=bool(folded_query))
    else:
        ranked = [first, *(each for each in ranked if each is not first)]
        recommended = first.template.id
    page = max(page, 1)
    shown = ranked[(page - 1) * TEMPLATES_PER_PAGE : page * TEMPLATES_PER_PAGE]
    return TemplateListing(
        templates=tuple(shown),
        page=page,
        next_page=page + 1 if len(ranked) > page * TEMPLATES_PER_PAGE else None,
        recommended=recommended,
        next_step=_next_step(ranked, recommended, queried=bool(folded_query)),
    )


def _rank(
    template: Template, signal: TemplateUsage, folded_query: str, now: datetime
) -> RankedTemplate:
    tier = _tier(template, folded_query) if folded_query else 0
    return RankedTemplate(
        template=template, signal=signal, tier=tier, affinity=affinity(signal, now)
    )


def _folded(text: str) -> str:
    return _IGNORED.sub("", text.casefold())


def _tier(template: Template, folded_query: str) -> int:
    names = {_folded(template.name), _folded(template.display_name)} - {""}
    if folded_query in names:
        return 4
    if any(name.startswith(folded_query) for name in names):
        return 3
    if any(folded_query in name for name in names):
        return 2
    return 1 if folded_query in _folded(template.description) else 0


def affinity(signal: TemplateUsage, now: datetime) -> float:
    """The caller's own use, which decays, outweighs the use by all users."""
    own = 0.0
    if signal.last_used_at is not None:
        age_s = max((now - signal.last_used_at).total_seconds(), 0.0)
        own = 10 * (signal.active + 0.5 * signal.deleted) * 0.5 ** (age_s / _HALF_LIFE_S)
    return own + math.log1p(signal.developers)


def _recommended(ranked: Sequence[RankedTemplate], *, queried: bool) -> TemplateId | None:
    if not ranked:
        return None
    best = ranked[0]
    if len(ranked) == 1:
        return best.template.id
    second = ranked[1]
    clear = best.affinity - second.affinity >= _MIN_LEAD
    if queried:
        better = best.tier > second.tier
        return best.template.id if better or clear else None
    if best.affinity < _MIN_AFFINITY:
        return None
    return best.template.id if clear or second.affinity < _MIN_AFFINITY else None


def _named(ranked: Sequence[RankedTemplate], name: str) -> RankedTemplate | None:
    return next((each for each in ranked if each.template.name == name), None)


def _next_step(
    ranked: Sequence[RankedTemplate], recommended: TemplateId | None, *, queried: bool
) -> NextStep:
    if recommended is not None:
        return "use_recommended"
    if ranked:
        return "ask_user"
    return "no_match" if queried else "none"


def readme_excerpt(readme: str, limit: int = README_EXCERPT_CHARS) -> str:
    """The beginning of a readme, without its front matter."""
    text = readme.encode(errors="replace")[:_MAX_README_BYTES].decode(errors="ignore")
    text = _FRONTMATTER.sub("", text).strip()
    return clip(text, limit)


MAX_WORKSPACE_NAME_CHARS: Final = 32
_MAX_SLUG_CHARS: Final = 27  # plus a dash and four digits
_NAME: Final = re.compile(r"[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*")
_NOT_ALPHANUMERIC: Final = re.compile(r"[^a-z0-9]+")


def is_valid_name(text: str) -> bool:
    return len(text) <= MAX_WORKSPACE_NAME_CHARS and _NAME.fullmatch(text) is not None


def slug(text: str) -> str:
    """ASCII letters and digits of a text, with dashes for all else; may be empty."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return _NOT_ALPHANUMERIC.sub("-", plain).strip("-")[:_MAX_SLUG_CHARS].rstrip("-")


def generated_name(seed: str, draw: bytes) -> str:
    """Two random bytes make a clash unlikely; the caller retries once on a clash."""
    return f"{slug(seed) or 'workspace'}-{draw[:2].hex().rjust(4, '0')}"


def choose_name(requested: str, template: str, draw: bytes) -> str:
    """The requested name if valid, else one generated from it, else from the template's name."""
    if is_valid_name(requested):
        return requested
    return generated_name(requested if slug(requested) else template, draw)


MAX_PARAMETERS: Final = 100
MAX_PARAMETER_BYTES: Final = 16 * 1024
_INVALID_CHARS: Final = re.compile("[\0\ud800-\udfff]")


class ResolvedParameters(Struct, frozen=True, kw_only=True):
    """`values` are valid only without problems."""

    values: Mapping[str, str]
    problems: tuple[FieldProblem, ...] = ()


def resolve_parameters(
    parameters: Sequence[Parameter],
    given: Mapping[str, str],
    previous: Mapping[str, str] | None = None,
) -> ResolvedParameters:
    """The given value, else that of the previous build, else the default. `previous` is None for
    the first build, which may set immutable parameters."""
    known = {parameter.name: parameter for parameter in parameters}
    problems = [
        FieldProblem(field=name, detail="The template has no such parameter.")
        for name in given
        if name not in known
    ]
    if len(given) > MAX_PARAMETERS:
        problems = [
            FieldProblem(field="parameters", detail=f"At most {MAX_PARAMETERS} can be given.")
        ]
        return ResolvedParameters(values={}, problems=tuple(problems))
    values: dict[str, str] = {}
    for parameter in parameters:
        value = _value(parameter, given, previous or {})
        if value is not None:
            values[parameter.name] = value
        problems += _problems(parameter, value, given, previous)
    return ResolvedParameters(values=values, problems=tuple(problems))


def _value(
    parameter: Parameter, given: Mapping[str, str], previous: Mapping[str, str]
) -> str | None:
    if parameter.name in given:
        return given[parameter.name]
    if not parameter.ephemeral and parameter.name in previous:
        return previous[parameter.name]
    return parameter.default


def _problems(
    parameter: Parameter,
    value: str | None,
    given: Mapping[str, str],
    previous: Mapping[str, str] | None,
) -> Iterator[FieldProblem]:
    if value is None:
        if parameter.required:
            yield FieldProblem(field=parameter.name, detail="A value is required.")
        return
    old = (previous or {}).get(parameter.name)
    is_fixed = previous is not None and not parameter.mutable and old is not None
    if is_fixed and parameter.name in given and value != old:
        yield FieldProblem(
            field=parameter.name, detail="It cannot be changed after the first build."
        )
    elif (detail := check_value(parameter, value)) is not None:
        yield FieldProblem(field=parameter.name, detail=detail)


def check_value(parameter: Parameter, value: str) -> str | None:
    """What is wrong with a value of the parameter; None if it fits."""
    if len(value.encode(errors="replace")) > MAX_PARAMETER_BYTES:
        return f"The value is longer than {MAX_PARAMETER_BYTES} bytes."
    if _INVALID_CHARS.search(value) is not None:
        return "The value contains NUL or surrogate characters."
    if parameter.type == "list(string)":
        return _check_list(parameter, value)
    if parameter.options and value not in {option.value for option in parameter.options}:
        return _not_an_option(parameter)
    match parameter.type:
        case "number":
            return _check_number(parameter, value)
        case "bool":
            return None if value in ("true", "false") else "It must be true or false."
        case "string":
            return _check_text(parameter, value)


def _check_list(parameter: Parameter, value: str) -> str | None:
    try:
        items = msgspec.json.decode(value, type=list[str])
    except (msgspec.DecodeError, UnicodeEncodeError):
        return "It must be a JSON list of strings."
    allowed = {option.value for option in parameter.options}
    return _not_an_option(parameter) if allowed and not allowed.issuperset(items) else None


def _not_an_option(parameter: Parameter) -> str:
    return f"It must be one of: {', '.join(option.value for option in parameter.options)}."


def _check_number(parameter: Parameter, value: str) -> str | None:
    try:
        number = float(value)
    except ValueError:
        return "It must be a number."
    if not math.isfinite(number):
        return "It must be a number."
    if parameter.min is not None and number < parameter.min:
        return f"It must be at least {parameter.min:g}."
    if parameter.max is not None and number > parameter.max:
        return f"It must be at most {parameter.max:g}."
    return None


def _check_text(parameter: Parameter, value: str) -> str | None:
    if not parameter.regex:
        return None
    try:
        fits = re.search(parameter.regex, value) is not None
    except re.error:
        return (
            "The template's pattern for this parameter is not a valid regular expression."
            " Ask the template's author to correct it."
        )
    return None if fits else parameter.regex_error or f"It must match {parameter.regex}."


# Which workspaces can be copied with a chat.

DEFAULT_MAX_COPY_BYTES: Final = 2 << 30
_MIB: Final = 1 << 20


def copied_text(size: int, files: int) -> str:
    return f"{files:,} files, {-(-size // _MIB):,} MiB"


def size_problem(size: int, max_bytes: int) -> str:
    """Why a workspace of this size cannot be copied; empty if it can."""
    if size <= max_bytes:
        return ""
    return (
        f"The workspace has {-(-size // _MIB):,} MiB, and at most {max_bytes // _MIB:,} MiB are"
        " copied. Delete what is not needed, or fork the chat without its workspace."
    )


def require_copyable(template: Template) -> None:
    """Raises Conflict for a workspace that is a directory of its user's machine: a second one would
    be the same directory."""
    if needs_own_runner(template):
        text = "The workspace is a directory of your own machine, which is not copied."
        raise Conflict(text, code="workspace_not_copied")


def require_size(size: int, max_bytes: int) -> None:
    """Raises Conflict."""
    if problem := size_problem(size, max_bytes):
        raise Conflict(problem, code="workspace_too_large")
