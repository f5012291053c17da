/** What the page weighs. A budget is raised only with a measured reason. */
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { expect, test } from "@playwright/test";

const page = fileURLToPath(new URL("../../src/chatd/page", import.meta.url));
const KB = 1000;
const files = readdirSync(page, { recursive: true, withFileTypes: true })
  .filter((entry) => entry.isFile())
  .map((entry) => join(entry.parentPath, entry.name));
const compressedSize = (path: string): number => gzipSync(readFileSync(path), { level: 9 }).length;
const named = (pattern: RegExp): string[] => {
  const document = readFileSync(join(page, "index.html"), "utf8");
  return [...document.matchAll(pattern)].map((match) => join(page, match[1] ?? ""));
};
const entryScripts = named(/(?:src|href)="(\/assets\/[^"]+\.js)"/g);
const sum = (numbers: readonly number[]): number => numbers.reduce((total, one) => total + one, 0);

test("the first load is small", () => {
  expect(entryScripts.length).toBeGreaterThan(0);
  expect(sum(entryScripts.map(compressedSize)), "scripts of the document, compressed").toBeLessThanOrEqual(190 * KB);
  const styles = named(/href="(\/assets\/[^"]+\.css)"/g);
  expect(sum(styles.map(compressedSize)), "styles of the document, compressed").toBeLessThanOrEqual(16 * KB);
});

test("what is loaded later is small too", () => {
  const later = files.filter((path) => path.endsWith(".js") && !entryScripts.includes(path));
  const large = later.map((path) => [path.slice(page.length), compressedSize(path)] as const).filter(([, size]) => size > 90 * KB);
  expect(large, "scripts above 90 KB, compressed").toEqual([]);
  expect(sum(files.map((path) => statSync(path).size)), "all files").toBeLessThanOrEqual(2500 * KB);
});
