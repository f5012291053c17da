/** What the page weighs. A budget is raised only with a measured reason. */
import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { basename, join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "@playwright/test";

const page = fileURLToPath(new URL("../../src/chatd/page", import.meta.url));
const KB = 1000;
const files = readdirSync(page, { recursive: true, withFileTypes: true })
  .filter((entry) => entry.isFile())
  .map((entry) => join(entry.parentPath, entry.name));
const document = join(page, "index.html");
const content = (path: string): string => readFileSync(path, "utf8");
const named = (pattern: RegExp): string[] => [...content(document).matchAll(pattern)].map((match) => join(page, match[1] ?? ""));
const entryScripts = named(/(?:src|href)="(\/assets\/[^"]+\.js)"/g);
const styles = named(/href="(\/assets\/[^"]+\.css)"/g);
const sum = (numbers: readonly number[]): number => numbers.reduce((total, one) => total + one, 0);
const assets = (name: RegExp): string[] => files.filter((path) => name.test(basename(path)));

/** As the server sends it to a browser. */
const sentSize = (path: string): number => statSync(existsSync(`${path}.br`) ? `${path}.br` : path).size;

/** Scripts with all that they import. */
function withImports(paths: readonly string[]): string[] {
  const found = new Set<string>();
  const visit = (path: string): void => {
    if (found.has(path)) return;
    found.add(path);
    for (const [, name] of content(path).matchAll(/(?:from|import)\s*"\.\/([^"]+\.js)"/g)) visit(join(page, "assets", name ?? ""));
  };
  paths.forEach(visit);
  return [...found];
}

test("the first load is small", () => {
  expect(entryScripts.length).toBeGreaterThan(0);
  expect(sum(entryScripts.map(sentSize)), "scripts of the document").toBeLessThanOrEqual(140 * KB);
  expect(sum(styles.map(sentSize)), "styles of the document").toBeLessThanOrEqual(15 * KB);
});

test("a chat is there after 230 KB: document, styles, scripts and the font of its words", () => {
  const areas = assets(/^(?:timeline|composer)-.*\.js$/);
  const font = assets(/^inter-basic-.*\.woff2$/);
  expect([areas.length, font.length]).toEqual([2, 1]);
  const fetched = [document, join(page, "theme.js"), ...styles, ...font, ...withImports([...entryScripts, ...areas])];
  expect(sum(fetched.map(sentSize)), fetched.map((path) => `${basename(path)} ${sentSize(path)}`).join("\n")).toBeLessThanOrEqual(230 * KB);
});

test("what is loaded later is small too", () => {
  const later = assets(/\.js$/).filter((path) => !entryScripts.includes(path));
  const large = later.map((path) => [basename(path), sentSize(path)] as const).filter(([, size]) => size > 80 * KB);
  expect(large, "scripts above 80 KB, compressed").toEqual([]);
  // 190 KB of it is noVNC, which only the desktop of a workspace loads.
  const built = files.filter((path) => !/\.(?:br|gz)$/.test(path));
  expect(sum(built.map((path) => statSync(path).size)), "all files, as they are without compression").toBeLessThanOrEqual(2260 * KB);
  expect(sum(files.map((path) => statSync(path).size)), "all files, in the package").toBeLessThanOrEqual(3350 * KB);
});
