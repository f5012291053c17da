/**
 * What every test of the page has: a server and a signed-in page that the tests of a worker share,
 * and rules that always hold. Nothing is loaded from elsewhere, the content policy refuses nothing,
 * no script throws, and nothing that a model, a tool or a user wrote runs.
 *
 * A new browser context costs the processor five times what another load of the same page does. A test
 * that changes its context for good (cookies, scripts at the start, service workers) asks for its own
 * with `test.use({ ownContext: true })`.
 */
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { type BrowserContext, type Page, test as base, expect } from "@playwright/test";
import { ChatScreen } from "./chat-screen";
import { ChatdServer } from "./chatd-server";

export const DESKTOP = { width: 1280, height: 800 };
export const PHONE = { width: 390, height: 844 };

declare global {
  interface Window {
    /** Set by hostile content, if it ever runs. */
    hostile?: unknown;
    refusedByPolicy: string[];
  }
}

/** Faults of the pages of a context, in the order in which they were seen. */
export class PageFaults {
  readonly found: string[] = [];
  private expected: RegExp[] = [];

  constructor(private readonly origin: string) {}

  /** A fault that the test provokes. */
  expect(fault: RegExp): void {
    this.expected.push(fault);
  }

  /** What the test before has seen is forgotten. */
  clear(): void {
    this.found.length = 0;
    this.expected = [];
  }

  async watch(context: BrowserContext): Promise<void> {
    // Watched and not routed: routes turn the browser's cache off. Names of other hosts are not resolved.
    context.on("request", (request) => {
      const url = new URL(request.url());
      if (url.origin !== this.origin && !["data:", "blob:"].includes(url.protocol)) this.found.push(`request to ${url.href}`);
    });
    await context.exposeBinding("reportRefusal", (_source, text: string) => this.found.push(`content policy: ${text}`));
    await context.addInitScript(() => {
      const report = (window as unknown as { reportRefusal: (text: string) => void }).reportRefusal;
      document.addEventListener("securitypolicyviolation", (event) =>
        report(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`),
      );
    });
    context.on("weberror", (error) => this.found.push(`error: ${error.error().stack ?? error.error().message}`));
    context.on("page", (page) => {
      page.on("console", (message) => {
        if (message.type() === "error") this.found.push(`console: ${message.text()}`);
      });
    });
  }

  async check(context: BrowserContext): Promise<void> {
    for (const page of context.pages()) {
      if (page.url().startsWith(this.origin)) expect(await page.evaluate(() => window.hostile)).toBeUndefined();
    }
    expect(this.found.filter((fault) => !this.expected.some((one) => one.test(fault)))).toEqual([]);
  }
}

interface SharedPage {
  readonly context: BrowserContext;
  readonly page: Page;
  readonly faults: PageFaults;
}

interface WorkerFixtures {
  server: ChatdServer;
  /** Cookies of the administrator. */
  signedIn: Awaited<ReturnType<BrowserContext["storageState"]>>;
  sharedPage: SharedPage;
}

interface TestFixtures {
  ownContext: boolean;
  faults: PageFaults;
  chat: ChatScreen;
}

const OPTIONS = { viewport: DESKTOP, colorScheme: "light", locale: "en-GB", timezoneId: "UTC", reducedMotion: "reduce" } as const;

export const test = base.extend<TestFixtures, WorkerFixtures>({
  server: [
    // eslint-disable-next-line no-empty-pattern
    async ({}, use) => {
      const server = new ChatdServer();
      try {
        await server.start();
        await use(server);
      } finally {
        await server.dispose();
      }
    },
    { scope: "worker", timeout: 90_000 },
  ],
  signedIn: [
    async ({ server, browser }, use) => {
      const context = await browser.newContext();
      await signIn(await context.newPage(), server);
      await use(await context.storageState());
      await context.close();
    },
    { scope: "worker", timeout: 60_000 },
  ],
  sharedPage: [
    async ({ server, browser, signedIn }, use) => {
      const context = await browser.newContext({ ...OPTIONS, baseURL: server.url, storageState: signedIn });
      const faults = new PageFaults(server.url);
      await faults.watch(context);
      await use({ context, page: await context.newPage(), faults });
      await context.close();
    },
    { scope: "worker", timeout: 60_000 },
  ],
  ownContext: [false, { option: true }],
  baseURL: async ({ server }, use) => use(server.url),
  faults: async ({ server, sharedPage, ownContext }, use) => use(ownContext ? new PageFaults(server.url) : sharedPage.faults),
  chat: async ({ page }, use) => use(new ChatScreen(page)),
  context: async ({ browser, contextOptions, server, viewport, signedIn, faults, sharedPage, ownContext }, use) => {
    if (!ownContext) {
      faults.clear();
      await use(sharedPage.context);
      await faults.check(sharedPage.context);
      await leaveAsFound(sharedPage, server);
      return;
    }
    const context = await browser.newContext({ ...OPTIONS, ...contextOptions, baseURL: server.url, viewport, storageState: signedIn });
    await faults.watch(context);
    await use(context);
    await faults.check(context);
    await context.close();
  },
  page: async ({ context, sharedPage, viewport, ownContext }, use) => {
    if (ownContext) return use(await context.newPage());
    const { page } = sharedPage;
    await page.setViewportSize(viewport ?? DESKTOP);
    await page.emulateMedia({ colorScheme: OPTIONS.colorScheme });
    await use(page);
  },
});

/** The next test finds a signed-in browser that remembers nothing else. */
async function leaveAsFound({ context, page }: SharedPage, server: ChatdServer): Promise<void> {
  for (const other of context.pages()) if (other !== page) await other.close();
  await context.unrouteAll({ behavior: "ignoreErrors" });
  await page.unrouteAll({ behavior: "ignoreErrors" });
  await context.clearPermissions();
  await context.setOffline(false);
  // A file of the server: its origin, without the page, which would write as it is left.
  await page.goto("/theme.js");
  await page.evaluate(() => {
    localStorage.clear();
    sessionStorage.clear();
  });
  const client = await context.newCDPSession(page);
  await client.send("Storage.clearDataForOrigin", { origin: server.url, storageTypes: "indexeddb,cache_storage" });
  await client.detach();
}

export { expect } from "@playwright/test";

/** By a one-time link, as an administrator gets it. */
export async function signIn(page: Page, server: ChatdServer, user = "admin"): Promise<void> {
  const link = new URL(await server.admin("sign-in-link", "--user", user));
  await page.goto(`${server.url}${link.pathname}${link.hash}`);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.waitForURL((url) => !url.pathname.startsWith("/sign-in"));
}

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];

/** Fails if the page, as it is now, violates a rule of accessibility. The test goes on. */
export async function expectAccessible(page: Page, state = page.url()): Promise<void> {
  if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(axe);
  const violations = await page.evaluate(async (tags) => {
    const { axe } = window as unknown as { axe: typeof import("axe-core") };
    const result = await axe.run(document, { runOnly: { type: "tag", values: tags }, resultTypes: ["violations"] });
    return result.violations.flatMap((one) => one.nodes.map((node) => `${one.id}: ${node.target.join(" ")}: ${node.failureSummary ?? ""}`));
  }, rules);
  expect.soft(violations, state).toEqual([]);
}
