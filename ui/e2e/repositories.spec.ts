/** Connections to repositories: an administrator adds one, sees the webhook's address and secret once, an event arrives, and it is deleted. */
import { createHmac } from "node:crypto";
import { expectGoodState } from "./everywhere";
import { expect, test } from "./test";

const TEMPLATE = {
  name: "repository-app",
  spec: { network: "allow", allow: ["private:127.0.0.1:9"] },
  parameters: [{ name: "repository" }],
};

test("an administrator connects a git host, an event arrives, and the connection is deleted", async ({ page, server, faults }) => {
  faults.expect(/status of 400/);
  await page.goto("/admin/repositories");
  await expect(page.getByText("No connections. Nothing on a git host starts a chat.")).toBeVisible();
  await expectGoodState(page, "no connections");
  await server.api("POST", "/template-configs", TEMPLATE);
  await page.reload();
  await page.getByRole("button", { name: "Add a connection" }).click();
  const form = page.getByRole("dialog");
  await form.getByLabel("Name").fill("Our GitHub");
  // Nothing is sent there: it is not public.
  await form.getByLabel("Address").fill("https://127.0.0.1:9");
  await form.getByLabel("Token").fill("github_pat_A1b2C3d4");
  await form.getByLabel("Repositories").fill("acme/*\n*");
  await form.getByLabel("Template").selectOption({ label: "repository-app" });
  await form.getByRole("button", { name: "Add", exact: true }).click();
  await expect(form).toContainText("must be owner/name or owner/*");
  await expectGoodState(page, "a connection with a wrong pattern");
  await form.getByLabel("Repositories").fill("acme/*");
  await form.getByRole("button", { name: "Add", exact: true }).click();
  const shown = page.getByRole("dialog");
  await expect(shown).toContainText("which is not shown again");
  await expectGoodState(page, "the secret of a webhook");
  const [address, secret] = await shown.locator("code").allTextContents();
  await page.getByRole("button", { name: "Done" }).click();
  await expect(page.getByText("acme/* · @chatd · template repository-app")).toBeVisible();

  const body = JSON.stringify({
    action: "created",
    repository: { full_name: "acme/app" },
    sender: { login: "ada", id: 1, type: "Bot" },
    issue: { id: 1, number: 12, title: "It fails", html_url: "https://github.com/acme/app/issues/12" },
    comment: { id: 9, body: "@chatd repair it" },
  });
  const human = body.replace('"Bot"', '"User"');
  const deliver = async (text: string) => {
    const signature = `sha256=${createHmac("sha256", secret ?? "")
      .update(text)
      .digest("hex")}`;
    const headers = { "content-type": "application/json", "x-github-event": "issue_comment", "x-github-delivery": "1", "x-hub-signature-256": signature };
    const reply = await page.request.post(address ?? "", { data: Buffer.from(text), headers });
    return (await reply.json()) as unknown;
  };
  expect(await deliver(body)).toEqual({ stored: false, reason: "bots cannot ask" });
  expect(await deliver(human)).toEqual({ stored: true, reason: "" });
  await page.getByRole("button", { name: "Events" }).click();
  await expect(page.getByRole("dialog").getByText("Comment, acme/app#12")).toBeVisible();
  await expect(page.getByRole("dialog").getByText(/^Waiting/)).toBeVisible();
  await expectGoodState(page, "events of a connection");
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: "Edit Our GitHub" }).click();
  await page.getByRole("button", { name: "Delete" }).click();
  await page.getByRole("dialog", { name: "Delete Our GitHub?" }).getByRole("button", { name: "Delete" }).click();
  await expect(page.getByText("No connections. Nothing on a git host starts a chat.")).toBeVisible();
});
