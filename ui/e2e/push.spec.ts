/** Notifications: the browser's part. The push service of its vendor is not asked: its place is taken by the tests. */
import { expectGoodState } from "./everywhere";
import { expect, test } from "./test";

test("a push shows a notification of its chat; a later one of the same chat takes its place", async ({ page, context }) => {
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
});
