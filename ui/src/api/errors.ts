/** Why a request failed. Every failure of `api` is an `ApiError`, but for an abort by its caller. */
import type { components } from "@/api/schema";

export type ErrorBody = components["schemas"]["ErrorBody"];
export type FieldError = components["schemas"]["FieldError"];

/** Codes of failures that no server sent: `status` is 0. */
export type LocalCode = "network" | "timeout";

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
  return (
    typeof value === "object" &&
    value !== null &&
    typeof (value as ErrorBody).code === "string" &&
    typeof (value as ErrorBody).message === "string"
  );
}
