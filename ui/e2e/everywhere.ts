/** Light and dark, on a desktop and on a phone. */
import { expect, type Page } from "@playwright/test";
import { DESKTOP, expectAccessible, PHONE } from "./test";

/** Nothing is wider than the window, but what scrolls by itself. */
async function expectNoSidewaysScroll(page: Page): Promise<void> {
  const overflow = () => page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  await expect.poll(overflow, { message: `pixels beyond the window: ${page.url()}` }).toBeLessThanOrEqual(0);
}

/** Colours change at once: an inherited one would change a frame later at each level. */
function stopTransitions(): void {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync("*, *::before, *::after { transition: none !important; }");
  document.adoptedStyleSheets.push(sheet);
}

type Theme = "dark" | "light";

async function expectGoodAt(page: Page, state: string, device: "phone" | "desktop", themes: readonly Theme[]): Promise<void> {
  await page.setViewportSize(device === "phone" ? PHONE : DESKTOP);
  await expectNoSidewaysScroll(page);
  for (const colorScheme of themes) {
    await page.emulateMedia({ colorScheme });
    await page.evaluate(() => new Promise(requestAnimationFrame));
    await expectAccessible(page, `${state}, ${device}, ${colorScheme}`);
  }
}

/** The page as it is, in both themes and on both devices. */
export async function expectGoodEverywhere(page: Page, state = page.url()): Promise<void> {
  await page.evaluate(stopTransitions);
  await expectGoodAt(page, state, "phone", ["dark", "light"]);
  await expectGoodAt(page, state, "desktop", ["dark", "light"]);
}

/** A state within a test: each theme and each device once; with CHATD_SLOW=1 all of them. */
export async function expectGoodState(page: Page, state: string): Promise<void> {
  if (process.env.CHATD_SLOW === "1") return expectGoodEverywhere(page, state);
  await page.evaluate(stopTransitions);
  await expectGoodAt(page, state, "phone", ["dark"]);
  await expectGoodAt(page, state, "desktop", ["light"]);
}
