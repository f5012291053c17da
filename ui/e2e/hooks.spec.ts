/** Hooks: an administrator adds one, sees its secret once, tries it, and deletes it. */
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { expectGoodState } from "./everywhere";
import { expect, test } from "./test";

test("an administrator adds a hook, copies its secret, tries it and deletes it", async ({ page, faults }) => {
  faults.expect(/status of 400/);
  const asked: string[] = [];
  const receiver = createServer((request, reply) => {
    asked.push(request.headers["webhook-signature"] as string);
    reply.end('{"decision": "ask", "reason": "Look first."}');
  });
  await new Promise<void>((resolve) => receiver.listen(0, "127.0.0.1", resolve));
  const port = (receiver.address() as AddressInfo).port;
  try {
    await page.goto("/admin/hooks");
    await expect(page.getByText("No hooks. Chats ask nobody but the tool policy.")).toBeVisible();
    await expectGoodState(page, "no hooks");
    await page.getByRole("button", { name: "Add a hook" }).click();
    const form = page.getByRole("dialog");
    await form.getByLabel("Name").fill("Command policy");
    await form.getByLabel("Address").fill("ftp://x");
    await form.getByLabel("After a tool call").check();
    await form.getByRole("button", { name: "Add", exact: true }).click();
    await expect(form).toContainText("must be an absolute http or https URL");
    await expectGoodState(page, "a hook with a wrong address");
    await form.getByLabel("Address").fill(`http://127.0.0.1:${port}/ask`);
    await form.getByRole("button", { name: "Add", exact: true }).click();
    await expect(page.getByRole("dialog")).toContainText("It is not shown again");
    await expect(page.getByRole("dialog").locator("code")).toContainText("whsec_");
    await page.getByRole("button", { name: "Done" }).click();
    await expect(page.getByText("before a tool call, after a tool call")).toBeVisible();
    await page.getByRole("button", { name: "Test" }).click();
    await expect(page.getByText("Set hooks.private_addresses to allow it.")).toBeVisible();
    expect(asked).toEqual([]);
    await expectGoodState(page, "a hook that was refused");
    await page.getByRole("button", { name: "Edit Command policy" }).click();
    await page.getByRole("button", { name: "Delete" }).click();
    await page.getByRole("dialog", { name: "Delete Command policy?" }).getByRole("button", { name: "Delete" }).click();
    await expect(page.getByText("No hooks. Chats ask nobody but the tool policy.")).toBeVisible();
  } finally {
    receiver.close();
  }
});
