import { existsSync } from "node:fs";
import { defineConfig } from "@playwright/test";

/** Debian's Chromium, which shows notifications; most tests run in the cheaper one without windows. */
const chromium = process.env.CHATD_CHROMIUM ?? "/usr/bin/chromium";
const headless = process.env.CHATD_HEADLESS ?? "/usr/bin/chromium-headless-shell";
const executablePath = existsSync(headless) ? headless : chromium;
const args = [
  // It does not work for root.
  ...(process.getuid?.() === 0 ? ["--no-sandbox"] : []),
  "--disable-gpu",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--host-resolver-rules=MAP 192.0.2.7 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost, EXCLUDE *.localhost",
];

export default defineConfig({
  testDir: "e2e",
  testMatch: "*.spec.ts",
  outputDir: "test-results",
  fullyParallel: false,
  forbidOnly: true,
  // One more than there are cores: a worker waits for its server now and then.
  workers: 3,
  // A busy machine is slow: a test waits for events, and this is only where it gives up.
  timeout: 120_000,
  expect: { timeout: 30_000 },
  retries: process.env.CHATD_RETRY === "1" ? 1 : 0,
  reporter: [["list"]],
  use: {
    browserName: "chromium",
    headless: true,
    launchOptions: { executablePath, args },
    viewport: { width: 1280, height: 800 },
    screenshot: "only-on-failure",
    trace: "off",
  },
});
