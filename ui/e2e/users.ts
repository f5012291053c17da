/** Other users than the administrator, each in a browser of their own. */
import { type Browser, expect, type Page } from "@playwright/test";
import { ChatScreen } from "./chat-screen";
import type { ChatdServer } from "./chatd-server";
import { PageFaults } from "./test";

export interface User {
  readonly id: string;
  readonly username: string;
}

export const PASSWORD = "correct horse battery";

export const createUser = (server: ChatdServer, username: string): Promise<User> =>
  server.api<User>("POST", "/users", { username, role: "member", password: PASSWORD });

const faultsOf = new WeakMap<Page, PageFaults>();

/** `provoked`: the faults that the test causes. */
export async function openAs(browser: Browser, server: ChatdServer, user: User, ...provoked: RegExp[]): Promise<Page> {
  const context = await browser.newContext({ baseURL: server.url, reducedMotion: "reduce" });
  const faults = new PageFaults(server.url);
  for (const fault of provoked) faults.expect(fault);
  await faults.watch(context);
  const page = await context.newPage();
  faultsOf.set(page, faults);
  await page.request.post("/api/v1/auth/login", { data: { username: user.username, password: PASSWORD }, failOnStatusCode: true });
  await page.goto("/");
  await expect(new ChatScreen(page).box).toBeVisible();
  return page;
}

/** Ends the browser, after a look at what went wrong in it. */
export async function signOut(page: Page): Promise<void> {
  await faultsOf.get(page)?.check(page.context());
  await page.context().close();
}
