/** The desktop of a workspace: watched, taken over and given back, with the pictures of what an agent did there. */
import { execFileSync } from "node:child_process";
import type { Page } from "@playwright/test";
import type { ChatdServer } from "./chatd-server";
import { expectGoodState } from "./everywhere";
import { expect, PHONE, test } from "./test";

test.use({ ownContext: true });

function has(program: string): boolean {
  try {
    execFileSync("/bin/sh", ["-c", `command -v ${program}`]);
    return true;
  } catch {
    return false;
  }
}

interface Found {
  id: string;
  status: string;
}

async function useDesktop(server: ChatdServer): Promise<{ parent: string; child: string }> {
  const chat = await server.api<Found>("POST", "/chats", { content: [{ type: "text", text: "use the desktop" }] });
  await expect.poll(async () => (await server.api<Found>("GET", `/chats/${chat.id}`)).status, { timeout: 120_000 }).toBe("waiting");
  const { items } = await server.api<{ items: { content: { result?: { type?: string; chat_id?: string } }[] }[] }>(
    "GET",
    `/chats/${chat.id}/messages?limit=100`,
  );
  const started = items.flatMap((message) => message.content).find((part) => part.result?.type === "computer_use");
  return { parent: chat.id, child: started?.result?.chat_id ?? "" };
}

/** The picture is there once it has more than one colour. */
const colours = (page: Page) =>
  page.locator(".desktop-screen canvas").evaluate((canvas: HTMLCanvasElement) => {
    const { width, height } = canvas;
    if (width === 0) return 0;
    return new Set(new Uint32Array(canvas.getContext("2d")?.getImageData(0, 0, width, height).data.buffer ?? new ArrayBuffer(0))).size;
  });

test("a person watches what a subagent did, takes over, clicks, and gives back", async ({ page, server }) => {
  test.skip(!has("Xvnc") || !has("xterm"), "needs Debian's packages tigervnc-standalone-server and xterm");
  test.setTimeout(240_000);
  const { parent, child } = await useDesktop(server);
  await page.goto(`/c/${parent}?panel=desktop`);
  await expect(page.getByRole("link", { name: "Open the subagent" })).toHaveAttribute("href", `/c/${child}`);
  await page.goto(`/c/${child}?panel=desktop`);
  await expect(page.getByRole("img", { name: "Desktop of the workspace, view only" })).toBeVisible();
  await expect.poll(() => colours(page)).toBeGreaterThan(1);
  const bar = page.locator(".desktop-bar");
  await expect(bar).toContainText("You watch. Agents have mouse and keyboard.");

  await test.step("the pictures of its actions, by the keyboard", async () => {
    const frames = page.getByRole("region", { name: "Actions" }).getByRole("listitem");
    await expect(frames).toHaveCount(4);
    await frames.last().getByRole("button").focus();
    await page.keyboard.press("ArrowLeft");
    await page.keyboard.press("Enter");
    await expect(page.getByRole("dialog", { name: "Click (640, 300)" })).toBeVisible();
    await page.keyboard.press("ArrowRight");
    await expect(page.getByRole("dialog", { name: "Wait 1 s" })).toBeVisible();
    await page.keyboard.press("Escape");
    await expect(frames.nth(2).getByRole("button")).toBeFocused();
  });
  await expectGoodState(page, "desktop, watched");
  await page.setViewportSize({ width: 1280, height: 800 });

  await test.step("taken over, and given back by the keyboard", async () => {
    await page.getByRole("button", { name: "Take over" }).click();
    await expect(bar).toContainText("You have mouse and keyboard.");
    const screen = page.getByRole("application", { name: /^Desktop/ });
    await expect(screen).toBeFocused();
    const state = () => server.api<{ taken_by_you: boolean }>("GET", `/chats/${child}/desktop`);
    expect((await state()).taken_by_you).toBe(true);
    await page.keyboard.press("Tab"); // goes to the desktop
    await expect(screen).toBeFocused();
    await expectGoodState(page, "desktop, taken over");
    await page.setViewportSize({ width: 1280, height: 800 });
    await screen.focus();
    await page.keyboard.press("Alt+ArrowUp");
    await expect(bar.getByRole("button", { name: "Give back" })).toBeFocused();
    await page.keyboard.press("Enter");
    await expect(bar).toContainText("You watch.");
    expect((await state()).taken_by_you).toBe(false);
  });
});

test("a workspace without a desktop and one that does not run say so", async ({ page, server, faults }) => {
  test.setTimeout(180_000);
  faults.expect(/desktop|status of 409/);
  const workspace = await server.api<{ id: string }>("POST", "/workspaces", { template: "scratch" });
  const status = async () => (await server.api<{ agents: { status: string }[] }>("GET", `/workspaces/${workspace.id}`)).agents[0]?.status;
  await expect.poll(status, { timeout: 60_000 }).toBe("connected");
  const chat = await server.api<Found>("POST", "/chats", { workspace_id: workspace.id, content: [{ type: "text", text: "hello" }] });
  await page.goto(`/c/${chat.id}?panel=desktop`);
  await expect(page.getByRole("heading", { name: "This workspace has no desktop" })).toBeVisible();
  await expectGoodState(page, "no desktop");
  await page.setViewportSize(PHONE);
  await page.reload();
  await expect(page.getByRole("tab", { name: "Desktop" })).toBeInViewport({ ratio: 1 });
  await server.api("POST", `/workspaces/${workspace.id}/builds`, { transition: "stop" });
  await page.reload();
  await expect(page.getByRole("heading", { name: "The workspace does not run" })).toBeVisible({ timeout: 60_000 });
});
