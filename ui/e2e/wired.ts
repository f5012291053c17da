/** Tests with a model and MCP servers on the wire: a server of their own, since such a model becomes the default. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { ChatdServer, python, repository } from "./chatd-server";
import { addModel, ModelServer } from "./model-server";
import { test as base } from "./test";

export const MODEL = "wire";

interface OauthServers {
  readonly issuer: string;
  readonly mcp: string;
}

export const test = base.extend<object, { model: ModelServer; servers: OauthServers }>({
  model: [
    // eslint-disable-next-line no-empty-pattern
    async ({}, use) => {
      const model = new ModelServer();
      await model.start();
      await use(model);
      model.stop();
    },
    { scope: "worker" },
  ],
  servers: [
    // eslint-disable-next-line no-empty-pattern
    async ({}, use) => {
      const started = spawn(python, ["-m", "tests.support.mcp.oauth_servers"], {
        cwd: repository,
        stdio: ["pipe", "pipe", "inherit"],
        env: { ...process.env, PYTHONPATH: `${repository}:${join(repository, "src")}` },
      });
      const [line] = (await once(createInterface({ input: started.stdout }), "line")) as [string];
      await use(JSON.parse(line) as OauthServers);
      started.stdin.end();
    },
    { scope: "worker", timeout: 60_000 },
  ],
  server: [
    async ({ model }, use) => {
      const server = new ChatdServer({ config: '[mcp]\nprivate_hosts = ["127.0.0.1"]\n[files]\nweb_images = "all"\n' });
      try {
        await server.start();
        await addModel(server, model, MODEL);
        await use(server);
      } finally {
        await server.dispose();
      }
    },
    { scope: "worker", timeout: 90_000 },
  ],
});

export { expect, expectAccessible } from "./test";
