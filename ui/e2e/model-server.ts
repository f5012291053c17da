/** A model provider on loopback that speaks OpenAI's wire: it writes at the pace that a test wants, or refuses. */
import { once } from "node:events";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import type { ChatdServer } from "./chatd-server";

export const GOOD_KEY = "sk-good";

export interface Script {
  /** Written at once. */
  readonly start?: string;
  /** Then written one after the other. */
  readonly pieces: readonly string[];
  readonly perSecond: number;
  /** Tools that are called first, by default without arguments; the rest is written after their results. */
  readonly calls?: readonly (string | Call)[];
}

interface Call {
  readonly name: string;
  readonly args: object;
}

interface Request {
  readonly messages: readonly { readonly role: string; readonly content: unknown }[];
  readonly response_format?: object;
}

export class ModelServer {
  private readonly scripts = new Map<string, Script>();
  private readonly listeners = new Set<(answers: number) => void>();
  private answers = 0;
  private readonly server: Server = createServer((request, response) => {
    // A client that goes away in the middle is what tests do.
    void this.reply(request, response).catch(() => response.destroy());
  });

  /** What is written to the prompt that contains `words`. */
  answer(words: string, script: Script): void {
    this.scripts.set(words, script);
  }

  /** Until this many answers have been written in all: without a look at the page. */
  async written(answers: number): Promise<void> {
    while (this.answers < answers) await new Promise<number>((resolve) => this.listeners.add(resolve));
  }

  async start(): Promise<void> {
    this.server.listen(0, "127.0.0.1");
    await once(this.server, "listening");
  }

  get url(): string {
    return `http://127.0.0.1:${(this.server.address() as AddressInfo).port}/v1`;
  }

  stop(): void {
    this.server.close();
    this.server.closeAllConnections();
  }

  private async reply(request: IncomingMessage, response: ServerResponse): Promise<void> {
    let body = "";
    for await (const piece of request) body += String(piece);
    if (request.headers.authorization !== `Bearer ${GOOD_KEY}`) {
      response.writeHead(401, { "content-type": "application/json" });
      response.end(JSON.stringify({ error: { message: "Incorrect API key provided.", type: "invalid_request_error", code: "invalid_api_key" } }));
      return;
    }
    const asked = JSON.parse(body) as Request;
    response.writeHead(200, { "content-type": "text/event-stream" });
    const calls = this.dueCalls(asked);
    if (calls.length > 0) sendCalls(response, calls);
    else await this.write(asked, response);
    sendChunk(response, {}, calls.length > 0 ? "tool_calls" : "stop", { prompt_tokens: 100, completion_tokens: 100, total_tokens: 200 });
    response.end("data: [DONE]\n\n");
  }

  private scriptOf(asked: Request): Script | undefined {
    const prompt = JSON.stringify(asked.messages.findLast((message) => message.role === "user")?.content ?? "");
    return [...this.scripts].find(([words]) => prompt.includes(words))?.[1];
  }

  private dueCalls(asked: Request): readonly (string | Call)[] {
    if (asked.response_format !== undefined || asked.messages.at(-1)?.role === "tool") return [];
    return this.scriptOf(asked)?.calls ?? [];
  }

  private async write(asked: Request, response: ServerResponse): Promise<void> {
    const script = this.scriptOf(asked);
    if (asked.response_format !== undefined || script === undefined) {
      sendChunk(response, { content: asked.response_format === undefined ? "There is no script for that." : '{"title":"A title"}' });
      return;
    }
    if (script.start !== undefined) sendChunk(response, { content: script.start });
    await writePaced(response, script);
    this.answers += 1;
    for (const listener of [...this.listeners]) listener(this.answers);
    this.listeners.clear();
  }
}

/** Due times count from the start: a timer that is late does not make the answer slower. */
function writePaced(response: ServerResponse, { pieces, perSecond }: Script): Promise<void> {
  const startedAt = performance.now();
  let sent = 0;
  return new Promise((resolve) => {
    const timer = setInterval(() => {
      const due = Math.min(pieces.length, Math.floor(((performance.now() - startedAt) / 1000) * perSecond));
      for (; sent < due; sent += 1) sendChunk(response, { content: pieces[sent] });
      if (sent < pieces.length && !response.destroyed) return;
      clearInterval(timer);
      resolve();
    }, 5);
  });
}

function sendCalls(response: ServerResponse, wanted: readonly (string | Call)[]): void {
  const calls = wanted.map((one, index) => {
    const { name, args } = typeof one === "string" ? { name: one, args: {} } : one;
    return { index, id: `call-${index}`, type: "function", function: { name, arguments: JSON.stringify(args) } };
  });
  sendChunk(response, { tool_calls: calls });
}

function sendChunk(response: ServerResponse, delta: object, finish_reason: string | null = null, usage: object | null = null): void {
  const chunk = { id: "c", object: "chat.completion.chunk", created: 0, model: "wire", choices: [{ index: 0, delta, finish_reason }], usage };
  response.write(`data: ${JSON.stringify(chunk)}\n\n`);
}

/** Adds the provider and a model of it to the server; returns the model's id. */
export async function addModel(server: ChatdServer, model: ModelServer, name: string, key = GOOD_KEY): Promise<string> {
  await server.api("POST", "/providers", { name, kind: "openai-compat", base_url: model.url, api_keys: [key] });
  const added = await server.api<{ id: string }>("POST", "/models", {
    name,
    provider: name,
    model: "wire",
    prices: { input: "10", output: "10" },
    capabilities: { context_limit: 1_000_000 },
  });
  return added.id;
}
