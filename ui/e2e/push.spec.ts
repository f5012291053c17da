/** Notifications: the browser's part. The push service of its vendor is not asked: its place is taken by the tests. */
import { expectGoodState } from "./everywhere";
import { expect, PageFaults, test } from "./test";

const program = process.env.CHATD_CHROMIUM ?? "/usr/bin/chromium";

test("a push shows a notification of its chat; a later one of the same chat takes its place", async ({ playwright, launchOptions, server, signedIn }) => {
  const browser = await playwright.chromium.launch({ ...launchOptions, executablePath: program });
  const context = await browser.newContext({ baseURL: server.url, storageState: signedIn, reducedMotion: "reduce" });
  const faults = new PageFaults(server.url);
  await faults.watch(context);
  const page = await context.newPage();
  await context.grantPermissions(["notifications"]);
  const client = await context.newCDPSession(page);
  await client.send("ServiceWorker.enable");
  const registered = new Promise<string>((resolve) =>
    client.on("ServiceWorker.workerRegistrationUpdated", ({ registrations }) => {
      if (registrations[0] !== undefined) resolve(registrations[0].registrationId);
    }),
  );
  await page.goto("/settings/notifications");
  await expect(page.getByText("No browser gets notifications.")).toBeVisible();
  await expectGoodState(page, "notifications");
  await page.evaluate(async () => {
    await navigator.serviceWorker.register("/push-worker.js", { scope: "/" });
    await navigator.serviceWorker.ready;
  });
  const registrationId = await registered;
  const origin = new URL(page.url()).origin;
  const push = (data: object) => client.send("ServiceWorker.deliverPushMessage", { origin, registrationId, data: JSON.stringify(data) });
  const shown = () =>
    page.evaluate(async () => {
      const registration = await navigator.serviceWorker.ready;
      return (await registration.getNotifications()).map((one) => `${one.title}: ${one.body} ${(one.data as { url: string }).url}`);
    });
  await push({ title: "<b>Fix</b> the test", body: "Reply complete", event: "turn.finished", tag: "chat-1", url: "/c/1" });
  await expect.poll(shown).toEqual(["<b>Fix</b> the test: Reply complete /c/1"]);
  await push({ title: "Fix the test", body: "Failed", event: "turn.failed", tag: "chat-1", url: "/c/1" });
  await expect.poll(shown).toEqual(["Fix the test: Failed /c/1"]);
  const buttons = () =>
    page.evaluate(async () => {
      const registration = await navigator.serviceWorker.ready;
      const notes = (await registration.getNotifications()) as (Notification & { actions: { title: string }[] })[];
      return notes.map((one) => [one.body, ...one.actions.map((action) => action.title)].join(", "));
    });
  await push({ title: "Fix", body: "Allow execute? git push", event: "turn.needs_action", tag: "chat-1", url: "/c/1?call=c1", answer: "/answer#secret" });
  await expect.poll(buttons).toEqual(["Allow execute? git push, Approve or deny"]);
  await push({ title: "Fix", body: "Allow execute? git push", event: "turn.needs_action", tag: "chat-1", url: "/c/1?call=c1" });
  await expect.poll(buttons).toEqual(["Allow execute? git push"]);
  await faults.check(context);
  await browser.close();
});
