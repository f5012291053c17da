/** An MCP server while it is edited, and what is sent of it. Pure. */
import type { components } from "@/api/schema";

export type McpConfig = components["schemas"]["McpServerConfigReply"];
export type CreateBody = components["schemas"]["CreateMcpServerBody"];
export type UpdateBody = components["schemas"]["UpdateMcpServerBody"];

export interface McpDraft {
  readonly name: string;
  readonly slug: string;
  readonly description: string;
  readonly url: string;
  readonly transport: McpConfig["transport"];
  readonly auth: McpConfig["auth"];
  readonly availability: McpConfig["availability"];
  readonly enabled: boolean;
  readonly allow: string;
  readonly deny: string;
  readonly modelIntent: boolean;
  readonly inPlanMode: boolean;
  readonly keyHeader: string;
  readonly key: string;
  /** `Name: value`, one a line. */
  readonly headers: string;
  readonly scopes: string;
  readonly clientId: string;
  readonly clientSecret: string;
  readonly authorizationUrl: string;
  readonly tokenUrl: string;
}

export const NEW_SERVER: McpDraft = {
  name: "",
  slug: "",
  description: "",
  url: "",
  transport: "streamable_http",
  auth: "none",
  availability: "default_on",
  enabled: true,
  allow: "",
  deny: "",
  modelIntent: false,
  inPlanMode: false,
  keyHeader: "",
  key: "",
  headers: "",
  scopes: "",
  clientId: "",
  clientSecret: "",
  authorizationUrl: "",
  tokenUrl: "",
};

export function draftOfServer(server: McpConfig): McpDraft {
  return {
    ...NEW_SERVER,
    name: server.display_name,
    slug: server.slug,
    description: server.description,
    url: server.url,
    transport: server.transport,
    auth: server.auth,
    availability: server.availability,
    enabled: server.enabled,
    allow: server.allow.join("\n"),
    deny: server.deny.join("\n"),
    modelIntent: server.model_intent,
    inPlanMode: server.allow_in_plan_mode,
    keyHeader: server.api_key_header ?? "",
    scopes: server.scopes,
    clientId: server.oauth?.client_id ?? "",
    authorizationUrl: server.oauth?.authorization_url ?? "",
    tokenUrl: server.oauth?.token_url ?? "",
  };
}

/** "My tracker" becomes "my-tracker": the beginning of its tools' names. */
export const slugOf = (text: string): string =>
  text
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "-")
    .replace(/^-+|-+$/g, "")
    .slice(0, 32)
    .replace(/-+$/, "");

/** What is left empty of the secrets is not sent: the stored ones stay. Throws an Error for a header that is none. */
export function bodyOfDraft(draft: McpDraft): CreateBody {
  return {
    slug: draft.slug.trim() || slugOf(draft.name),
    url: draft.url.trim(),
    ...(draft.name.trim() === "" ? {} : { display_name: draft.name.trim() }),
    description: draft.description.trim(),
    transport: draft.transport,
    auth: draft.auth,
    availability: draft.availability,
    enabled: draft.enabled,
    allow: linesOf(draft.allow),
    deny: linesOf(draft.deny),
    model_intent: draft.modelIntent,
    allow_in_plan_mode: draft.inPlanMode,
    ...authOf(draft),
  };
}

function authOf(draft: McpDraft): Partial<CreateBody> {
  if (draft.auth === "api_key") {
    return {
      ...(draft.keyHeader.trim() === "" ? {} : { api_key_header: draft.keyHeader.trim() }),
      ...(draft.key.trim() === "" ? {} : { api_key: draft.key.trim() }),
    };
  }
  if (draft.auth === "custom_headers") return draft.headers.trim() === "" ? {} : { headers: headersOf(draft.headers) };
  if (draft.auth !== "oauth2") return {};
  const oauth = {
    client_id: draft.clientId.trim(),
    authorization_url: draft.authorizationUrl.trim(),
    token_url: draft.tokenUrl.trim(),
    ...(draft.clientSecret.trim() === "" ? {} : { client_secret: draft.clientSecret.trim() }),
  };
  return { scopes: draft.scopes.trim(), ...(draft.clientId.trim() === "" ? {} : { oauth }) };
}

export function headersOf(text: string): Record<string, string> {
  return Object.fromEntries(
    linesOf(text).map((line) => {
      const at = line.indexOf(":");
      if (at < 1) throw new Error(`“${line}” is no header: write its name, a colon and its value.`);
      return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
    }),
  );
}

function linesOf(text: string): string[] {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line !== "");
}
