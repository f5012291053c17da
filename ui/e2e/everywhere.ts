/** Light and dark, on a desktop and on a phone. */
import { expect, type Page } from "@playwright/test";
import { expectAccessible } from "./test";

/** Nothing is wider than the window, but what scrolls by itself. */
async function expectNoSidewaysScroll(page: Page): Promise<void> {
  const overflow = () => page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  await expect.poll(overflow, { message: `pixels beyond the window: ${page.url()}` }).toBeLessThanOrEqual(0);
}

export const DESKTOP = { width: 1280, height: 800 };
export const PHONE = { width: 390, height: 844 };

/** Colours change at once: an inherited one would change a frame later at each level. */
function stopTransitions(): void {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync("*, *::before, *::after { transition: none !important; }");
  document.adoptedStyleSheets.push(sheet);
}

/** The page as it is, in both themes and on both devices. */
export async function expectGoodEverywhere(page: Page, state = page.url()): Promise<void> {
  await page.evaluate(stopTransitions);
  for (const [device, viewport] of [["phone", PHONE], ["desktop", DESKTOP]] as const) {
    await page.setViewportSize(viewport);
    await expectNoSidewaysScroll(page);
    for (const colorScheme of ["dark", "light"] as const) {
      await page.emulateMedia({ colorScheme });
      await page.evaluate(() => new Promise(requestAnimationFrame));
      await expectAccessible(page, `${state}, ${device}, ${colorScheme}`);
    }
  }
}
