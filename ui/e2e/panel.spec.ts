/** The panel beside a chat that has worked: changes, runs, files, terminal, workspace, debug. */
import type { Page } from "@playwright/test";
import { expectGoodState } from "./everywhere";
import { openTerminal, runInTerminal } from "./terminal";
import { DESKTOP, expect, expectAccessible, test } from "./test";

const HOSTILE_NAME = "<img src=x onerror=hostile=1>.md";

const WIDE = { width: 1600, height: 900 };

const openTab = (page: Page, name: RegExp) => page.getByRole("tab", { name }).click();

async function openExtra(page: Page, name: string): Promise<void> {
  await page.getByRole("button", { name: "More panels" }).click();
  await page.getByRole("menuitem", { name: new RegExp(`^${name}`) }).click();
}

test("the panel shows what the agent changed, who ran it, its files, a shell, its workspace and its model calls", async ({ page, chat, server }) => {
  test.setTimeout(240_000);
  await server.api("PATCH", "/settings", { debug_recording: "forced" });
  await page.setViewportSize(WIDE);
  await chat.begin("fix the failing test");
  await expect(chat.log).toContainText("All three tests pass now", { timeout: 60_000 });
  await chat.waitUntilIdle();

  await test.step("changes", async () => {
    await chat.log.focus();
    await page.keyboard.press("d");
    const file = page.getByRole("region", { name: /basket\.py$/ }).first();
    await expect(file).toBeVisible();
    const scopes = page.getByRole("radiogroup", { name: "Scope" });
    for (const scope of ["Chat", "Git", "This turn"]) {
      await scopes.getByRole("radio", { name: scope }).click();
      await expect(page.getByRole("region", { name: "Changed files" })).toContainText("discount_percent");
    }
    await page.getByRole("separator").last().focus();
    await page.keyboard.press("End");
    const views = page.getByRole("radiogroup", { name: "View" });
    await views.getByRole("radio", { name: "Split" }).click();
    await expect(file.locator(".diff-split")).toBeVisible();
    await expectGoodState(page, "changes");
    await page.setViewportSize(WIDE);
    const body = file.getByRole("group", { name: /^Changes in/ });
    await body.focus();
    await page.keyboard.press("ArrowDown");
    await expect(page.getByRole("button", { name: /^Comment on/ }).and(page.locator(":focus"))).toBeVisible();
    await page.keyboard.press("Enter");
    await page.getByRole("textbox", { name: /^Comment on/ }).fill("Why this line?");
    await page.getByRole("button", { name: "Add to message" }).click();
    await expect(chat.box).toHaveValue("Why this line?");
    await expect(page.getByRole("button", { name: /^Remove basket\.py/ })).toBeVisible();
  });

  await test.step("runs", async () => {
    await openTab(page, /^Runs/);
    await expect(page.getByRole("region", { name: "Runs" })).toContainText("Turn 1");
    await expectGoodState(page, "runs");
  });

  await test.step("terminal", async () => {
    await openTerminal(page);
    await runInTerminal(page, "echo $((40 + 2))", "42");
    await runInTerminal(page, `echo '# inert' > '${HOSTILE_NAME}' && expr 700 + 77`, "777");
    await expectGoodState(page, "terminal");
  });

  await test.step("a command of the person, in the chat", async () => {
    await page.getByRole("button", { name: /^Remove basket\.py/ }).click();
    await chat.box.fill("!echo $((6 * 7)) apples");
    await expect(page.getByText(/Runs in the chat’s workspace/)).toBeVisible();
    await chat.box.press("Enter");
    await expect(chat.log).toContainText("! echo $((6 * 7)) apples");
    await expect(chat.log).toContainText("42 apples");
    await chat.waitUntilIdle();
    await expectGoodState(page, "own command");
    await expect(chat.log.getByRole("button", { name: "Answer again" })).toHaveCount(0);
    await chat.log.getByRole("button", { name: "Run again" }).click();
    const question = page.getByRole("dialog", { name: "Run this command again?" });
    await expect(question).toContainText("echo $((6 * 7)) apples");
    await expectAccessible(page, "own command, again");
    await question.getByRole("button", { name: "Cancel" }).click();
    await expect(question).toBeHidden();
    await expect(chat.log.getByRole("group", { name: /^Version/ })).toHaveCount(0);
    await chat.log.getByRole("button", { name: "Run again" }).click();
    await question.getByRole("button", { name: "Run again" }).click();
    await expect(chat.log.getByRole("group", { name: "Version 2 of 2" })).toBeVisible();
    await chat.waitUntilIdle();
    await expect(chat.log).toContainText("42 apples");
    await page.setViewportSize(WIDE);
  });

  await test.step("files, with a name that tries to run", async () => {
    await openTab(page, /^Files/);
    const tree = page.getByRole("tree", { name: "Files of the workspace" });
    await tree.getByRole("treeitem", { name: HOSTILE_NAME }).click();
    await expect(page.locator(".files-grid").getByRole("heading", { name: "inert" })).toBeVisible();
    expect(await page.locator("img[src=x]").count()).toBe(0);
    await expectGoodState(page, "files");
  });

  await test.step("debug", async () => {
    await openExtra(page, "Debug");
    const calls = page.getByRole("region", { name: "Model calls" });
    await calls.getByRole("button", { expanded: false }).first().click();
    await expect(calls).toContainText("Request");
    await expectGoodState(page, "debug");
  });

  await test.step("workspace: stopped, started with its log, deleted", async () => {
    await openExtra(page, "Workspace");
    const card = page.getByRole("region", { name: "Workspace" }).last();
    await expect(card).toContainText("Running");
    await expectGoodState(page, "workspace");
    await card.getByRole("button", { name: "Stop", exact: true }).click();
    await expect(card.getByRole("button", { name: "Start", exact: true })).toBeVisible();
    await card.getByRole("button", { name: "Start", exact: true }).click();
    const build = page.getByRole("region", { name: /^Build 3/ });
    await expect(build).toBeVisible();
    await expect(card.getByRole("button", { name: "Stop", exact: true })).toBeVisible();
    // The log of a build that has ended closes.
    await build.getByRole("button", { name: /^Started/ }).click();
    await expect(page.locator("pre[aria-label^='Log of build 3']")).not.toBeEmpty();
    await card.getByRole("button", { name: "Delete" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
    await expect(page.getByText("Deleted").first()).toBeVisible();
  });
});

test("a new chat works in a workspace that was made or chosen before its first message", async ({ page, chat, server, faults }) => {
  faults.expect(/status of 400/);
  await page.goto("/new");
  await page.getByRole("button", { name: "Add files and choose tools" }).click();
  await page.getByRole("menuitem", { name: /Choose where it works/ }).click();
  const dialog = page.getByRole("dialog", { name: "Workspace of the new chat" });
  await dialog.getByRole("combobox", { name: "Template" }).selectOption({ label: "Scratch" });
  await dialog.getByRole("textbox", { name: "Repository" }).fill("no address");
  await dialog.getByRole("textbox", { name: "Name" }).fill("my-place");
  await dialog.getByRole("button", { name: "Create workspace" }).click();
  await expect(dialog.getByText("It must be the http(s) address of a git repository, or empty.")).toBeVisible();
  await expectGoodState(page, "the workspace of a new chat, with an error");
  await page.setViewportSize(DESKTOP);
  await dialog.getByRole("textbox", { name: "Repository" }).fill("");
  await dialog.getByRole("button", { name: "Create workspace" }).click();
  const chosen = page.getByRole("button", { name: "Workspace my-place; press to choose another" });
  await expect(chosen).toBeVisible();
  await expect(chat.box).toBeFocused();
  await page.reload();
  await chosen.click();
  await dialog.getByRole("radio", { name: "One that I have" }).click();
  await expect(dialog.getByRole("button", { name: /my-place/ }).first()).toHaveAttribute("aria-pressed", "true");
  await expectAccessible(page, "workspaces to choose from");
  await page.keyboard.press("Escape");
  await chat.send("answer fast: hello");
  await page.waitForURL(/\/c\//);
  const made = await server.api<{ workspace_id: string }>("GET", `/chats/${chat.id}`);
  const place = await server.api<{ name: string }>("GET", `/workspaces/${made.workspace_id}`);
  expect(place.name).toBe("my-place");
  await page.goto("/new");
  await expect(page.getByRole("button", { name: /press to choose another/ })).toHaveCount(0);
});
