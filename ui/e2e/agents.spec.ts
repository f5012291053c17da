/** Agents that use others and the world: subagents, plans, questions, approvals, policies, skills, MCP servers. */
import { expect, expectAccessible, test } from "./test";

test("a subagent scene shows its children in the list and in their cards, with a way there and back", async ({ page, chat }) => {
  await chat.begin("review this with subagents");
  const tree = chat.sidebar.getByRole("treeitem", { level: 3 });
  await expect(tree).toHaveCount(2);
  const spawned = chat.log.locator("details.tool-card", { hasText: /Spawn(ing|ed) agent/ });
  await expect(spawned.first()).toBeVisible();
  await expectAccessible(page);
  await expect(chat.log).toContainText("Both are back");
  await chat.waitUntilIdle();
  await tree.first().click();
  await expect(page.getByRole("link", { name: /review this|Review/i }).first()).toBeVisible();
  await expectAccessible(page);
  const back = page.locator("header .app-bar-parent");
  await back.click();
  await expect(chat.log).toContainText("Both are back");
});

test("plan mode proposes a plan, and Implement plan carries it out", async ({ page, chat }) => {
  await page.goto("/");
  await chat.box.fill("/plan");
  await chat.box.press("Enter");
  const inPlan = page.getByRole("button", { name: /Plan mode; press/ });
  await expect(inPlan).toBeVisible();
  await chat.send("make a plan");
  await page.waitForURL(/\/c\//);
  const plan = page.getByRole("region", { name: "Plan" });
  await expect(plan).toContainText("Repair the discount");
  await expect(chat.log.getByText("Repair the discount")).toHaveCount(1);
  await expect(chat.sidebar).toContainText(/Needs you.*A plan is ready to read/s);
  await expect(inPlan).toBeVisible();
  await expectAccessible(page);
  await plan.getByRole("button", { name: "Implement plan" }).click();
  await expect(inPlan).toBeHidden();
  await expect(chat.log).toContainText("Implement the plan.");
  await expect(chat.log).toContainText(/passed/);
  await chat.waitUntilIdle();
});

test("questions and approvals wait for a person, are answered once, and every tab shows the answer", async ({ page, chat, context }) => {
  await page.goto("/settings/tools");
  await page.getByRole("button", { name: "Add a rule" }).click();
  await page.getByRole("textbox", { name: "Tool" }).fill("execute");
  await page.getByRole("textbox", { name: "Reason" }).fill("Commands need a look.");
  await expectAccessible(page);
  await page.getByRole("button", { name: "Save" }).click();
  await expect(page.getByRole("table", { name: "Rules" })).toContainText("Ask first");

  await chat.begin("ask me first");
  const form = page.getByRole("region", { name: "Question" });
  await expect(form).toContainText("Which colour");
  await expect(chat.sidebar.getByRole("treeitem", { name: "Needs you 1" })).toBeVisible();
  await expectAccessible(page);
  const other = await context.newPage();
  await other.goto(page.url());
  await expect(other.getByRole("region", { name: "Question" })).toBeVisible();
  await form.getByRole("radio").first().check({ force: true });
  await form.getByRole("button", { name: "Answer" }).click();

  const approval = page.getByRole("region", { name: /Approval/ });
  await expect(approval).toContainText("Commands need a look.");
  await expect(other.getByRole("region", { name: "Question" })).toBeHidden();
  await expect(other.getByRole("region", { name: /Approval/ })).toBeVisible();
  await other.close();
  await expectAccessible(page);
  await approval.focus();
  await page.keyboard.press("n");
  await page.keyboard.type("not today");
  await page.keyboard.press("Enter");
  await expect(chat.log).toContainText("not today");
  await chat.waitUntilIdle();

  await chat.begin("ask me first");
  await page.getByRole("region", { name: "Question" }).getByRole("radio").first().check({ force: true });
  await page.getByRole("region", { name: "Question" }).getByRole("button", { name: "Answer" }).click();
  await page.getByRole("region", { name: /Approval/ }).focus();
  await page.keyboard.press("y");
  await expect(chat.log).toContainText("The command ran once");
  await page.goto("/settings/tools");
  await page.getByRole("button", { name: "Delete the rule of execute" }).click();
  await expect(page.getByText("No rules here.")).toBeVisible();
});

test("a skill is written, changed and deleted", async ({ page }) => {
  await page.goto("/settings/skills");
  await page.getByRole("button", { name: "Add a skill" }).click();
  await page.getByRole("textbox", { name: "Name" }).fill("release-notes");
  await page.getByRole("textbox", { name: "When to use it" }).fill("When release notes are wanted");
  await page.getByRole("textbox", { name: "Instructions" }).fill("# How\n\nShort lines.");
  await expectAccessible(page);
  await page.getByRole("button", { name: "Save" }).click();
  await expect(page.getByRole("table", { name: "Skills" })).toContainText("release-notes");
  await page.getByRole("button", { name: "Edit release-notes" }).click();
  await expect(page.getByRole("textbox", { name: "Instructions" })).toHaveValue("# How\n\nShort lines.");
  await page.getByRole("button", { name: "Discard" }).click();
  await page.getByRole("button", { name: "Delete release-notes" }).click();
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await expect(page.getByText("No skills yet.")).toBeVisible();
});

test("an MCP server is added, tested with an explanation, chosen for a chat and deleted", async ({ page }) => {
  await page.goto("/admin/mcp");
  await page.getByRole("button", { name: "Add a server" }).click();
  await page.getByRole("textbox", { name: "Name", exact: true }).fill("My tracker");
  await page.getByRole("textbox", { name: "Address" }).fill("https://127.0.0.1:9/mcp");
  await expectAccessible(page);
  await page.getByRole("button", { name: "Save" }).click();
  await expect(page.getByRole("heading", { name: /My tracker/ })).toBeVisible();
  await page.getByRole("button", { name: "Test" }).click();
  await expect(page.getByText("It did not work.")).toBeVisible();
  await expectAccessible(page);
  await page.goto("/");
  await page.getByRole("button", { name: "Add files and choose tools" }).click();
  const choice = page.getByRole("menuitemcheckbox", { name: /My tracker/ });
  await expect(choice).toBeChecked();
  await choice.click();
  await expect(choice).not.toBeChecked();
  await expectAccessible(page);
  await page.goto("/admin/mcp");
  await page.getByRole("button", { name: "Edit My tracker" }).click();
  await page.getByRole("button", { name: "Delete" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).last().click();
  await expect(page.getByText("No MCP servers yet.")).toBeVisible();
});

test("a chat alone is shown for frames, without list and panel", async ({ page, chat }) => {
  await chat.begin("answer fast");
  await chat.waitUntilIdle();
  await page.goto(`/embed/c/${chat.id}`);
  await expect(chat.log).toBeVisible();
  await expect(page.getByRole("link", { name: "Open in chatd" })).toBeVisible();
  await expect(chat.sidebar).toBeHidden();
  await expectAccessible(page);
});

test("the lite page sends a message once, also if the reply to the first press was lost", async ({ page, faults }) => {
  faults.expect(/ERR_FAILED/);
  await page.goto("/lite");
  await expect(page.getByText("Signed in as admin")).toBeVisible();
  const keys: (string | undefined)[] = [];
  await page.route("**/api/v1/chats", async (route) => {
    if (route.request().method() !== "POST") return route.fallback();
    keys.push(route.request().headers()["idempotency-key"]);
    if (keys.length > 1) return route.fallback();
    await route.fetch();
    return route.abort();
  });
  await page.getByRole("textbox", { name: "Message" }).fill("only once, please");
  await page.getByRole("button", { name: "Send" }).click();
  await expect(page.getByRole("alert")).toContainText("cannot be reached");
  await page.getByRole("button", { name: "Send" }).click();
  await expect(page.getByRole("log")).toContainText("only once, please");
  expect(keys).toHaveLength(2);
  expect(keys[0]).toBe(keys[1]);
});
