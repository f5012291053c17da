/** A preview of a port, with a program that attacks its viewer, and the files of its workspace. */
import type { Page } from "@playwright/test";
import type { ChatdServer } from "./chatd-server";
import { expectGoodState } from "./everywhere";
import { openTerminal, runInTerminal } from "./terminal";
import { expect, test } from "./test";

test.use({ ownContext: true });

const PORT = 8123;
const DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";
const PROGRAM = `
import http.server

PAGE = b"<!doctype html><title>shown</title><h1>Hello from the workspace</h1>"
WORKER = b"self.addEventListener('fetch', (e) => e.respondWith(new Response('from the worker')))"

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        is_worker = self.path == "/sw.js"
        self.send_response(200)
        self.send_header("content-type", "text/javascript" if is_worker else "text/html")
        self.send_header("set-cookie", "chatd_session=tossed; Path=/")
        self.send_header("x-frame-options", "DENY")
        self.end_headers()
        self.wfile.write(WORKER if is_worker else PAGE + repr(self.headers.as_string()).encode())

http.server.ThreadingHTTPServer(("127.0.0.1", ${PORT}), Handler).serve_forever()
`;

async function openChat(page: Page, server: ChatdServer): Promise<string> {
  const workspace = await server.api<{ id: string }>("POST", "/workspaces", { template: "scratch" });
  await expect
    .poll(async () => (await server.api<{ agents: { status: string }[] }>("GET", `/workspaces/${workspace.id}`)).agents[0]?.status, { timeout: 60_000 })
    .toBe("connected");
  const chat = await server.api<{ id: string }>("POST", "/chats", { workspace_id: workspace.id, content: [{ type: "text", text: "hello" }] });
  await page.goto(`/c/${chat.id}?panel=terminal`);
  return chat.id;
}

const save = (server: ChatdServer, chatId: string, path: string, text: string) =>
  server.api("PUT", `/chats/${chatId}/workspace/file?path=${encodeURIComponent(path)}`, text);

const saveBytes = (server: ChatdServer, chatId: string, path: string, base64: string) =>
  fetch(`${server.url}/api/v1/chats/${chatId}/workspace/file?path=${path}`, {
    method: "PUT",
    headers: { authorization: `Bearer ${server.token}` },
    body: Buffer.from(base64, "base64"),
  });

test("a program behind a preview reaches neither the session nor the page of its viewer", async ({ page, server, faults }) => {
  test.setTimeout(180_000);
  faults.expect(/^request to http:\/\/8123-/);
  faults.expect(/^console: /); // what the browser says about refused attempts
  const chatId = await openChat(page, server);
  await save(server, chatId, "app.py", PROGRAM);
  await openTerminal(page);
  await runInTerminal(page, "(python3 app.py 2>/dev/null &) && expr 700 + 77", "777");

  await page.goto(`/c/${chatId}?panel=preview`);
  await page.getByRole("button", { name: new RegExp(`^${PORT}`) }).click();
  const shown = page.frameLocator(".preview-frame");
  await expect(shown.getByRole("heading", { name: "Hello from the workspace" })).toBeVisible();
  const frame = page.frames().find((one) => one.url().includes(`//${PORT}-`));
  if (frame === undefined) throw new Error("The frame is not there.");
  expect(frame.url()).not.toContain("ticket");
  expect(await frame.content(), "the workspace sees no cookie of chatd").not.toContain("chatd_");

  await test.step("readers see it only on request", async () => {
    const shared = async () => (await server.api<{ ports: number[] }>("GET", `/chats/${chatId}/previews`)).ports;
    expect(await shared()).toEqual([]);
    await page.getByRole("switch", { name: "Readers see it" }).click();
    await expect.poll(shared).toEqual([PORT]);
    await page.getByRole("switch", { name: "Readers see it" }).click();
    await expect.poll(shared).toEqual([]);
  });

  await test.step("cookies, the parent, the top and forms", async () => {
    expect(await frame.evaluate(() => document.cookie)).toBe("");
    const tried = await frame.evaluate(() => {
      const name = (act: () => unknown): string => {
        try {
          return String(act());
        } catch (error) {
          return (error as Error).name;
        }
      };
      const leave = () => (window.top ?? window).location.assign("about:blank");
      return [name(() => window.parent.document.title), name(leave)];
    });
    expect(tried).toEqual(["SecurityError", "SecurityError"]);
    await frame.evaluate(() => {
      const form = document.createElement("form");
      form.action = "about:blank";
      form.target = "_top";
      document.body.append(form);
      form.submit();
    });
  });

  await test.step("the API, with the session that the browser has", async () => {
    const before = await server.api<{ items: unknown[] }>("GET", "/chats");
    const tried = await frame.evaluate(async (url) => {
      const read = await fetch(`${url}/api/v1/auth/me`, { credentials: "include" }).then(
        () => "read",
        () => "refused",
      );
      const init = { method: "POST", credentials: "include", mode: "no-cors", body: JSON.stringify({ content: [{ type: "text", text: "hi" }] }) } as const;
      await fetch(`${url}/api/v1/chats`, init).catch(() => null);
      return read;
    }, server.url);
    expect(tried).toBe("refused");
    expect((await server.api<{ items: unknown[] }>("GET", "/chats")).items.length).toBe(before.items.length);
  });

  await test.step("no service worker", async () => {
    // The cookie belongs to the frame in this page: the script of a worker is fetched without it.
    const registered = await frame.evaluate(() =>
      navigator.serviceWorker.register("/sw.js").then(
        () => "registered",
        (error: unknown) => (error as Error).name,
      ),
    );
    expect(registered).toBe("TypeError");
    await page.reload();
    await expect(page.getByRole("tab", { name: /^Preview/ })).toBeVisible();
    const scopes = await page.evaluate(async () => (await navigator.serviceWorker.getRegistrations()).map((one) => one.scope));
    expect(scopes.filter((scope) => scope.includes(`${PORT}-`))).toEqual([]);
    expect(await page.evaluate(async () => (await fetch("/healthz")).text())).toContain("ok");
  });
  await expectGoodState(page, "preview");
});

test("files are shown as what they are, edited against their version, and uploaded", async ({ page, server, faults }) => {
  test.setTimeout(180_000);
  faults.expect(/file\?path=notes\.md.*409|status of 409/);
  const chatId = await openChat(page, server);
  await save(server, chatId, "notes.md", "# Notes\n\nSome *words*.\n");
  await save(server, chatId, "prices.csv", 'name,price\n"Tea, green",3\n');
  await save(server, chatId, "page.html", "<style>h1{color:red}</style><h1 id=t>Page</h1><script>t.textContent += ' ' + origin</script>");
  await save(server, chatId, "book.ipynb", JSON.stringify({ cells: [{ cell_type: "code", source: "1 + 1", outputs: [{ data: { "text/plain": "2" } }] }] }));
  await saveBytes(server, chatId, "dot.png", DOT);
  await saveBytes(server, chatId, "paper.pdf", Buffer.from("%PDF-1.4\n\u0000\u00ff%%EOF", "latin1").toString("base64"));
  await page.goto(`/c/${chatId}?panel=files`);
  const tree = page.getByRole("tree", { name: "Files of the workspace" });
  const open = async (name: string) => {
    // In a narrow panel a file takes the place of the tree.
    const back = page.getByRole("button", { name: "Back to the files" });
    if (await back.isVisible()) await back.click();
    await tree.getByRole("treeitem", { name }).click();
  };

  await open("prices.csv");
  await expect(page.getByRole("region", { name: "Table prices.csv" }).getByRole("cell", { name: "Tea, green" })).toBeVisible();
  await open("book.ipynb");
  await expect(page.getByRole("region", { name: "Notebook book.ipynb" })).toContainText("1 + 1");
  await open("page.html");
  await expect(page.frameLocator(".files-frame").getByRole("heading", { name: "Page null" })).toBeVisible();

  await open("dot.png");
  await expect.poll(() => page.getByRole("img", { name: "dot.png" }).evaluate((image: HTMLImageElement) => image.naturalWidth)).toBe(1);
  await open("paper.pdf");
  await expect(page.locator('iframe[title$="paper.pdf"]')).toHaveAttribute("src", /^blob:/);

  await open("notes.md");
  await expect(page.getByRole("region", { name: "Document notes.md" }).getByRole("heading", { name: "Notes" })).toBeVisible();
  await page.getByRole("button", { name: "Edit the file" }).click();
  const editor = page.getByRole("textbox", { name: "Text of notes.md" });
  await editor.fill("# Changed\n");
  await page.getByRole("button", { name: "Save" }).click();
  await expect(page.getByRole("heading", { name: "Changed" })).toBeVisible();

  await page.getByRole("button", { name: "Edit the file" }).click();
  const reply = await fetch(`${server.url}/api/v1/chats/${chatId}/workspace/file?path=notes.md`, { headers: { authorization: `Bearer ${server.token}` } });
  const version = reply.headers.get("x-file-version") ?? "";
  await server.api("PUT", `/chats/${chatId}/workspace/file?path=notes.md&version=${version}`, "# Theirs\n");
  await editor.fill("# Mine\n");
  await page.getByRole("button", { name: "Save" }).click();
  await expect(page.getByText("notes.md was changed meanwhile")).toBeVisible();
  await page.getByRole("button", { name: "Overwrite" }).click();
  await expect(page.getByRole("heading", { name: "Mine" })).toBeVisible();

  await page.getByLabel("Files to upload").setInputFiles({ name: "up.txt", mimeType: "text/plain", buffer: Buffer.from("uploaded") });
  await open("up.txt");
  await expect(page.locator(".files-lines")).toContainText("uploaded");
  await page.getByLabel("Files to upload").setInputFiles({ name: "up.txt", mimeType: "text/plain", buffer: Buffer.from("again") });
  await page.getByRole("button", { name: "Replace" }).click();
  await page.getByRole("button", { name: "Load again" }).click();
  await expect(page.locator(".files-lines")).toContainText("again");

  const dropped = await page.evaluateHandle(() => {
    const data = new DataTransfer();
    data.items.add(new File(["dropped"], "drop.txt", { type: "text/plain" }));
    return data;
  });
  await page.locator(".files-side").dispatchEvent("drop", { dataTransfer: dropped });
  await open("drop.txt");
  await expect(page.locator(".files-lines")).toContainText("dropped");
});
