import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";

/** Areas of the page, the shared parts (`ui`), colours of words (`tone`), and states of another class (`is`). */
const PREFIXES =
  "app ask audit changes code composer debug demo desktop diff files is markdown mcp panel policy preview projects runs settings shared sidebar signin terminal timeline tone tool ui usage workspace".split(
    " ",
  );
const SOURCES = join(import.meta.dirname, "..");
const read = (directory: string, ending: RegExp): string =>
  readdirSync(directory, { recursive: true, encoding: "utf8" })
    .filter((name) => ending.test(name))
    .map((name) => readFileSync(join(directory, name), "utf8"))
    .join("\n");

const styles = read(import.meta.dirname, /\.css$/).replaceAll(/\/\*.*?\*\/|url\(.*?\)/gs, "");
const selectors = [...styles.matchAll(/([^{};]*)\{/g)].map(([, selector]) => selector ?? "").join(" ");
const styled = new Set([...selectors.matchAll(/\.([a-z][\w-]*)/g)].map(([, name]) => name ?? ""));
const components = read(SOURCES, /(?<!\.test)\.tsx?$/);

describe("classes", () => {
  it("begin with their area", () => {
    const others = [...styled].filter((name) => !PREFIXES.some((prefix) => name.startsWith(`${prefix}-`)));
    expect(others).toEqual([]);
  });

  it("that have rules are used", () => {
    // A class made of a value (`is-${size}`) counts by its beginning.
    const isUsed = (name: string): boolean =>
      new RegExp(`(?<![\\w-])${name}(?![\\w-])`).test(components) ||
      Array.from(name, (_, at) => `${name.slice(0, at)}\${`).some((made, at) => at > 2 && components.includes(made));
    expect([...styled].filter((name) => !isUsed(name))).toEqual([]);
  });

  it("that elements have are of an area too", () => {
    const given = [...components.matchAll(/className="([^"]*)"/g)].flatMap(([, names]) => (names ?? "").split(" "));
    expect(given.filter((name) => !PREFIXES.some((prefix) => name.startsWith(`${prefix}-`)))).toEqual([]);
  });
});
