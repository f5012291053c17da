/** Tests with a model on the wire: a server of their own, since such a model becomes the default. */
import { ChatdServer } from "./chatd-server";
import { addModel, ModelServer } from "./model-server";
import { test as base } from "./test";

export const MODEL = "wire";

export const test = base.extend<object, { model: ModelServer }>({
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
  server: [
    async ({ model }, use) => {
      const server = new ChatdServer();
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
