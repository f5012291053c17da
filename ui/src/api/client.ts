/**
 * Requests to the server, typed by the paths of its OpenAPI document. With the cookie of a session,
 * a change needs the header X-CSRF-Token: it is fetched once, and again when the server refuses it.
 */
import type { components, paths } from "./schema";

type Method = "get" | "post" | "put" | "patch" | "delete";
interface Operation {
  parameters: { query?: unknown; path?: unknown; header?: unknown };
  requestBody?: unknown;
  responses: object;
}

type OperationOf<P extends keyof paths, M extends Method> = paths[P] extends Record<M, infer O> ? (O extends Operation ? O : never) : never;
type PathsOf<M extends Method> = {
  [P in keyof paths]: OperationOf<P, M> extends never ? never : P;
}[keyof paths];

type QueryOf<O extends Operation> = NonNullable<O["parameters"]["query"]>;
type PathOf<O extends Operation> = NonNullable<O["parameters"]["path"]>;
type ContentOf<B> = B extends { content: infer C } ? C : never;
type BodyOf<O extends Operation> =
  ContentOf<NonNullable<O["requestBody"]>> extends infer C
    ? C extends { "application/octet-stream": unknown }
      ? Blob | string
      : C extends { "application/json": infer J }
        ? J
        : Blob | string
    : never;

type ReplyContent<R> = R extends { content: infer C } ? (C extends { "application/json": infer J } ? J : string) : undefined;
type ReplyOf<O extends Operation> = {
  [S in keyof O["responses"]]: S extends 200 | 201 | 202 | 204 ? ReplyContent<O["responses"][S]> : never;
}[keyof O["responses"]];

type PathOption<O extends Operation> = [PathOf<O>] extends [never] ? { path?: never } : { path: PathOf<O> };
type QueryOption<O extends Operation> = [QueryOf<O>] extends [never]
  ? { query?: never }
  : undefined extends O["parameters"]["query"]
    ? { query?: { [K in keyof QueryOf<O>]?: QueryOf<O>[K] | undefined } }
    : { query: QueryOf<O> };
type BodyOption<O extends Operation> = [BodyOf<O>] extends [never]
  ? { body?: never }
  : undefined extends O["requestBody"]
    ? { body?: BodyOf<O> }
    : { body: BodyOf<O> };

type RequestOptions<O extends Operation> = PathOption<O> &
  QueryOption<O> &
  BodyOption<O> & { headers?: Record<string, string>; signal?: AbortSignal; timeoutMs?: number };

type Rest<T> = Partial<T> extends T ? [options?: T] : [options: T];
type Caller<M extends Method> = <P extends PathsOf<M>>(path: P, ...rest: Rest<RequestOptions<OperationOf<P, M>>>) => Promise<ReplyOf<OperationOf<P, M>>>;

type QueryValue = string | number | boolean | null | undefined | readonly (string | number)[];

interface AnyOptions {
  path?: Record<string, string | number>;
  query?: Record<string, QueryValue>;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
  timeoutMs?: number;
}

const DEFAULT_TIMEOUT_MS = 60_000;
const CSRF_REFUSED = "csrf_token_required";

let csrfToken: Promise<string | null> | null = null;
const signedOutListeners = new Set<() => void>();

/** Called when the server no longer knows the session. Returns how to stop listening. */
export function onSignedOut(listener: () => void): () => void {
  signedOutListeners.add(listener);
  return () => signedOutListeners.delete(listener);
}

/** After a sign-in, or from `GET /auth/me`. Null: the next change fetches it. */
export function setCsrfToken(token: string | null): void {
  csrfToken = token === null ? null : Promise.resolve(token);
}

/** The header that a change needs, for requests that do not go through `api`. */
export async function csrfHeaders(): Promise<Record<string, string>> {
  csrfToken ??= fetchCsrfToken();
  const pending = csrfToken;
  try {
    const token = await pending;
    return token === null ? {} : { "X-CSRF-Token": token };
  } catch (error) {
    if (csrfToken === pending) csrfToken = null;
    throw error;
  }
}

async function fetchCsrfToken(): Promise<string | null> {
  const reply = await send("GET", "/api/v1/auth/me", {});
  const me = (await readReply(reply)) as { csrf_token: string | null };
  return me.csrf_token;
}

export function urlOf(path: string, options: Pick<AnyOptions, "path" | "query"> = {}): string {
  const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => {
    const value = options.path?.[name];
    if (value === undefined) throw new Error(`${path} needs ${name}`);
    return encodeURIComponent(String(value));
  });
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(options.query ?? {})) {
    for (const one of Array.isArray(value) ? (value as readonly (string | number)[]) : [value]) {
      if (one != null) query.append(name, String(one));
    }
  }
  const text = query.toString();
  return text === "" ? filled : `${filled}?${text}`;
}

async function send(method: string, path: string, options: AnyOptions): Promise<Response> {
  const headers = new Headers({ Accept: "application/json", ...options.headers });
  const timeout = AbortSignal.timeout(options.timeoutMs ?? DEFAULT_TIMEOUT_MS);
  const init: RequestInit = {
    method,
    headers,
    credentials: "same-origin",
    signal: options.signal === undefined ? timeout : AbortSignal.any([options.signal, timeout]),
  };
  if (options.body instanceof Blob || typeof options.body === "string") {
    init.body = options.body;
  } else if (options.body !== undefined) {
    headers.set("Content-Type", "application/json");
    init.body = JSON.stringify(options.body);
  }
  try {
    return await fetch(urlOf(path, options), init);
  } catch (error) {
    if (options.signal?.aborted === true) throw error;
    throw localError(timeout.aborted ? "timeout" : "network");
  }
}

async function readReply(reply: Response): Promise<unknown> {
  if (!reply.ok) throw await readError(reply);
  if (reply.status === 204) return undefined;
  try {
    const isJson = reply.headers.get("Content-Type")?.startsWith("application/json") ?? false;
    return isJson ? await reply.json() : await reply.text();
  } catch {
    throw localError("network");
  }
}

async function request(method: string, path: string, options: AnyOptions = {}): Promise<unknown> {
  try {
    return await attempt(method, path, options);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.code === CSRF_REFUSED) {
      // The session was replaced, by a sign-in in another tab. The refused request changed nothing.
      csrfToken = null;
      return attempt(method, path, options);
    }
    if (error.status === 401 && error.code === "unauthorized") {
      csrfToken = null;
      for (const listener of [...signedOutListeners]) listener();
    }
    throw error;
  }
}

/** Before a sign-in there is no session and no token. */
const WITHOUT_SESSION = new Set(["/api/v1/auth/login", "/api/v1/auth/link", "/api/v1/setup"]);

async function attempt(method: string, path: string, options: AnyOptions): Promise<unknown> {
  const needsToken = method !== "GET" && !WITHOUT_SESSION.has(path);
  const headers = needsToken ? { ...(await csrfHeaders()), ...options.headers } : options.headers;
  return readReply(await send(method, path, headers === undefined ? options : { ...options, headers }));
}

function caller<M extends Method>(method: M): Caller<M> {
  const call = (path: string, options?: AnyOptions) => request(method.toUpperCase(), path, options);
  return call as Caller<M>;
}

export const api = {
  GET: caller("get"),
  POST: caller("post"),
  PUT: caller("put"),
  PATCH: caller("patch"),
  DELETE: caller("delete"),
};

// Why a request failed. Every failure of `api` is an `ApiError`, but for an abort by its caller.

export type ErrorBody = components["schemas"]["ErrorBody"];
type FieldError = components["schemas"]["FieldError"];

/** Codes of failures that no server sent: `status` is 0. */
type LocalCode = "network" | "timeout";

export class ApiError extends Error {
  override readonly name = "ApiError";
  readonly status: number;
  readonly code: string;
  readonly detail: string | null;
  readonly validations: readonly FieldError[];
  readonly body: ErrorBody;
  /** The header Retry-After in milliseconds. */
  readonly retryAfterMs: number | null;

  constructor(status: number, body: ErrorBody, retryAfterMs: number | null = null) {
    super(body.message);
    this.status = status;
    this.code = body.code;
    this.detail = body.detail ?? null;
    this.validations = body.validations ?? [];
    this.body = body;
    this.retryAfterMs = retryAfterMs;
  }

  /** Whether the same request may succeed later: nothing was written, or it is not known. */
  get isTemporary(): boolean {
    return this.status === 0 || this.status === 408 || this.status >= 500 || this.code === "rate_limited";
  }
}

const LOCAL_MESSAGES: Record<LocalCode, string> = {
  network: "The server cannot be reached. Check the connection.",
  timeout: "The server did not answer in time. Try again.",
};

export function localError(code: LocalCode): ApiError {
  return new ApiError(0, { code, message: LOCAL_MESSAGES[code] });
}

/** The error of a reply with a status of 400 or above, also of a proxy that sends no JSON. */
export async function readError(reply: Response): Promise<ApiError> {
  const seconds = Number(reply.headers.get("Retry-After") ?? Number.NaN);
  const retryAfterMs = Number.isFinite(seconds) ? seconds * 1000 : null;
  return new ApiError(reply.status, errorBody(reply.status, await reply.text().catch(() => "")), retryAfterMs);
}

export function errorBody(status: number, text: string): ErrorBody {
  try {
    const value: unknown = JSON.parse(text);
    if (isErrorBody(value)) return value;
  } catch {
    // Not JSON: a proxy answered.
  }
  return { code: `http_${status}`, message: `The server answered with the status ${status}.` };
}

function isErrorBody(value: unknown): value is ErrorBody {
  return typeof value === "object" && value !== null && typeof (value as ErrorBody).code === "string" && typeof (value as ErrorBody).message === "string";
}
