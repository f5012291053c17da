/** The terminal of the panel, as its user types and reads. */
import { expect, type Page } from "@playwright/test";

const shown = ".terminal-view:not([hidden])";

/** Until its shell asks for a command: what is typed before that has nowhere to go. */
export async function openTerminal(page: Page): Promise<void> {
  await page.getByRole("tab", { name: /^Terminal/ }).click();
  await page.getByRole("button", { name: "Open a terminal" }).click();
  await expect(page.locator(`${shown} .xterm-rows`)).toContainText("$");
}

/** Types a command, and waits for what it writes. The command itself must not contain that. */
export async function runInTerminal(page: Page, command: string, output: string): Promise<void> {
  await page.locator(`${shown} textarea`).focus();
  await page.keyboard.type(command);
  await page.keyboard.press("Enter");
  await expect(page.locator(`${shown} .xterm-rows`)).toContainText(output);
}
