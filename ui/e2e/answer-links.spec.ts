/** A notification of a call that waits: it leads to the card of the call, and its link answers the call once. */
import { createHash } from "node:crypto";
import type { ChatdServer } from "./chatd-server";
import { expectGoodEverywhere, expectGoodState } from "./everywhere";
import { expect, PageFaults, PHONE, test } from "./test";

const SECRET = "A".repeat(43);

/** As the sender of notifications makes it, but for the secret. */
async function linkCall(server: ChatdServer, chatId: string): Promise<void> {
  const digest = createHash("sha256").update(`answer link:${SECRET}`).digest("hex");
  await server.execute(
    `INSERT INTO answer_links (id, chat_id, tool_call_id, user_id, fingerprint, secret_sha256, expires_at)
     SELECT gen_random_uuid(), c.id, p ->> 'id', c.owner_id,
       encode(sha256(convert_to(concat_ws(':', c.turn_message_id, p ->> 'id', p ->> 'name', (p -> 'args')::text), 'UTF8')), 'hex'),
       '\\x${digest}', now() + interval '1 hour'
     FROM chats c, json_array_elements(c.pending_calls::json) p WHERE c.id = '${chatId}' AND p ->> 'asks' = 'approval'`,
  );
}

test("a notification leads to the card of its call, and its link approves it once without a session", async ({ page, chat, server, browser }) => {
  await server.api("PATCH", "/settings", { answer_links: true });
  await server.api("PUT", "/settings/me/tool-policy", { rules: [{ tool: "execute", action: "ask", reason: "Commands need a look." }] });
  await chat.begin("ask me first");
  const form = page.getByRole("region", { name: "Question" });
  await form.getByRole("radio").first().check({ force: true });
  await form.getByRole("button", { name: "Answer" }).click();
  const card = page.getByRole("region", { name: /Approval/ });
  await expect(card).toBeVisible();
  const id = chat.id;
  const { action } = await server.api<{ action: { calls: number } }>("GET", `/chats/${id}`);
  expect(action.calls).toBe(1);
  await linkCall(server, id);

  const faults = new PageFaults(server.url);
  const phone = await browser.newContext({ baseURL: server.url, viewport: PHONE, reducedMotion: "reduce", locale: "en-GB", timezoneId: "UTC" });
  await faults.watch(phone);
  const small = await phone.newPage();
  const sent: string[] = [];
  small.on("request", (request) => sent.push(`${request.method()} ${request.url()}`));
  await small.goto(`/answer#${SECRET}`);
  await expect(small.getByRole("heading", { name: "Allow execute?" })).toBeFocused();
  await expect(small.getByText("Commands need a look.")).toBeVisible();
  await expectGoodEverywhere(small, "the call of a link");
  await small.setViewportSize(PHONE);
  const path = (await small.getByRole("link", { name: "Open the chat" }).getAttribute("href")) ?? "";
  expect(path).toMatch(new RegExp(`^/c/${id}\\?call=`));

  await page.setViewportSize(PHONE);
  await page.goto("/settings/general");
  await page.goto(path);
  await expect(card).toBeFocused();
  await expect(card).toBeInViewport();
  await expectGoodState(page, "the card of a notification");

  await small.getByRole("button", { name: "Approve" }).click();
  await expect(small.getByRole("heading", { name: /^This call was approved/ })).toBeFocused();
  await expect(small.getByRole("button")).toHaveCount(0);
  await expectGoodEverywhere(small, "a call that was answered");
  expect(
    sent.filter((line) => line.includes(SECRET)),
    "addresses with the secret",
  ).toEqual([]);
  await expect(chat.log).toContainText("The command ran once");
  await small.reload();
  await expect(small.getByRole("heading", { name: /^This call was approved/ })).toBeVisible();
  faults.expect(/status of 404/);
  await small.goto("/answer#wrong");
  await small.reload();
  await expect(small.getByRole("alert")).toContainText("There is nothing under this link");
  await faults.check(phone);
  await phone.close();
  await chat.waitUntilIdle();
  await server.api("PUT", "/settings/me/tool-policy", { rules: [] });
});
