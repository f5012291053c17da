"""A template as an operator writes it, in a file, a request or a form, and what is wrong with it.

`find_template_problems` names every invalid field by its path, such as `spec.env.PATH` or
`parameters[0].regex`. Whether a host has the directories that a template names is checked where
they are.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from chatd.domain.description import describe
from chatd.domain.errors import RequestError
from chatd.domain.workspace.entities import (
    DirectorySeed,
    FieldProblem,
    GitSeed,
    Parameter,
    Seed,
    Template,
    TemplateSpec,
    TemplateVersion,
    screen_size,
)
from chatd.domain.workspace.network import MAX_ALLOWED_HOSTS, find_rule_problems
from chatd.domain.workspace.runners import BackendKind
from chatd.domain.workspace.templates import MAX_PARAMETERS, check_value, is_valid_name

MAX_TEMPLATES: Final = 500
"""Undeleted templates of a deployment, not counting those of files and built-in ones."""
MAX_TEMPLATE_VERSIONS: Final = 1000
"""Versions that one template may have."""
MAX_TEMPLATE_PROBLEMS: Final = 50
"""How many invalid fields a reply names."""
MAX_TTL_S: Final = 366 * 86_400
MAX_STARTUP_TIMEOUT_S: Final = 3600
MAX_SCRIPT_BYTES: Final = 64 * 1024
MAX_TEMPLATE_README_BYTES: Final = 64 * 1024
MAX_ENV_VARIABLES: Final = 100
MAX_ENV_BYTES: Final = 32 * 1024
"""Total size of the names and values of a template's environment."""
MAX_MOUNTS: Final = 32
MIN_SCREEN_SIDE: Final = 320
MAX_SCREEN_SIDE: Final = 3840
MAX_LABELS: Final = 20
MAX_OPTIONS: Final = 100
MAX_REGEX_CHARS: Final = 1000
MAX_LIMIT_BYTES: Final = 2**50
MAX_LIMIT_COUNT: Final = 2**22
PLACEHOLDER: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
"""`${name}` in a seed or a value of the environment: the value of a parameter."""

_LABEL: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_PARAMETER_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
_RUNTIME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_REPOSITORY: Final = re.compile(r"(https?|git)://\S+|(file://)?/.*")
_INVALID_CHARS: Final = re.compile("[\0\ud800-\udfff]")

_LABEL_FORM: Final = "must have up to 32 small letters and digits, with single - between them"
_DETAIL_OF_MAX: Final = "must have at most {} characters"

_Names = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=320)], ...], Meta(max_length=1000)
]


class BackendTraits(Struct, frozen=True, kw_only=True):
    """What a template of this backend can say. `takes_image`: it names an image, and must.
    `reads_host`: it may copy and mount directories of the runner's host. `names_hosts`: it may have
    the network `allow`."""

    takes_image: bool
    reads_host: bool
    names_hosts: bool


BACKEND_TRAITS: Final[Mapping[BackendKind, BackendTraits]] = {
    "sandbox": BackendTraits(takes_image=False, reads_host=True, names_hosts=True),
    "container": BackendTraits(takes_image=True, reads_host=True, names_hosts=True),
    "kubernetes": BackendTraits(takes_image=True, reads_host=False, names_hosts=False),
    "machine": BackendTraits(takes_image=False, reads_host=True, names_hosts=False),
}


class TemplateDefinition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A template with the content of one version: a `[[templates]]` table of `chatd.toml`, a file
    of `chatd admin templates`, or the body of a request. Every command in a workspace, and so the
    model, can read its environment: secrets do not belong there."""

    name: Annotated[
        str,
        describe("Its name, unique: up to 32 letters and digits, with single - between.", "python"),
    ]
    display_name: Annotated[str, describe("Its name for people.", "Python")] = ""
    description: Annotated[
        str, describe("What it is for. Chats choose a template by it.", "Python with pytest")
    ] = ""
    icon: Annotated[str, describe("The address of its icon.", "/icon/python.svg")] = ""
    backend: Annotated[BackendKind, describe("What builds its workspaces.", "sandbox")] = "sandbox"
    readme: Annotated[str, describe("Its documentation, in Markdown.", "# Python")] = ""
    agents_allowed: Annotated[bool, describe("Whether chats may create workspaces from it.")] = True
    default_ttl_s: Annotated[
        int, describe("How long an unused workspace runs, in seconds; 0: without limit.", 28800)
    ] = 0
    activity_bump_s: Annotated[int, describe("By how many seconds use extends that.", 3600)] = 3600
    max_ttl_s: Annotated[
        int, describe("The longest run, in seconds, whatever the use; 0: without limit.", 0)
    ] = 0
    require_active_version: Annotated[
        bool, describe("Whether a workspace gets the active version at its next start.")
    ] = False
    users: Annotated[
        _Names,
        describe(
            "Who may use it, by name or email address. Without users and groups: every user.",
            ["ada"],
        ),
    ] = ()
    groups: Annotated[_Names, describe("The groups whose members may use it.", ["data"])] = ()
    spec: Annotated[TemplateSpec, describe("How its workspaces are built.")] = TemplateSpec()
    parameters: Annotated[
        tuple[Parameter, ...], describe("What a workspace can choose when it is created.")
    ] = ()


_CONTENT: Final = ("spec", "parameters", "readme")


def definition_of(template: Template, version: TemplateVersion) -> TemplateDefinition:
    """The definition that gave these rows."""
    names = [name for name in TemplateDefinition.__struct_fields__ if name not in _CONTENT]
    columns: dict[str, Any] = {name: getattr(template, name) for name in names}
    content = {name: getattr(version, name) for name in _CONTENT}
    return TemplateDefinition(**columns, **content)


def is_same_content(one: TemplateDefinition, other: TemplateDefinition) -> bool:
    """Whether both would be the same version of a template."""
    return all(getattr(one, name) == getattr(other, name) for name in _CONTENT)


def changed_fields(before: TemplateDefinition, after: TemplateDefinition) -> tuple[str, ...]:
    """The names of the changed fields; those of the spec by themselves."""
    names = [
        name
        for name in TemplateDefinition.__struct_fields__
        if name != "spec" and getattr(before, name) != getattr(after, name)
    ]
    names += [
        name
        for name in TemplateSpec.__struct_fields__
        if getattr(before.spec, name) != getattr(after.spec, name)
    ]
    return tuple(sorted(names))


class InvalidTemplate(RequestError):
    code = "invalid_input"

    def __init__(self, problems: Sequence[FieldProblem]) -> None:
        fields = "; ".join(f"{one.field} {one.detail}" for one in problems[:3])
        more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        super().__init__(f"The template is not valid: {fields}{more}.")
        self.problems = tuple(problems)


def find_template_problems(defined: TemplateDefinition) -> tuple[FieldProblem, ...]:
    """Every invalid field, at most `MAX_TEMPLATE_PROBLEMS`."""
    found = (
        FieldProblem(field=field, detail=detail)
        for check in (
            _check_characters,
            _check_words,
            _check_backend,
            _check_place,
            _check_content,
            _check_network,
            _check_desktop,
            _check_limits,
            _check_times,
            _check_parameters,
            _check_placeholders,
        )
        for field, detail in check(defined)
    )
    return tuple(islice(found, MAX_TEMPLATE_PROBLEMS))


_Found = Iterator[tuple[str, str]]


def _check_characters(defined: TemplateDefinition) -> _Found:
    for path, text in _texts("", msgspec.to_builtins(defined)):
        if _INVALID_CHARS.search(text) is not None:
            yield path, "must not have NUL or surrogate characters"


def _texts(path: str, value: object) -> Iterator[tuple[str, str]]:
    match value:
        case str():
            yield path, value
        case dict():
            for name, inner in msgspec.convert(value, dict[str, object]).items():
                yield from _texts(f"{path}.{name}".removeprefix("."), inner)
        case list() | tuple():
            for at, inner in enumerate(msgspec.convert(value, list[object])):
                yield from _texts(f"{path}[{at}]", inner)
        case _:
            pass


def _check_words(defined: TemplateDefinition) -> _Found:
    if not is_valid_name(defined.name):
        yield "name", "must have 1 to 32 letters and digits, with single - between them"
    for field, text, most in (
        ("display_name", defined.display_name, 100),
        ("description", defined.description, 1000),
        ("icon", defined.icon, 500),
    ):
        if len(text) > most:
            yield field, _DETAIL_OF_MAX.format(most)
    if _size(defined.readme) > MAX_TEMPLATE_README_BYTES:
        yield "readme", f"must have at most {MAX_TEMPLATE_README_BYTES} bytes"


def _check_backend(defined: TemplateDefinition) -> _Found:
    spec, traits = defined.spec, BACKEND_TRAITS.get(defined.backend)
    if traits is None:  # a row that another version wrote
        yield "backend", f"must be one of {', '.join(BACKEND_TRAITS)}"
    elif traits.takes_image:
        if not spec.image:
            yield "spec.image", f"is required: {_its(defined)} are made from an image"
        elif len(spec.image) > 300 or _IMAGE.fullmatch(spec.image) is None:
            yield "spec.image", "must be the name of an image, such as docker.io/library/debian:13"
        if spec.runtime and (len(spec.runtime) > 63 or _RUNTIME.fullmatch(spec.runtime) is None):
            yield "spec.runtime", "must be the name of a runtime, such as runsc"
    else:
        for name, text in (("image", spec.image), ("runtime", spec.runtime)):
            if text:
                yield f"spec.{name}", f"must be empty: {_its(defined)} have none"


def _check_place(defined: TemplateDefinition) -> _Found:
    spec = defined.spec
    if spec.pool and (len(spec.pool) > 32 or _LABEL.fullmatch(spec.pool) is None):
        yield "spec.pool", _LABEL_FORM
    if len(spec.labels) > MAX_LABELS:
        yield "spec.labels", f"must have at most {MAX_LABELS} labels"
    for at, label in enumerate(spec.labels[:MAX_LABELS]):
        if len(label) > 32 or _LABEL.fullmatch(label) is None:
            yield f"spec.labels[{at}]", _LABEL_FORM
    for label in _repeated(spec.labels):
        yield "spec.labels", f"has {label} twice"


def _check_content(defined: TemplateDefinition) -> _Found:
    spec, traits = defined.spec, BACKEND_TRAITS.get(defined.backend)
    reads_host = traits is None or traits.reads_host
    yield from _check_seed(spec.seed)
    if isinstance(spec.seed, DirectorySeed) and not reads_host:
        yield "spec.seed", f"cannot be a directory: {_its(defined)} reach no directory of a host"
    if spec.mounts and not reads_host:
        yield "spec.mounts", f"must be empty: {_its(defined)} reach no directory of a host"
    directory = spec.directory
    if directory.startswith("/") or ".." in directory.split("/") or len(directory) > 500:
        yield "spec.directory", "must be a path inside the home directory"
    if len(spec.mounts) > MAX_MOUNTS:
        yield "spec.mounts", f"must have at most {MAX_MOUNTS} mounts"
    for at, mount in enumerate(spec.mounts[:MAX_MOUNTS]):
        for end in ("source", "target"):
            if not _is_absolute(getattr(mount, end)):
                yield f"spec.mounts[{at}].{end}", "must be an absolute path"
    for target in _repeated(mount.target for mount in spec.mounts):
        yield "spec.mounts", f"has the target {target} twice"
    if _size(spec.startup_script) > MAX_SCRIPT_BYTES:
        yield "spec.startup_script", f"must have at most {MAX_SCRIPT_BYTES} bytes"
    if not 1 <= spec.startup_timeout_s <= MAX_STARTUP_TIMEOUT_S:
        yield "spec.startup_timeout_s", f"must be from 1 to {MAX_STARTUP_TIMEOUT_S} seconds"
    yield from _check_env(spec.env)


def _check_network(defined: TemplateDefinition) -> _Found:
    spec, traits = defined.spec, BACKEND_TRAITS.get(defined.backend)
    if spec.network != "allow":
        if spec.allow:
            yield "spec.allow", 'must be empty: only the network "allow" has named hosts'
        return
    if traits is not None and not traits.names_hosts:
        yield (
            "spec.network",
            f'must be "none" or "full": {_its(defined)} have no proxy that admits named hosts',
        )
    if not spec.allow:
        yield "spec.allow", "must name a host that the workspace may reach"
    if len(spec.allow) > MAX_ALLOWED_HOSTS:
        yield "spec.allow", f"must have at most {MAX_ALLOWED_HOSTS} hosts"
    for at, detail in find_rule_problems(spec.allow):
        yield f"spec.allow[{at}]", detail


def _check_desktop(defined: TemplateDefinition) -> _Found:
    size = defined.spec.desktop_size
    if size and not defined.spec.desktop:
        yield "spec.desktop_size", "must be empty: the template has no desktop"
    width, height = screen_size(replace(defined.spec, desktop=True)) or (0, 0)
    sides = min(width, height) >= MIN_SCREEN_SIDE and max(width, height) <= MAX_SCREEN_SIDE
    if size and (size != f"{width}x{height}" or not sides or width % 2 or height % 2):
        yield (
            "spec.desktop_size",
            f"must be two even numbers from {MIN_SCREEN_SIDE} to {MAX_SCREEN_SIDE}, as in 1280x720",
        )


def _check_seed(seed: Seed) -> _Found:
    match seed:
        case GitSeed(url=url, ref=ref):
            if not url:
                yield "spec.seed.url", "must not be empty"
            elif PLACEHOLDER.search(url) is None and _REPOSITORY.fullmatch(url) is None:
                yield "spec.seed.url", "must be an http(s) or git URL, or the path of a directory"
            if ref.startswith("-"):
                yield "spec.seed.ref", "must not begin with -"
            for name, text in (("url", url), ("ref", ref)):
                if len(text) > 2000:
                    yield f"spec.seed.{name}", _DETAIL_OF_MAX.format(2000)
        case DirectorySeed(path=path):
            if PLACEHOLDER.search(path) is None and not _is_absolute(path):
                yield "spec.seed.path", "must be an absolute path"
        case _:
            pass


def _check_env(env: Mapping[str, str]) -> _Found:
    if len(env) > MAX_ENV_VARIABLES:
        yield "spec.env", f"must have at most {MAX_ENV_VARIABLES} variables"
    if sum(_size(name) + _size(value) for name, value in env.items()) > MAX_ENV_BYTES:
        yield "spec.env", f"must have at most {MAX_ENV_BYTES} bytes"
    for name in env:
        if len(name) > 128 or _VARIABLE.fullmatch(name) is None:
            yield f"spec.env.{name[:128]}", "must be named with letters, digits and _"


def _check_limits(defined: TemplateDefinition) -> _Found:
    limits = defined.spec.limits
    for name in limits.__struct_fields__:
        value: int = getattr(limits, name)
        most = MAX_LIMIT_BYTES if name.endswith("_bytes") else MAX_LIMIT_COUNT
        if name == "cpu_weight":
            most = 10_000
        if not 0 <= value <= most:
            yield f"spec.limits.{name}", f"must be from 0, which is no limit, to {most}"


def _check_times(defined: TemplateDefinition) -> _Found:
    for name in ("default_ttl_s", "activity_bump_s", "max_ttl_s"):
        if not 0 <= getattr(defined, name) <= MAX_TTL_S:
            yield name, f"must be from 0 to {MAX_TTL_S} seconds"


def _check_parameters(defined: TemplateDefinition) -> _Found:
    parameters = defined.parameters
    if len(parameters) > MAX_PARAMETERS:
        yield "parameters", f"must have at most {MAX_PARAMETERS} parameters"
    for at, parameter in enumerate(parameters[:MAX_PARAMETERS]):
        for field, detail in _check_parameter(parameter):
            yield f"parameters[{at}].{field}", detail
    for name in _repeated(parameter.name for parameter in parameters):
        yield "parameters", f"has {name} twice"


def _check_parameter(parameter: Parameter) -> _Found:
    if len(parameter.name) > 64 or _PARAMETER_NAME.fullmatch(parameter.name) is None:
        yield "name", "must begin with a letter or _, then letters, digits and _ . -, at most 64"
    for field, most in (("display_name", 100), ("description", 1000), ("regex_error", 500)):
        if len(getattr(parameter, field)) > most:
            yield field, _DETAIL_OF_MAX.format(most)
    is_regex_valid = True
    for detail in _check_regex(parameter):
        is_regex_valid = False
        yield "regex", detail
    for end in ("min", "max"):
        bound: float | None = getattr(parameter, end)
        if bound is not None and parameter.type != "number":
            yield end, "is for parameters of the type number"
        elif bound is not None and not math.isfinite(bound):
            yield end, "must be a number"
    if parameter.min is not None and parameter.max is not None and parameter.min > parameter.max:
        yield "max", "must not be less than min"
    yield from _check_options(parameter)
    if parameter.default is not None and is_regex_valid:
        detail = check_value(parameter, parameter.default)
        if detail is not None:
            yield "default", f"does not fit the parameter: {detail}"


def _check_regex(parameter: Parameter) -> Iterator[str]:
    if not parameter.regex:
        return
    if parameter.type != "string":
        yield "is for parameters of the type string"
    elif len(parameter.regex) > MAX_REGEX_CHARS:
        yield _DETAIL_OF_MAX.format(MAX_REGEX_CHARS)
    else:
        try:
            re.compile(parameter.regex)
        except (re.error, RecursionError, OverflowError) as error:
            yield f"is not a valid regular expression: {error}"


def _check_options(parameter: Parameter) -> _Found:
    options = parameter.options
    if len(options) > MAX_OPTIONS:
        yield "options", f"must have at most {MAX_OPTIONS} options"
    if options and parameter.type == "bool":
        yield "options", "must be empty for a parameter of the type bool"
    for value in _repeated(option.value for option in options):
        yield "options", f"has the value {value} twice"
    bare = msgspec.structs.replace(parameter, options=())
    for at, option in enumerate(options[:MAX_OPTIONS]):
        if parameter.type == "number" and (detail := check_value(bare, option.value)) is not None:
            yield f"options[{at}].value", detail


def _check_placeholders(defined: TemplateDefinition) -> _Found:
    """Check those of the seed only: in the environment `${HOME}` may be meant for a shell."""
    known = {parameter.name for parameter in defined.parameters}
    for name, text in _texts("", msgspec.to_builtins(defined.spec.seed)):
        for wanted in PLACEHOLDER.findall(text):
            if wanted not in known:
                yield (
                    f"spec.seed.{name}",
                    f"names the parameter {wanted}, which the template does not have",
                )


def _its(defined: TemplateDefinition) -> str:
    return f"{defined.backend} workspaces"


def _is_absolute(path: str) -> bool:
    return path.startswith("/") and ".." not in path.split("/") and len(path) <= 1000


def _repeated(names: Iterable[str]) -> Sequence[str]:
    return [name for name, times in Counter(names).items() if times > 1]


def _size(text: str) -> int:
    return len(text.encode(errors="replace"))


def require_valid(defined: TemplateDefinition) -> None:
    """Raises InvalidTemplate."""
    problems = find_template_problems(defined)
    if problems:
        raise InvalidTemplate(problems)


def can_change(template: Template) -> bool:
    """Only templates that administrators made can be changed here."""
    return template.origin == "user"


def can_delete(template: Template) -> bool:
    """Whether it can be deleted: even one of a settings file that no longer has it."""
    return can_change(template) or (template.origin == "settings" and template.deprecated)
