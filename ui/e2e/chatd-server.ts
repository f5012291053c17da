/** A real `chatd serve` with the demo model and a database of its own. */
import { type ChildProcess, execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { chmodSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

export const repository = fileURLToPath(new URL("../..", import.meta.url));
export const python = process.env.CHATD_PYTHON ?? join(repository, ".venv/bin/python");
const program = ["-c", "from chatd.cli.main import main; main()"];
const lastLine = "Ctrl-C stops.";

const EXECUTE = `
import asyncio, os, sys
import asyncpg
from chatd.app.database import open_database
from chatd.cli.process import read_settings
from chatd.clock import SystemClock

async def main():
    settings = read_settings({"data_dir": sys.argv[1]}, None)
    async with open_database(settings, os.environ, SystemClock()) as server:
        session = await asyncpg.connect(server.dsn)
        await session.execute(sys.argv[2])
        await session.close()

asyncio.run(main())`;

export interface ServerOptions {
  /** The settings file. */
  readonly config?: string;
  readonly env?: Readonly<Record<string, string>>;
}

export class ChatdServer {
  url = "";
  private readonly dataDir: string;
  private process: ChildProcess | null = null;
  private port = 0;

  constructor(private readonly options: ServerOptions = {}) {
    const memory = existsSync("/dev/shm") ? "/dev/shm" : tmpdir();
    this.dataDir = mkdtempSync(join(memory, "chatd-page-"));
    // As root the database runs under another account, which must be able to enter.
    chmodSync(this.dataDir, 0o755);
  }

  get pid(): number {
    const pid = this.process?.pid;
    if (pid === undefined) throw new Error("The server does not run.");
    return pid;
  }

  get token(): string {
    return readFileSync(join(this.dataDir, "admin-token"), "utf8").trim();
  }

  /** A second start uses the same port and data. */
  async start(): Promise<void> {
    const config = join(this.dataDir, "chatd.toml");
    writeFileSync(config, this.options.config ?? "");
    const args = ["serve", "--no-browser", "--config", config, "--data-dir", this.dataDir, "--port", String(this.port)];
    const started = spawn(python, [...program, ...args], { env: this.env, stdio: ["ignore", "pipe", "pipe"] });
    this.process = started;
    const errors: string[] = [];
    started.stderr.on("data", (piece: Buffer) => errors.push(piece.toString()));
    for await (const line of createInterface({ input: started.stdout })) {
      if (line.startsWith("  API  ")) this.url = (line.split(/\s+/)[2] ?? "").replace("/api/v1,", "");
      if (line === lastLine) {
        this.port = Number(new URL(this.url).port);
        started.stdout.resume();
        return;
      }
    }
    throw new Error(`chatd did not start:\n${errors.join("")}`);
  }

  /** Ends the server, and waits until it has ended. */
  async stop(signal: NodeJS.Signals = "SIGTERM"): Promise<void> {
    const running = this.process;
    this.process = null;
    if (running?.exitCode !== null || running.signalCode !== null) return;
    const ended = once(running, "exit");
    running.kill(signal);
    await ended;
  }

  async dispose(): Promise<void> {
    await this.stop();
    // A killed server leaves its database and the parent of its workspaces running.
    for (const file of ["pg/cluster/postmaster.pid", "ws-supervisor/lock"]) endProcess(join(this.dataDir, file));
    rmSync(this.dataDir, { recursive: true, force: true, maxRetries: 10, retryDelay: 200 });
  }

  /** Runs an administrative command on the server's database; returns what it prints. */
  async admin(...words: string[]): Promise<string> {
    const args = ["admin", ...words, "--data-dir", this.dataDir];
    const { stdout } = await promisify(execFile)(python, [...program, ...args], { env: { ...this.env, CHATD_SERVER_PORT: String(this.port) } });
    return stdout.trim();
  }

  /** Runs statements on the server's database: rows that only another process would write. */
  async execute(statements: string): Promise<void> {
    await promisify(execFile)(python, ["-c", EXECUTE, this.dataDir, statements], { env: this.env });
  }

  /** A request as the administrator. */
  async api<T>(method: string, path: string, body?: unknown): Promise<T> {
    const sent = typeof body === "string" || body instanceof Uint8Array ? body : body === undefined ? null : JSON.stringify(body);
    const reply = await fetch(`${this.url}/api/v1${path}`, {
      method,
      headers: { authorization: `Bearer ${this.token}` },
      body: sent as BodyInit | null,
    });
    if (!reply.ok) throw new Error(`${method} ${path}: ${reply.status} ${await reply.text()}`);
    return (reply.status === 204 ? null : await reply.json()) as T;
  }

  private get env(): NodeJS.ProcessEnv {
    return { HOME: "/nonexistent", PATH: process.env.PATH ?? "/usr/bin:/bin", ...this.options.env };
  }
}

function endProcess(pidFile: string): void {
  if (!existsSync(pidFile)) return;
  const pid = Number(readFileSync(pidFile, "utf8").split("\n")[0]);
  try {
    if (pid > 1) process.kill(pid, "SIGINT");
  } catch {
    // It has ended already.
  }
}
