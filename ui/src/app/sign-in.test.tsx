import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { act, cleanup, render, screen, waitFor } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, describe, expect, it, vi } from "vitest";
import { Router } from "wouter";
import { memoryLocation } from "wouter/memory-location";
import { SignInPage } from "./sign-in";

type Reply = [status: number, body: unknown];
type Replies = Record<string, Reply>;

const NAMES = { password: true, oidc: null as string | null };
let server: Server;
let sent: { path: string; body: unknown }[];

/** A server that answers as chatd's API does. */
async function serve(replies: Replies): Promise<void> {
  sent = [];
  server = createServer((request: IncomingMessage, response: ServerResponse) => {
    let text = "";
    request.on("data", (piece: Buffer) => (text += piece.toString()));
    request.on("end", () => {
      const path = request.url ?? "";
      sent.push({ path, body: text === "" ? null : JSON.parse(text) });
      const [status, body] = replies[path] ?? [404, { code: "not_found", message: "There is no such path." }];
      response.writeHead(status, { "Content-Type": "application/json" }).end(JSON.stringify(body));
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  (window as unknown as { happyDOM: { setURL: (url: string) => void } }).happyDOM.setURL(`http://127.0.0.1:${(server.address() as AddressInfo).port}/sign-in`);
}

function show(search = "") {
  const onSignedIn = vi.fn();
  const location = memoryLocation({ path: "/sign-in", searchPath: search });
  render(
    <QueryClientProvider client={new QueryClient({ defaultOptions: { queries: { retry: false } } })}>
      <Router hook={location.hook} searchHook={location.searchHook}>
        <SignInPage onSignedIn={onSignedIn} />
      </Router>
    </QueryClientProvider>,
  );
  return { onSignedIn, user: userEvent.setup() };
}

const standard: Replies = {
  "/api/v1/auth/methods": [200, NAMES],
  "/api/v1/setup": [200, { needed: false, message: null }],
};

afterEach(async () => {
  cleanup();
  await new Promise((resolve) => server.close(resolve));
});

describe("the sign-in page", () => {
  it.each([
    ["identity_not_allowed", "Ask an administrator to add you"],
    ["identity_refused", "Begin again here"],
    ["anything", "The sign-in did not work. Begin again."],
  ])("says what to do after the provider's failure %s", async (code, words) => {
    await serve({ ...standard, "/api/v1/auth/methods": [200, { password: true, oidc: "Example" }] });
    show(`problem=${code}`);
    expect((await screen.findByRole("alert")).textContent).toContain(words);
    expect((await screen.findByRole("link", { name: "Example" })).getAttribute("href")).toContain("/auth/oidc/start");
  });

  it("says what the server says about a refused password, and keeps the name", async () => {
    const refused = { code: "invalid_login", message: "The username or the password is wrong." };
    await serve({ ...standard, "/api/v1/auth/login": [401, refused] });
    const { onSignedIn, user } = show();
    await user.type(await screen.findByLabelText("User name or email"), "ada");
    await user.type(screen.getByLabelText("Password"), "not it{Enter}");
    expect((await screen.findByRole("alert")).textContent).toContain(refused.message);
    expect(screen.getByLabelText<HTMLInputElement>("User name or email").value).toBe("ada");
    expect(onSignedIn).not.toHaveBeenCalled();
  });

  it("goes on to where the user came from, and never to another site", async () => {
    await serve({ ...standard, "/api/v1/auth/login": [200, { csrf_token: "t", user: {}, expires_at: null }] });
    const { onSignedIn, user } = show("next=%2F%2Fevil.example");
    await user.type(await screen.findByLabelText("User name or email"), "ada");
    await user.type(screen.getByLabelText("Password"), "correct horse{Enter}");
    await waitFor(() => expect(onSignedIn).toHaveBeenCalledWith("/"));
    expect(sent.at(-1)).toEqual({ path: "/api/v1/auth/login", body: { username: "ada", password: "correct horse" } });
  });

  it("offers the OpenID provider by its name, and no password where that is switched off", async () => {
    await serve({ ...standard, "/api/v1/auth/methods": [200, { password: false, oidc: "Example Login" }] });
    show("next=%2Fc%2F1");
    const link = await screen.findByRole("link", { name: "Example Login" });
    expect(link.getAttribute("href")).toBe("/api/v1/auth/oidc/start?next=%2Fc%2F1");
    expect(screen.queryByLabelText("Password")).toBeNull();
  });

  it("tells what to do on a server that nobody has signed in to", async () => {
    const message = "Open the link that chatd serve printed in its terminal.";
    await serve({ ...standard, "/api/v1/setup": [200, { needed: true, message }] });
    show();
    expect(await screen.findByText(message)).toBeTruthy();
  });

  it("takes a link that is opened in a tab that shows it already, and a second one after a used one", async () => {
    await serve({ ...standard, "/api/v1/auth/link": [401, { code: "invalid_link", message: "This link was used already." }] });
    window.location.hash = "";
    const { user } = show();
    expect(await screen.findByLabelText("Password")).toBeTruthy();
    const open = (secret: string) =>
      act(() => {
        window.location.hash = secret;
        window.dispatchEvent(new Event("hashchange"));
      });
    open("#secret-1");
    await user.click(await screen.findByRole("button", { name: "Sign in" }));
    expect((await screen.findByRole("alert")).textContent).toContain("used already");
    open("#secret-2");
    expect(screen.queryByRole("alert")).toBeNull();
    await user.click(await screen.findByRole("button", { name: "Sign in" }));
    await waitFor(() =>
      expect(sent.filter((one) => one.path === "/api/v1/auth/link").map((one) => one.body)).toEqual([{ secret: "secret-1" }, { secret: "secret-2" }]),
    );
  });

  it("uses a one-time link only when the button is pressed, and offers another way after a used one", async () => {
    const used = { code: "invalid_link", message: "This link was used already." };
    await serve({ ...standard, "/api/v1/auth/link": [401, used] });
    window.location.hash = "#secret-1";
    const { user } = show();
    const button = await screen.findByRole("button", { name: "Sign in" });
    expect(sent.some((one) => one.path === "/api/v1/auth/link")).toBe(false);
    await user.click(button);
    expect((await screen.findByRole("alert")).textContent).toContain(used.message);
    expect(sent.at(-1)?.body).toEqual({ secret: "secret-1" });
    await user.click(screen.getByRole("button", { name: "Sign in another way" }));
    expect(await screen.findByLabelText("Password")).toBeTruthy();
  });
});
