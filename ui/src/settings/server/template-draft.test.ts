import { expect, test } from "vitest";
import {
  bodyOfDraft,
  compareVersions,
  draftOfTemplate,
  duplicateOf,
  envOf,
  factsOf,
  NEW_TEMPLATE,
  newParameter,
  problemOf,
  type TemplateConfig,
} from "./template-draft";

const SPEC: TemplateConfig["spec"] = {
  seed: { kind: "git", url: "https://git.test/a.git", ref: "main", allow_private: true },
  env: { A: " b = c ", EMPTY: "" },
  startup_script: "set -e\nmake\n",
  startup_timeout_s: 12.5,
  limits: { memory_bytes: 1_500_000_000, processes: 7, file_bytes: 0, disk_bytes: 2 ** 31, open_files: 10, cpu_weight: 1 },
  network: "full",
  allow: [],
  mounts: [{ source: "/srv/a", target: "/a" }],
  directory: "shop",
  pool: "gpu",
  labels: ["arm64", "big"],
  image: "debian:13",
  runtime: "runsc",
  desktop: true,
  desktop_size: "1920x1080",
  browser: false,
};

const SHOP: TemplateConfig = {
  id: "1",
  name: "shop",
  display_name: "Shop",
  description: "The shop.",
  icon: "",
  backend: "container",
  origin: "user",
  deprecated: false,
  agents_allowed: false,
  default_ttl_s: 100,
  activity_bump_s: 3600,
  max_ttl_s: 86_401,
  require_active_version: true,
  users: ["ada"],
  groups: ["data", "ops"],
  active_version_id: "2",
  version_number: 2,
  version_count: 3,
  workspace_count: 1,
  pool: "gpu",
  image: "debian:13",
  network: "full",
  desktop: true,
  browser: false,
  missing_packages: [],
  created_at: "2026-11-16T21:30:00Z",
  updated_at: "2026-11-16T21:30:00Z",
  readme: "# Shop\n",
  parameters: [
    { name: "size", type: "number", min: 1, max: 4, default: "2", form_type: "slider", required: false, mutable: true, display_name: "", description: "" },
    {
      name: "kind",
      options: [
        { name: "A kind", value: "a", description: "kept" },
        { name: "b", value: "b" },
      ],
      mutable: false,
    },
  ],
  spec: SPEC,
  is_redacted: false,
};

test("hosts are kept one a line, and sent only with the network that has them", () => {
  const named = { ...SHOP, spec: { ...SPEC, network: "allow" as const, allow: ["github.com", "*.pypi.org"] } };
  const draft = draftOfTemplate(named);
  expect(draft.allow).toBe("github.com\n*.pypi.org");
  expect(bodyOfDraft({ ...draft, allow: " github.com \n\nexample.com:8443" }, named).spec).toMatchObject({ allow: ["github.com", "example.com:8443"] });
  expect(bodyOfDraft({ ...draft, network: "none" }, named).spec).toMatchObject({ network: "none", allow: [] });
});

test("a template that is opened and saved unchanged is the same", () => {
  const body = bodyOfDraft(draftOfTemplate(SHOP), SHOP);
  expect(body.spec).toEqual(SPEC);
  expect(body).toMatchObject({ name: "shop", default_ttl_s: 100, max_ttl_s: 86_401, groups: ["data", "ops"], agents_allowed: false });
  expect(body.parameters?.[0]).toMatchObject(SHOP.parameters[0] ?? {});
  expect(body.parameters?.[1]).toMatchObject(SHOP.parameters[1] ?? {});
});

test("a new template has the server's defaults, and stops when it is unused", () => {
  expect(bodyOfDraft({ ...NEW_TEMPLATE, name: " a " }, null)).toMatchObject({
    name: "a",
    backend: "sandbox",
    default_ttl_s: 28_800,
    spec: { seed: { kind: "empty" }, limits: { memory_bytes: 2 ** 31, file_bytes: 2 ** 30, processes: 512 }, image: "", mounts: [], labels: [] },
  });
});

test("what another backend does not have is not sent", () => {
  const draft = { ...draftOfTemplate(SHOP), backend: "sandbox" as const };
  expect(bodyOfDraft(draft, SHOP).spec).toMatchObject({ image: "", runtime: "", mounts: [{ source: "/srv/a" }] });
  expect(bodyOfDraft({ ...draft, backend: "kubernetes" }, SHOP).spec).toMatchObject({ image: "debian:13", mounts: [] });
});

test.each([
  [{ memory: "lots" }, "Memory: “lots” is no number."],
  [{ idleHours: "" }, "Stops when unused: “” is no number."],
  [{ env: "A=1\nB" }, "“B” is no variable: write NAME=value."],
  [{ mounts: "/srv" }, "“/srv” is no mount: write /path/on/the/host:/path/inside."],
])("a text that cannot be read is named: %o", (change, message) => {
  expect(() => bodyOfDraft({ ...NEW_TEMPLATE, ...change }, null)).toThrow(message);
});

test("a variable keeps the spaces of its value", () => {
  expect(envOf("A= b \n\n  \n C=x=y")).toEqual({ A: " b ", C: "x=y" });
});

test("options are lines with a value and perhaps a name", () => {
  const parameter = { ...newParameter(), name: "p", options: "a\nb = The second" };
  const body = bodyOfDraft({ ...NEW_TEMPLATE, parameters: [parameter] }, null);
  expect(body.parameters?.[0]).toMatchObject({
    default: "",
    options: [
      { name: "a", value: "a" },
      { name: "The second", value: "b" },
    ],
  });
});

test("a copy has a free name of at most 32 characters", () => {
  expect(duplicateOf(SHOP, ["shop"])).toMatchObject({ name: "shop-copy", displayName: "Shop (copy)" });
  expect(duplicateOf(SHOP, ["Shop-Copy", "shop-copy-2"]).name).toBe("shop-copy-3");
  expect(duplicateOf({ ...SHOP, name: "a".repeat(32) }, []).name).toHaveLength(32);
});

test("an error inside a field is shown at the field, and says where", () => {
  const wrong = new Map([
    ["spec.env.1A", "must be named with letters"],
    ["spec.labels[1]", "must have small letters"],
    ["spec.mounts[0].source", "must be an absolute path"],
    ["name", "is wrong"],
  ]);
  expect(problemOf(wrong, "name")).toBe("is wrong");
  expect(problemOf(wrong, "spec.env")).toBe("1A must be named with letters");
  expect(problemOf(wrong, "spec.labels")).toBe("Number 2 must have small letters");
  expect(problemOf(wrong, "spec.mounts")).toBe("Number 1 must be an absolute path");
  expect(problemOf(wrong, "spec")).toBeDefined();
  expect(problemOf(wrong, "pool")).toBeUndefined();
});

test("a template is described in one line", () => {
  expect(factsOf(SHOP)).toBe("Container · pool gpu · full network · desktop · version 2 of 3 · 1 workspace · for ada, data, ops");
});

test("two versions are compared line by line, and what is equal in between is left out", () => {
  const after = { ...SHOP, spec: { ...SPEC, image: "debian:12", env: { A: "x" } }, readme: "# Shop\nNew.\n" };
  const lines = compareVersions(SHOP, after);
  const changed = lines.flatMap((line) => (line === null || line.type === "context" ? [] : [`${line.type} ${line.text}`]));
  expect(changed).toEqual(["del env.A:  b = c ", "add env.A: x", "del image: debian:13", "add image: debian:12", "add   New."]);
  expect(lines.filter((line) => line === null).length).toBeGreaterThan(0);
  expect(compareVersions(SHOP, SHOP)).toEqual([]);
});
