/** Draws the PNG icons of the installed page from public/icon.svg, with Chromium. Run it when the mark changes: node tools/make-icons.mjs */
import { readFile, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { chromium } from "@playwright/test";

const directory = fileURLToPath(new URL("../public/", import.meta.url));
const mark = await readFile(`${directory}icon.svg`, "utf8");
/** A maskable icon fills its square, with the mark in the safe zone of 80 %. */
const maskable = mark
  .replace('rx="5"', "")
  .replace('viewBox="0 0 20 20"', 'viewBox="-2.5 -2.5 25 25"')
  .replace('<rect width="20" height="20"', '<rect x="-2.5" y="-2.5" width="25" height="25"');
const icons = [
  ["icon-192.png", mark, 192],
  ["icon-512.png", mark, 512],
  ["icon-maskable-512.png", maskable, 512],
  ["apple-touch-icon.png", maskable, 180],
];

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu"] });
for (const [name, svg, size] of icons) {
  const page = await browser.newPage({ viewport: { width: size, height: size } });
  await page.setContent(`<style>html, body { margin: 0; background: transparent } svg { display: block; width: 100vw; height: 100vh }</style>${svg}`);
  await writeFile(`${directory}${name}`, await page.screenshot({ omitBackground: true }));
  await page.close();
}
await browser.close();
