/** A template as its form holds it, and as the server takes it. Numbers are texts here, lists are lines. Pure. */
import type { components } from "@/api/schema";
import { plural } from "@/platform/words";
import { compareLines } from "@/text/compare-lines";
import { type DiffLine, diffTexts } from "@/text/diff";

export type TemplateConfig = components["schemas"]["TemplateConfigReply"];
export type ListedTemplate = components["schemas"]["TemplateConfigItem"];
type TemplateBody = components["schemas"]["CreateTemplateBody"];
type Parameter = components["schemas"]["Parameter"];
export type Backend = NonNullable<TemplateBody["backend"]>;
type Network = ListedTemplate["network"];
type Spec = components["schemas"]["TemplateSpec"];
type Seed = NonNullable<Spec["seed"]>;
type Content = Pick<TemplateConfig, "readme" | "parameters" | "spec">;

export interface ParameterDraft {
  key: number;
  name: string;
  displayName: string;
  description: string;
  type: NonNullable<Parameter["type"]>;
  defaultValue: string;
  hasDefault: boolean;
  required: boolean;
  fixed: boolean;
  options: string;
  regex: string;
  regexError: string;
  min: string;
  max: string;
  /** What the form does not show stays as it was. */
  given: Parameter | null;
}

export interface TemplateDraft {
  name: string;
  displayName: string;
  description: string;
  icon: string;
  readme: string;
  backend: Backend;
  image: string;
  runtime: string;
  pool: string;
  labels: string;
  seed: Seed["kind"];
  gitUrl: string;
  gitRef: string;
  gitPrivate: boolean;
  seedPath: string;
  directory: string;
  env: string;
  script: string;
  scriptSeconds: string;
  mounts: string;
  desktop: boolean;
  desktopSize: string;
  browser: boolean;
  network: Network;
  allow: string;
  memory: string;
  disk: string;
  file: string;
  processes: string;
  openFiles: string;
  cpuWeight: string;
  idleHours: string;
  bumpHours: string;
  maxHours: string;
  requireActive: boolean;
  agentsAllowed: boolean;
  users: string;
  groups: string;
  parameters: readonly ParameterDraft[];
}

const GIB = 2 ** 30;
const HOUR_S = 3600;

const sizes = (limits: components["schemas"]["ResourceLimits"] = {}) => ({
  memory: String((limits.memory_bytes ?? 2 * GIB) / GIB),
  disk: String((limits.disk_bytes ?? 10 * GIB) / GIB),
  file: String((limits.file_bytes ?? GIB) / GIB),
  processes: String(limits.processes ?? 512),
  openFiles: String(limits.open_files ?? 4096),
  cpuWeight: String(limits.cpu_weight ?? 100),
});

const hours = (seconds: number): string => String(Math.round((seconds / HOUR_S) * 1e4) / 1e4);

export const NEW_TEMPLATE: TemplateDraft = {
  ...{ name: "", displayName: "", description: "", icon: "", readme: "" },
  ...{ backend: "sandbox", image: "", runtime: "", pool: "", labels: "" },
  ...{ seed: "empty", gitUrl: "", gitRef: "", gitPrivate: false, seedPath: "", directory: "" },
  ...{ env: "", script: "", scriptSeconds: "300", mounts: "", desktop: false, desktopSize: "", browser: false, network: "none", allow: "" },
  ...sizes(),
  ...{ idleHours: "8", bumpHours: "1", maxHours: "0", requireActive: false, agentsAllowed: true },
  ...{ users: "", groups: "", parameters: [] },
};

export function draftOfTemplate(template: TemplateConfig): TemplateDraft {
  const { spec } = template;
  const seed = spec.seed ?? { kind: "empty" };
  return {
    name: template.name,
    displayName: template.display_name,
    description: template.description,
    icon: template.icon,
    readme: template.readme,
    backend: template.backend as Backend,
    image: spec.image ?? "",
    runtime: spec.runtime ?? "",
    pool: spec.pool ?? "",
    labels: (spec.labels ?? []).join(" "),
    seed: seed.kind,
    gitUrl: seed.kind === "git" ? seed.url : "",
    gitRef: seed.kind === "git" ? (seed.ref ?? "") : "",
    gitPrivate: seed.kind === "git" && seed.allow_private === true,
    seedPath: seed.kind === "directory" ? seed.path : "",
    directory: spec.directory ?? "",
    env: Object.entries(spec.env ?? {})
      .map(([name, value]) => `${name}=${value}`)
      .join("\n"),
    script: spec.startup_script ?? "",
    scriptSeconds: String(spec.startup_timeout_s ?? 300),
    mounts: (spec.mounts ?? []).map((mount) => `${mount.source}:${mount.target}`).join("\n"),
    desktop: spec.desktop === true,
    desktopSize: spec.desktop_size ?? "",
    browser: spec.browser === true,
    network: spec.network ?? "none",
    allow: (spec.allow ?? []).join("\n"),
    ...sizes(spec.limits),
    idleHours: hours(template.default_ttl_s),
    bumpHours: hours(template.activity_bump_s),
    maxHours: hours(template.max_ttl_s),
    requireActive: template.require_active_version,
    agentsAllowed: template.agents_allowed,
    users: template.users.join("\n"),
    groups: template.groups.join("\n"),
    parameters: template.parameters.map(draftOfParameter),
  };
}

/** A copy with a free name: "demo" becomes "demo-copy", then "demo-copy-2". Names have 32 characters at most. */
export function duplicateOf(template: TemplateConfig, taken: readonly string[]): TemplateDraft {
  const used = new Set(taken.map((name) => name.toLowerCase()));
  let name = "";
  for (let count = 1; name === "" || used.has(name.toLowerCase()); count++) {
    const end = count === 1 ? "-copy" : `-copy-${count}`;
    name = template.name.slice(0, 32 - end.length).replace(/-+$/, "") + end;
  }
  const displayName = template.display_name === "" ? "" : `${template.display_name} (copy)`;
  return { ...draftOfTemplate(template), name, displayName };
}

let lastKey = 0;

/** An optional text, empty if it is not given. */
export const newParameter = (): ParameterDraft => draftOfParameter({ name: "", default: "" });

function draftOfParameter(given: Parameter): ParameterDraft {
  return {
    key: ++lastKey,
    name: given.name,
    displayName: given.display_name ?? "",
    description: given.description ?? "",
    type: given.type ?? "string",
    defaultValue: given.default ?? "",
    hasDefault: given.default != null,
    required: given.required === true,
    fixed: given.mutable === false,
    options: (given.options ?? []).map((option) => (option.name === option.value ? option.value : `${option.value} = ${option.name}`)).join("\n"),
    regex: given.regex ?? "",
    regexError: given.regex_error ?? "",
    min: given.min == null ? "" : String(given.min),
    max: given.max == null ? "" : String(given.max),
    given,
  };
}

/** What the server takes. Throws an Error that says which text is no number, variable or mount. */
export function bodyOfDraft(draft: TemplateDraft, given: TemplateConfig | null): TemplateBody {
  return {
    name: draft.name.trim(),
    display_name: draft.displayName.trim(),
    description: draft.description.trim(),
    icon: draft.icon.trim(),
    readme: draft.readme,
    backend: draft.backend,
    agents_allowed: draft.agentsAllowed,
    default_ttl_s: Math.round(numberOf("Stops when unused", draft.idleHours) * HOUR_S),
    activity_bump_s: Math.round(numberOf("Use extends it by", draft.bumpHours) * HOUR_S),
    max_ttl_s: Math.round(numberOf("Stops in any case", draft.maxHours) * HOUR_S),
    require_active_version: draft.requireActive,
    users: linesOf(draft.users),
    groups: linesOf(draft.groups),
    spec: specOf(draft, given?.spec ?? {}),
    parameters: draft.parameters.map(parameterOf),
  };
}

const TAKES_IMAGE: readonly Backend[] = ["container", "kubernetes"];
export const takesImage = (backend: Backend): boolean => TAKES_IMAGE.includes(backend);
/** Whether a proxy can admit the hosts that it names. */
export const namesHosts = (backend: Backend): boolean => backend === "sandbox" || backend === "container";
/** Whether its workspaces see directories of the runner's host. */
export const readsHost = (backend: Backend): boolean => backend !== "kubernetes";

function specOf(draft: TemplateDraft, given: Spec): Spec {
  return {
    ...given,
    seed: seedOf(draft),
    env: envOf(draft.env),
    startup_script: draft.script,
    startup_timeout_s: numberOf("It may take", draft.scriptSeconds),
    limits: {
      ...given.limits,
      memory_bytes: Math.round(numberOf("Memory", draft.memory) * GIB),
      disk_bytes: Math.round(numberOf("Disk", draft.disk) * GIB),
      file_bytes: Math.round(numberOf("One file", draft.file) * GIB),
      processes: numberOf("Processes", draft.processes),
      open_files: numberOf("Open files", draft.openFiles),
      cpu_weight: numberOf("Processor share", draft.cpuWeight),
    },
    desktop: draft.desktop,
    desktop_size: draft.desktop ? draft.desktopSize.trim() : "",
    browser: draft.browser,
    network: draft.network,
    allow: draft.network === "allow" ? linesOf(draft.allow) : [],
    mounts: readsHost(draft.backend) ? linesOf(draft.mounts).map(mountOf) : [],
    directory: draft.directory.trim(),
    pool: draft.pool.trim(),
    labels: draft.labels.split(/[\s,]+/).filter((label) => label !== ""),
    image: takesImage(draft.backend) ? draft.image.trim() : "",
    runtime: takesImage(draft.backend) ? draft.runtime.trim() : "",
  };
}

function seedOf(draft: TemplateDraft): Seed {
  if (draft.seed === "git") return { kind: "git", url: draft.gitUrl.trim(), ref: draft.gitRef.trim(), allow_private: draft.gitPrivate };
  if (draft.seed === "directory") return { kind: "directory", path: draft.seedPath.trim() };
  return { kind: draft.seed };
}

/** NAME=value, one a line. A value keeps its spaces; lines of spaces are left out. */
export function envOf(text: string): Record<string, string> {
  const lines = text.split("\n").filter((line) => line.trim() !== "");
  return Object.fromEntries(
    lines.map((line) => {
      const at = line.indexOf("=");
      if (at < 1) throw new Error(`“${line.trim()}” is no variable: write NAME=value.`);
      return [line.slice(0, at).trim(), line.slice(at + 1)];
    }),
  );
}

function mountOf(line: string): { source: string; target: string } {
  const at = line.indexOf(":");
  if (at < 1) throw new Error(`“${line}” is no mount: write /path/on/the/host:/path/inside.`);
  return { source: line.slice(0, at).trim(), target: line.slice(at + 1).trim() };
}

function parameterOf(draft: ParameterDraft): Parameter {
  const known = new Map((draft.given?.options ?? []).map((option) => [option.value, option]));
  const options = linesOf(draft.options).map((line) => {
    const at = line.indexOf("=");
    const value = (at < 0 ? line : line.slice(0, at)).trim();
    return { ...known.get(value), value, name: at < 0 ? value : line.slice(at + 1).trim() };
  });
  const isNumber = draft.type === "number";
  const isText = draft.type === "string";
  return {
    ...draft.given,
    name: draft.name.trim(),
    display_name: draft.displayName.trim(),
    description: draft.description.trim(),
    type: draft.type,
    default: draft.hasDefault && (draft.defaultValue !== "" || (isText && !draft.required)) ? draft.defaultValue : null,
    required: draft.required,
    mutable: !draft.fixed,
    options: draft.type === "bool" ? [] : options,
    regex: isText ? draft.regex : "",
    regex_error: isText ? draft.regexError : "",
    min: isNumber && draft.min.trim() !== "" ? numberOf("Lowest", draft.min) : null,
    max: isNumber && draft.max.trim() !== "" ? numberOf("Highest", draft.max) : null,
  };
}

function numberOf(label: string, text: string): number {
  const value = text.trim() === "" ? Number.NaN : Number(text);
  if (!Number.isFinite(value)) throw new Error(`${label}: “${text}” is no number.`);
  return value;
}

function linesOf(text: string): string[] {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line !== "");
}

/** What is wrong with a field of the form: errors of the field itself, and of what is inside it, which they name. */
export function problemOf(wrong: ReadonlyMap<string, string>, field: string): string | undefined {
  const own = wrong.get(field);
  if (own !== undefined) return own;
  for (const [path, detail] of wrong) {
    if (path.startsWith(`${field}.`)) return `${path.slice(field.length + 1)} ${detail}`;
    const index = path.startsWith(`${field}[`) ? /^\[(\d+)\]/.exec(path.slice(field.length)) : null;
    if (index !== null) return `Number ${Number(index[1]) + 1} ${detail}`;
  }
  return undefined;
}

// In words

export const BACKENDS: Readonly<Record<Backend, { name: string; words: string }>> = {
  sandbox: { name: "Sandbox", words: "A sandbox on a server or a runner: its own files, processes and account." },
  container: { name: "Container", words: "A container of Docker or Podman on a runner, from an image." },
  kubernetes: { name: "Kubernetes", words: "A pod of a cluster, from an image." },
  machine: { name: "Machine", words: "No isolation: commands run as the user who started the runner." },
};

const NETWORKS: Readonly<Record<Network, string>> = { none: "no network", allow: "named hosts", full: "full network" };

export const ORIGINS: Readonly<Record<ListedTemplate["origin"], string>> = { builtin: "built in", settings: "chatd.toml", user: "" };

/** "Container · pool gpu · no network · version 3 · 2 workspaces" */
export function factsOf(template: ListedTemplate): string {
  const backend = Object.hasOwn(BACKENDS, template.backend) ? BACKENDS[template.backend as Backend].name : template.backend;
  const names = [...template.users, ...template.groups];
  return [
    backend,
    template.pool === "" ? "" : `pool ${template.pool}`,
    NETWORKS[template.network],
    template.desktop ? "desktop" : "",
    template.browser ? "browser" : "",
    `version ${template.version_number}${template.version_count > template.version_number ? ` of ${template.version_count}` : ""}`,
    plural(template.workspace_count, "workspace"),
    names.length === 0 ? "" : `for ${names.length > 3 ? `${names.slice(0, 3).join(", ")} and ${names.length - 3} more` : names.join(", ")}`,
  ]
    .filter((word) => word !== "")
    .join(" · ");
}

export const canChange = (template: ListedTemplate): boolean => template.origin === "user";
export const canDelete = (template: ListedTemplate): boolean => canChange(template) || (template.origin === "settings" && template.deprecated);

/** A version as text, one value a line, so that two of them can be compared. Defaults are there too. */
function textOfVersion({ spec, parameters, readme }: Content): string {
  const lines = Object.entries(spec).flatMap(([name, value]) => valueLines(name, value));
  parameters.forEach((parameter) => lines.push(...valueLines(`parameter ${parameter.name}`, { ...parameter, name: undefined })));
  return [...lines, ...valueLines("readme", readme)].join("\n");
}

function valueLines(path: string, value: unknown): string[] {
  if (value === undefined || value === null || value === "") return [];
  if (Array.isArray(value)) return value.flatMap((item: unknown, at) => valueLines(typeof item === "object" ? `${path} ${at + 1}` : path, item));
  if (typeof value === "object") return Object.entries(value).flatMap(([name, inner]) => valueLines(`${path}.${name}`, inner));
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.includes("\n") ? [`${path}:`, ...text.split("\n").map((line) => `  ${line}`)] : [`${path}: ${text}`];
}

const CONTEXT = 2;

/** The changed lines of two versions with a few lines around them; null stands for what is left out between. */
export function compareVersions(before: Content, after: Content): (DiffLine | null)[] {
  const lines = diffTexts(textOfVersion(before), textOfVersion(after), compareLines);
  const kept = new Set(lines.flatMap((line, at) => (line.type === "context" ? [] : Array.from({ length: 2 * CONTEXT + 1 }, (_, step) => at + step - CONTEXT))));
  const shown: (DiffLine | null)[] = [];
  lines.forEach((line, at) => {
    if (kept.has(at)) shown.push(line);
    else if (shown.length > 0 && shown.at(-1) !== null) shown.push(null);
  });
  return shown.at(-1) === null ? shown.slice(0, -1) : shown;
}
