import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { act, cleanup, fireEvent, render, screen, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import type { ReactNode } from "react";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { Router } from "wouter";
import { memoryLocation } from "wouter/memory-location";
import { useIsDemo, useModelNames, useModels } from "@/api/queries";
import { AccountPage } from "./own/account";
import { GitHosts } from "./own/connections";
import { HostCredentials } from "./own/host-credentials";
import { TokensPage } from "./own/tokens";
import { LimitsPage } from "./server/limits";
import { ProvidersPage } from "./server/providers";
import { UsersPage } from "./server/users";
import { SettingsPages } from "./settings-pages";

interface Asked {
  method: string;
  path: string;
  body: unknown;
}

/** What the server answers, by method and path; requests are kept in `asked`. */
const replies = new Map<string, { status: number; body: unknown }>();
const asked: Asked[] = [];

const answer = (line: string, body: unknown, status = 200) => replies.set(line, { status, body });
const page = (items: unknown[]) => ({ items, has_more: false, next_cursor: null });

beforeEach(() => {
  replies.clear();
  asked.length = 0;
  answer("GET /api/v1/auth/me", { user: { id: "u1", username: "ada", role: "admin" }, csrf_token: "t" });
  vi.stubGlobal("fetch", (address: string, init: RequestInit) => {
    const method = init.method ?? "GET";
    const path = address.split("?")[0] ?? "";
    asked.push({ method, path, body: typeof init.body === "string" ? JSON.parse(init.body) : null });
    const found = replies.get(`${method} ${path}`) ?? { status: 404, body: { code: "not_found", message: `${method} ${path}` } };
    const text = found.status === 204 ? null : JSON.stringify(found.body);
    return Promise.resolve(new Response(text, { status: found.status, headers: { "Content-Type": "application/json" } }));
  });
});

afterEach(() => {
  cleanup();
  vi.unstubAllGlobals();
});

function open(content: ReactNode) {
  const client = new QueryClient({ defaultOptions: { queries: { retry: false } } });
  render(<QueryClientProvider client={client}>{content}</QueryClientProvider>);
  return userEvent.setup();
}

const fill = (label: string | RegExp, value: string) => fireEvent.change(screen.getByLabelText(label), { target: { value } });

const sent = (method: string) => asked.filter((one) => one.method === method);

const GATEWAY = {
  id: "p1",
  name: "gateway",
  kind: "anthropic",
  display_name: "Main gateway",
  enabled: true,
  has_api_key: true,
  source: "database",
  created_at: "2026-11-01T00:00:00Z",
  updated_at: "2026-11-01T00:00:00Z",
  base_url: "https://llm.example.com/v1",
  keys: [{ id: "k1", name: "", masked: "…9fQ2", created_at: "2026-11-01T00:00:00Z" }],
};

describe("providers", () => {
  it("shows where a provider is and the end of its key, and never more of the key", async () => {
    answer("GET /api/v1/providers", page([GATEWAY]));
    open(<ProvidersPage />);
    expect(await screen.findByText("llm.example.com · key …9fQ2")).toBeTruthy();
  });

  it("says in words why a test failed, and offers a new key for a refused one", async () => {
    answer("GET /api/v1/providers", page([GATEWAY]));
    answer("POST /api/v1/providers/p1/test", { ok: false, model: "m", duration_ms: 80, error_kind: "auth", explanation: "The key was refused (401)." });
    const user = open(<ProvidersPage />);
    await user.click(await screen.findByRole("button", { name: "Test" }));
    const alert = await screen.findByRole("alert");
    expect(alert.textContent).toContain("The key was refused (401).");
    expect(within(alert).getByRole("button", { name: "New key" })).toBeTruthy();
  });

  it("cannot be edited here if the settings file declares it", async () => {
    answer("GET /api/v1/providers", page([{ ...GATEWAY, source: "settings" }]));
    open(<ProvidersPage />);
    expect(await screen.findByText("chatd.toml")).toBeTruthy();
    expect(screen.queryByRole("button", { name: "Edit Main gateway" })).toBeNull();
  });

  it("is tested when it is saved, says in place what fails, and gets its first model", async () => {
    answer("GET /api/v1/providers", page([]));
    answer("POST /api/v1/providers", GATEWAY, 201);
    answer("PATCH /api/v1/providers/p1", GATEWAY);
    answer("POST /api/v1/providers/p1/test", { ok: false, model: "m", duration_ms: 80, error_kind: "auth", explanation: "The key was refused (401)." });
    answer(
      "GET /api/v1/providers/p1/models",
      page([
        { model: "old-1", display_name: "Old 1", capabilities: {} },
        { model: "sable-4", display_name: "Sable 4", capabilities: {}, suggested: true },
      ]),
    );
    answer("POST /api/v1/models", { id: "m1", name: "sable-4" }, 201);
    const user = open(<ProvidersPage />);
    await user.click(await screen.findByRole("button", { name: "Add a provider" }));
    await user.click(screen.getByRole("button", { name: "Save" }));
    expect((await screen.findByRole("alert")).textContent).toContain("The key was refused (401).");
    expect(screen.queryByLabelText("First model")).toBeNull();
    answer("POST /api/v1/providers/p1/test", { ok: true, model: "m", duration_ms: 80 });
    await user.click(screen.getByRole("button", { name: "Save and test again" }));
    const first = await screen.findByLabelText<HTMLInputElement>("First model");
    expect(await screen.findByText("The provider offers 2.")).toBeTruthy();
    expect(first.value).toBe("sable-4");
    await user.click(screen.getByRole("button", { name: "Add this model" }));
    expect(sent("POST").at(-1)).toMatchObject({ path: "/api/v1/models", body: { provider: "gateway", name: "sable-4", model: "sable-4" } });
    expect(sent("PATCH")).toHaveLength(1);
  });

  it("whose first model was added is in the picker of chats at once, and the demo is over", async () => {
    const demo = { id: "d", name: "demo", display_name: "Demo", provider: "demo", model: "demo", enabled: true, is_default: true, capabilities: {} };
    answer("GET /api/v1/providers", page([]));
    answer("POST /api/v1/providers", GATEWAY, 201);
    answer("POST /api/v1/providers/p1/test", { ok: true, model: "m", duration_ms: 80 });
    answer("GET /api/v1/providers/p1/models", page([{ model: "sable-4", display_name: "Sable 4", capabilities: {}, suggested: true }]));
    answer("GET /api/v1/models", page([demo]));
    const Elsewhere = () => (
      <output>{[...(useModels().data ?? []).map((model) => model.name), useIsDemo() ? "is demo" : "is set up", useModelNames()("m1")].join(", ")}</output>
    );
    const user = open(
      <>
        <Elsewhere />
        <ProvidersPage />
      </>,
    );
    await user.click(await screen.findByRole("button", { name: "Add a provider" }));
    expect(document.querySelector("output")?.textContent).toBe("demo, is demo, ");
    await user.click(screen.getByRole("button", { name: "Save" }));
    const added = { ...demo, id: "m1", name: "sable-4", display_name: "Sable 4", provider: "gateway", source: "database" };
    answer("POST /api/v1/models", added, 201);
    answer("GET /api/v1/models", page([{ ...demo, is_default: false }, added]));
    await user.click(await screen.findByRole("button", { name: "Add this model" }));
    await vi.waitFor(() => expect(document.querySelector("output")?.textContent).toBe("demo, sable-4, is set up, Sable 4"));
  });

  it("does not look well in the list after its test failed on saving: it says what failed, until a test succeeds", async () => {
    answer("GET /api/v1/providers", page([]));
    answer("POST /api/v1/providers", GATEWAY, 201);
    answer("POST /api/v1/providers/p1/test", { ok: false, model: "m", duration_ms: 80, error_kind: "auth", explanation: "The key was refused (401)." });
    const user = open(<ProvidersPage />);
    await user.click(await screen.findByRole("button", { name: "Add a provider" }));
    answer("GET /api/v1/providers", page([GATEWAY]));
    await user.click(screen.getByRole("button", { name: "Save" }));
    await screen.findByRole("alert");
    await user.click(within(screen.getByRole("dialog")).getByText("Close"));
    expect(await screen.findByRole("img", { name: "Failed" })).toBeTruthy();
    expect(screen.getByRole("alert").textContent).toContain("The key was refused (401).");
    answer("POST /api/v1/providers/p1/test", { ok: true, model: "m", duration_ms: 80 });
    await user.click(screen.getByRole("button", { name: "Test" }));
    expect(await screen.findByRole("img", { name: "Works" })).toBeTruthy();
  });

  it("is neither good nor bad before its first test", async () => {
    answer("GET /api/v1/providers", page([GATEWAY]));
    open(<ProvidersPage />);
    expect(await screen.findByRole("img", { name: "Enabled, not tested" })).toBeTruthy();
  });

  it("is tested again in the list when an edit of it is saved", async () => {
    answer("GET /api/v1/providers", page([GATEWAY]));
    answer("PATCH /api/v1/providers/p1", GATEWAY);
    answer("POST /api/v1/providers/p1/test", { ok: false, model: "m", duration_ms: 80, explanation: "The address does not answer." });
    const user = open(<ProvidersPage />);
    await user.click(await screen.findByRole("button", { name: "Edit Main gateway" }));
    await user.click(screen.getByRole("button", { name: "Save" }));
    expect((await screen.findByRole("alert")).textContent).toContain("The address does not answer.");
    expect(screen.queryByRole("dialog")).toBeNull();
  });

  it("shows what is wrong at the field, and keeps what was typed", async () => {
    answer("GET /api/v1/providers", page([]));
    answer(
      "POST /api/v1/providers",
      { code: "invalid_input", message: "base_url: must be a URL", validations: [{ field: "base_url", detail: "must be a URL" }] },
      400,
    );
    const user = open(<ProvidersPage />);
    await user.click(await screen.findByRole("button", { name: "Add a provider" }));
    await user.type(screen.getByLabelText(/Address/), "nowhere");
    await user.click(screen.getByRole("button", { name: "Save" }));
    expect(await screen.findByText("must be a URL")).toBeTruthy();
    expect(screen.getByLabelText<HTMLInputElement>(/Address/).value).toBe("nowhere");
  });
});

describe("git hosts", () => {
  const host = { id: "g1", host: "git.example.com", kind: "gitlab", api_url: "https://git.example.com/api/v4", created_at: "2026-11-01T00:00:00Z" };

  it("ask before a token is deleted", async () => {
    answer("GET /api/v1/git-credentials", page([host]));
    answer("DELETE /api/v1/git-credentials/g1", null, 204);
    const user = open(<GitHosts />);
    await user.click(await screen.findByRole("button", { name: "Delete the token of git.example.com" }));
    expect(sent("DELETE")).toEqual([]);
    await user.click(within(screen.getByRole("dialog")).getByRole("button", { name: "Delete" }));
    await vi.waitFor(() => expect(sent("DELETE")).toHaveLength(1));
  });

  it("take the address of an API that is not at its usual place", async () => {
    answer("GET /api/v1/git-credentials", page([]));
    answer(
      "POST /api/v1/git-credentials",
      { code: "invalid_input", message: "no", validations: [{ field: "api_url", detail: "must begin with https://" }] },
      400,
    );
    const user = open(<GitHosts />);
    await user.click(await screen.findByRole("button", { name: "Add a token" }));
    fill("Host", "git.example.com");
    fill("Token", "t0ken");
    fill(/API address/, "http://git.example.com/api");
    await user.click(screen.getByRole("button", { name: "Save" }));
    expect(sent("POST")[0]?.body).toEqual({ host: "git.example.com", kind: "github", token: "t0ken", api_url: "http://git.example.com/api" });
    expect(await screen.findByText("must begin with https://")).toBeTruthy();
  });

  it("leave the address out where none is given", async () => {
    answer("GET /api/v1/git-credentials", page([]));
    answer("POST /api/v1/git-credentials", host, 201);
    const user = open(<GitHosts />);
    await user.click(await screen.findByRole("button", { name: "Add a token" }));
    fill("Host", "github.com");
    fill("Token", "t0ken");
    await user.click(screen.getByRole("button", { name: "Save" }));
    expect(sent("POST")[0]?.body).toEqual({ host: "github.com", kind: "github", token: "t0ken" });
    await vi.waitFor(() => expect(screen.queryByRole("dialog")).toBeNull());
  });
});

describe("credentials of hosts", () => {
  it("are sent with their form, and never shown again", async () => {
    answer("GET /api/v1/host-credential-configs", page([]));
    answer(
      "POST /api/v1/host-credential-configs",
      { code: "invalid_input", message: "no", validations: [{ field: "group", detail: "there is no such group" }] },
      400,
    );
    const user = open(<HostCredentials shared />);
    await user.click(await screen.findByRole("button", { name: "Add a credential" }));
    fill("Host", "registry.example.org");
    fill("Sent as", "header");
    fill("Header", "PRIVATE-TOKEN");
    fill("Token or password", "s3cret-token");
    fill(/Path/, "/team");
    fill(/Group/, "data");
    await user.click(screen.getByRole("button", { name: "Save" }));
    expect(sent("POST")[0]?.body).toEqual({
      host: "registry.example.org",
      secret: "s3cret-token",
      scheme: "header",
      path: "/team",
      header: "PRIVATE-TOKEN",
      group: "data",
    });
    expect(await screen.findByText("there is no such group")).toBeTruthy();
  });

  it("ask before one is deleted", async () => {
    const one = {
      id: "c1",
      scope: "user",
      group: null,
      host: "git.example.com",
      port: 8443,
      path: "/a",
      scheme: "basic",
      header: "",
      username: "ada",
      created_at: "2026-11-01T00:00:00Z",
    };
    answer("GET /api/v1/host-credentials", page([one]));
    answer("DELETE /api/v1/host-credentials/c1", null, 204);
    const user = open(<HostCredentials />);
    expect(await screen.findByText(/Password of ada/)).toBeTruthy();
    await user.click(screen.getByRole("button", { name: "Delete the credential of git.example.com:8443/a" }));
    expect(sent("DELETE")).toEqual([]);
    await user.click(within(screen.getByRole("dialog")).getByRole("button", { name: "Delete" }));
    await vi.waitFor(() => expect(sent("DELETE")).toHaveLength(1));
  });
});

it("a page that cannot show what it read leaves the list of pages, and another page is shown", async () => {
  vi.spyOn(console, "error").mockImplementation(() => undefined);
  answer("GET /api/v1/providers", page([null]));
  answer("GET /api/v1/groups", page([]));
  const { hook, navigate } = memoryLocation({ path: "/admin/providers" });
  open(
    <Router hook={hook}>
      <SettingsPages />
    </Router>,
  );
  expect((await screen.findByRole("alert")).textContent).toContain("This page of the settings cannot be shown.");
  expect(screen.getByRole("link", { name: "Groups" })).toBeTruthy();
  act(() => navigate("/admin/groups"));
  expect(await screen.findByRole("heading", { level: 1, name: "Groups" })).toBeTruthy();
});

describe("limits", () => {
  const LIMITS = {
    spend_limit_micros: 10_000_000,
    period: "day",
    source: "database",
    updated_at: null,
    settings_spend_limit_micros: 4_000_000,
    settings_period: "month",
    unpriced_model_count: 0,
    overrides: [],
    group_overrides: [],
  };
  const EVERYONE = { name: "Change the limit for everyone" };

  beforeEach(() => answer("GET /api/v1/usage-limits", LIMITS));

  it("shows the limit for everyone, and where it comes from", async () => {
    open(<LimitsPage />);
    expect(await screen.findByText("$10.00 a day for each user")).toBeTruthy();
    expect(screen.getByText(/Set here\. The settings file has \$4\.00 a month\./)).toBeTruthy();
    expect(screen.getByText("No user and no group has a limit of its own.")).toBeTruthy();
  });

  it("sends an amount in micros of a dollar", async () => {
    answer("PUT /api/v1/usage-limits", {});
    const user = open(<LimitsPage />);
    await user.click(await screen.findByRole("button", EVERYONE));
    fill(/Amount/, "2.50");
    await user.click(screen.getByRole("button", { name: "Save" }));
    expect(sent("PUT")[0]?.body).toEqual({ spend_limit_micros: 2_500_000, period: "day" });
  });

  it("does not send what is not an amount", async () => {
    const user = open(<LimitsPage />);
    await user.click(await screen.findByRole("button", EVERYONE));
    fill(/Amount/, "much");
    await user.click(screen.getByRole("button", { name: "Save" }));
    expect(await screen.findByText("An amount such as 10 or 2.50.")).toBeTruthy();
    expect(sent("PUT")).toEqual([]);
  });

  it("lifts the limit for everyone, or takes that of the settings file again", async () => {
    answer("PUT /api/v1/usage-limits", {});
    answer("DELETE /api/v1/usage-limits", null, 204);
    const user = open(<LimitsPage />);
    await user.click(await screen.findByRole("button", EVERYONE));
    await user.click(screen.getByRole("radio", { name: "No limit" }));
    await user.click(screen.getByRole("button", { name: "Save" }));
    await vi.waitFor(() => expect(sent("PUT")[0]?.body).toEqual({ spend_limit_micros: null, period: "day" }));
    await vi.waitFor(() => expect(screen.queryByRole("dialog")).toBeNull());
    await user.click(screen.getByRole("button", EVERYONE));
    await user.click(screen.getByRole("button", { name: "Use the settings file" }));
    await vi.waitFor(() => expect(sent("DELETE").map((one) => one.path)).toEqual(["/api/v1/usage-limits"]));
  });

  it("has nothing to reset where the limit is that of the settings file", async () => {
    answer("GET /api/v1/usage-limits", { ...LIMITS, source: "settings", spend_limit_micros: null, settings_spend_limit_micros: null });
    const user = open(<LimitsPage />);
    expect(await screen.findByText("No limit")).toBeTruthy();
    await user.click(await screen.findByRole("button", EVERYONE));
    expect(screen.queryByRole("button", { name: "Use the settings file" })).toBeNull();
  });

  it("cannot be changed by those who may only read", async () => {
    answer("GET /api/v1/auth/me", { user: { id: "u1", username: "ada", role: "viewer" }, csrf_token: "t" });
    open(<LimitsPage />);
    expect(await screen.findByText("$10.00 a day for each user")).toBeTruthy();
    expect(screen.queryByRole("button", { name: /Change|Add/ })).toBeNull();
  });
});

it("says when a token ends", async () => {
  const ends = new Date(Date.now() + 3.5 * 3_600_000).toISOString();
  const token = { id: "t1", name: "CI", prefix: "chatd_x", scopes: [], created_at: ends, expires_at: ends, last_used_at: null };
  answer("GET /api/v1/auth/tokens", page([token]));
  open(<TokensPage />);
  expect(await screen.findByText("in 3 h")).toBeTruthy();
});

it("shows a new token once, with the scopes that were chosen", async () => {
  answer("GET /api/v1/auth/tokens", page([]));
  answer("POST /api/v1/auth/tokens", { id: "t1", name: "CI", prefix: "chatd_x", scopes: ["chat:read"], token: "chatd_x_secret" }, 201);
  const user = open(<TokensPage />);
  await user.click(await screen.findByRole("button", { name: "Create a token" }));
  await user.type(screen.getByLabelText("Name"), "CI");
  await user.click(screen.getByRole("checkbox", { name: /Upload/ }));
  await user.click(screen.getByRole("button", { name: "Create" }));
  expect(await screen.findByText("chatd_x_secret")).toBeTruthy();
  const made = sent("POST")[0]?.body as { scopes: string[] };
  expect(made.scopes).toEqual(["chat:read", "chat:write"]);
});

it("does not let administrators change their own role", async () => {
  answer(
    "GET /api/v1/users",
    page([
      { id: "u1", username: "ada", role: "admin", status: "active", name: "", email: null, is_service: false, has_password: true, last_seen_at: null },
      { id: "u2", username: "bob", role: "member", status: "active", name: "", email: null, is_service: false, has_password: true, last_seen_at: null },
    ]),
  );
  open(<UsersPage />);
  const own = await screen.findByLabelText<HTMLSelectElement>("Role of ada");
  await vi.waitFor(() => expect(own.disabled).toBe(true));
  expect(screen.getByLabelText<HTMLSelectElement>("Role of bob").disabled).toBe(false);
});

describe("account", () => {
  it("signs this browser out and leaves no draft in it", async () => {
    localStorage.setItem("chatd.draft.new", "private");
    answer("GET /api/v1/auth/sessions", page([]));
    answer("POST /api/v1/auth/logout", null, 204);
    const user = open(<AccountPage />);
    await user.click(await screen.findByRole("button", { name: "Sign out" }));
    await vi.waitFor(() => expect(localStorage.getItem("chatd.draft.new")).toBeNull());
    expect(sent("POST").map((one) => one.path)).toEqual(["/api/v1/auth/logout"]);
  });

  it("says why a sign-out failed, and stays", async () => {
    localStorage.setItem("chatd.draft.new", "private");
    answer("GET /api/v1/auth/sessions", page([]));
    answer("POST /api/v1/auth/logout", { code: "unavailable", message: "The database is away." }, 503);
    const user = open(<AccountPage />);
    await user.click(await screen.findByRole("button", { name: "Sign out" }));
    await vi.waitFor(() => expect(sent("POST")).toHaveLength(1));
    expect(localStorage.getItem("chatd.draft.new")).toBe("private");
  });
});
