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
const named = (pattern: RegExp, from = document): string[] => [...content(from).matchAll(pattern)].map((match) => join(page, match[1] ?? ""));
const entryScripts = named(/(?:src|href)="(\/assets\/[^"]+\.js)"/g);
const styles = named(/href="(\/assets\/[^"]+\.css)"/g);
const sum = (numbers: readonly number[]): number => numbers.reduce((total, one) => total + one, 0);
const assets = (name: RegExp): string[] => files.filter((path) => name.test(basename(path)));

/** As the server sends it to a browser. */
const sentSize = (path: string): number => statSync(existsSync(`${path}.br`) ? `${path}.br` : path).size;

/** Scripts with all that they import; also with what they load later. */
function withImports(paths: readonly string[], isLater = false): string[] {
  const found = new Set<string>();
  const visit = (path: string): void => {
    if (found.has(path)) return;
    found.add(path);
    for (const [, name] of content(path).matchAll(/(?:from|import)\s*"\.\/([^"]+\.js)"/g)) visit(join(page, "assets", name ?? ""));
    if (!isLater) return;
    for (const [, name] of content(path).matchAll(/import\(\s*["'`]\.\/([^"'`]+\.js)/g)) visit(join(page, "assets", name ?? ""));
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
  const areas = assets(/^(?:timeline|composer)-(?!definition).*\.js$/);
  const font = assets(/^inter-basic-.*\.woff2$/);
  expect([areas.length, font.length]).toEqual([2, 1]);
  const fetched = [document, join(page, "theme.js"), ...styles, ...font, ...withImports([...entryScripts, ...areas])];
  expect(sum(fetched.map(sentSize)), fetched.map((path) => `${basename(path)} ${sentSize(path)}`).join("\n")).toBeLessThanOrEqual(230 * KB);
});

test("what is loaded later is small too", () => {
  const first = withImports(entryScripts, true);
  // Mermaid, in a frame of its own that only a chat with a diagram opens: of its hundred files a diagram loads about twelve.
  const drawing = withImports(named(/(?:src|href)="(\/assets\/[^"]+\.js)"/g, join(page, "diagram.html")), true).filter((path) => !first.includes(path));
  expect(drawing.length).toBeGreaterThan(20);
  expect(sum(drawing.map((path) => statSync(path).size)), "what draws diagrams, without compression").toBeLessThanOrEqual(3300 * KB);
  expect(
    sum(drawing.flatMap((path) => [`${path}.br`, `${path}.gz`]).map((path) => (existsSync(path) ? statSync(path).size : 0))),
    "what draws diagrams, compressed",
  ).toBeLessThanOrEqual(1900 * KB);
  const later = assets(/\.js$/).filter((path) => !entryScripts.includes(path) && !drawing.includes(path));
  const large = later.map((path) => [basename(path), sentSize(path)] as const).filter(([, size]) => size > 80 * KB);
  expect(large, "scripts above 80 KB, compressed").toEqual([]);
  // 190 KB of it is noVNC, which only the desktop of a workspace loads; 620 KB is KaTeX, half of it fonts, for chats with formulas.
  const other = files.filter((path) => !drawing.includes(path.replace(/\.(?:br|gz)$/, "")));
  const built = other.filter((path) => !/\.(?:br|gz)$/.test(path));
  expect(sum(built.map((path) => statSync(path).size)), "all other files, as they are without compression").toBeLessThanOrEqual(2950 * KB);
  expect(sum(other.map((path) => statSync(path).size)), "all other files, in the package").toBeLessThanOrEqual(4300 * KB);
});
