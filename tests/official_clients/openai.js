// OpenAI's own package for TypeScript against chatd. The arguments: a scenario, and {url, token}.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { ask, main } from "./steps.js";

const MODEL = "scripted";
const user = (content) => ({ role: "user", content });
const WEATHER = {
  name: "weather",
  description: "The weather of a city.",
  parameters: { type: "object", properties: { city: { type: "string" } } },
};
const PNG =
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==";

const clientOf = ({ url, token }, maxRetries = 0) =>
  new OpenAI({ baseURL: `${url}/v1`, apiKey: token, maxRetries });

async function completions(server) {
  const client = clientOf(server);
  const models = [];
  for await (const one of client.models.list()) models.push(one.id);
  assert.deepEqual(models, ["chatd", "demo", "scripted"]);
  assert.equal((await client.models.retrieve(MODEL)).id, MODEL);

  await ask("answer", { text: "Good day." });
  const first = await client.chat.completions.create({ model: MODEL, messages: [user("hello")] });
  assert.equal(first.choices[0].message.content, "Good day.");
  assert.equal(first.choices[0].finish_reason, "stop");
  assert.equal(typeof first.usage.total_tokens, "number");

  // The helper checks the order of chunks, and puts them together.
  await ask("answer", { text: "Very well." });
  const told = [user("hello"), first.choices[0].message, user("how are you?")];
  const stream = client.chat.completions.stream({
    model: MODEL,
    messages: told,
    stream_options: { include_usage: true },
  });
  let text = "";
  for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? "";
  const whole = await stream.finalChatCompletion();
  assert.equal(text, "Very well.");
  assert.equal(whole.choices[0].message.content, text);
  assert.equal(typeof (await stream.totalUsage()).total_tokens, "number");
  assert.equal((await ask("chats")).count, 1);

  // The helper calls the function, sends its output, and asks again until there is an answer.
  for (const stream of [false, true]) {
    const cities = [];
    await ask("call", { name: "weather", arguments: '{"city":"Oslo"}' });
    await ask("answer", { text: "It rains." });
    const runner = client.chat.completions.runTools({
      model: MODEL,
      messages: [user(`weather? ${stream}`)],
      stream,
      tools: [
        {
          type: "function",
          function: {
            ...WEATHER,
            parse: JSON.parse,
            function: ({ city }) => {
              cities.push(city);
              return `rain in\n${city}`;
            },
          },
        },
      ],
    });
    assert.equal(await runner.finalContent(), "It rains.");
    assert.deepEqual(cities, ["Oslo"]);
    // The model reads the text as the function gave it.
    assert.deepEqual((await ask("sent")).at(-1), ["tool", "rain in\nOslo"]);
  }
  assert.equal((await ask("chats")).count, 3);

  await ask("answer", { text: "A dot." });
  const picture = { type: "image_url", image_url: { url: `data:image/png;base64,${PNG}` } };
  const seen = await client.chat.completions.create({
    model: MODEL,
    messages: [user([{ type: "text", text: "what is it?" }, picture])],
  });
  assert.equal(seen.choices[0].message.content, "A dot.");
  assert.match(JSON.stringify(await ask("sent")), /image_url/);
}

/** Read events, which must be numbered in order. */
async function read(events, until = () => false) {
  const found = { text: "", types: [], last: -1, response: null };
  for await (const event of events) {
    assert.ok(event.sequence_number > found.last, `${event.type} comes after ${found.last}`);
    found.last = event.sequence_number;
    found.types.push(event.type);
    if (event.response) found.response = event.response;
    if (event.type === "response.output_text.delta") found.text += event.delta;
    if (until(found)) break;
  }
  return found;
}

async function responses(server) {
  const client = clientOf(server);
  await ask("answer", { text: "Good day." });
  const first = await client.responses.create({ model: MODEL, input: "hello", instructions: "Be kind." });
  assert.deepEqual([first.status, first.output_text], ["completed", "Good day."]);
  assert.equal(typeof first.usage.total_tokens, "number");

  // The helper checks that every event fits to those before it.
  await ask("answer", { text: "Very well." });
  const stream = client.responses.stream({ model: MODEL, input: "and you?", previous_response_id: first.id });
  const deltas = [];
  stream.on("response.output_text.delta", (event) => deltas.push(event.delta));
  const second = await stream.finalResponse();
  assert.equal(deltas.join(""), "Very well.");
  assert.deepEqual([second.status, second.output_text], ["completed", "Very well."]);
  assert.deepEqual(second.conversation, first.conversation);

  // In the background; the stream is left, and resumed where it was.
  const story = "The lamp was lit before the storm.";
  await ask("answer", { text: story, held: true });
  const begun = await client.responses.create({
    model: MODEL,
    input: "tell me",
    conversation: first.conversation.id,
    background: true,
  });
  assert.deepEqual([begun.status, begun.background], ["in_progress", true]);
  await ask("reached");
  const part = await read(
    await client.responses.retrieve(begun.id, { stream: true }),
    ({ text }) => text !== "",
  );
  assert.ok(story.startsWith(part.text));
  assert.equal((await client.responses.retrieve(begun.id)).status, "in_progress");
  await ask("open");
  const rest = await read(
    await client.responses.retrieve(begun.id, { stream: true, starting_after: part.last }),
  );
  assert.equal(part.text + rest.text, story);
  assert.equal(rest.types.at(-1), "response.completed");
  // The helper reads all of it again and passes on what is new.
  const again = await client.responses.stream({ response_id: begun.id }).finalResponse();
  assert.equal(again.output_text, story);

  await ask("answer", { text: "An endless story, word by word.", held: true });
  const endless = await client.responses.create({ model: MODEL, input: "more", background: true });
  await ask("reached");
  const stopped = await client.responses.cancel(endless.id);
  assert.equal(stopped.status, "cancelled");
  assert.equal((await client.responses.cancel(endless.id)).status, "cancelled");
  await ask("open");

  await ask("call", { name: "weather", arguments: '{"city":"Oslo"}' });
  const tools = [{ type: "function", ...WEATHER, strict: false }, { type: "web_search" }];
  const asked = await client.responses
    .stream({ model: MODEL, input: "weather?", tools })
    .on("response.function_call_arguments.done", (event) => assert.equal(event.name, "weather"))
    .finalResponse();
  const call = asked.output.find((one) => one.type === "function_call");
  assert.deepEqual([call.name, call.arguments], ["weather", '{"city":"Oslo"}']);
  // What chatd cannot offer is left out, and the response says what is offered.
  assert.deepEqual(asked.tools.map((tool) => tool.name), ["weather"]);
  await ask("answer", { text: "It rains." });
  const output = { type: "function_call_output", call_id: call.call_id, output: "rain" };
  const done = await client.responses.create({
    model: MODEL,
    previous_response_id: asked.id,
    input: [output],
  });
  assert.equal(done.output_text, "It rains.");

  // The same, by a client that sends everything again, as Codex does.
  await ask("answer", { text: "Good." });
  const all = [user("weather?"), ...asked.output, output, ...done.output, user("thanks")];
  const last = await client.responses.create({ model: MODEL, input: all, tools, store: false });
  assert.equal(last.output_text, "Good.");
  assert.deepEqual(last.conversation, asked.conversation);
}

async function errors(server) {
  const client = clientOf(server);
  const messages = [user("hello")];
  const cases = [
    [{ model: "gpt-none", messages }, OpenAI.NotFoundError, "model_not_found"],
    [{ model: MODEL, messages, n: 2 }, OpenAI.BadRequestError, "unsupported_parameter"],
    [{ model: MODEL, messages: [] }, OpenAI.APIError, null],
  ];
  for (const [body, kind, code] of cases) {
    await assert.rejects(client.chat.completions.create(body), (error) => {
      assert.ok(error instanceof kind, `${error}`);
      return code === null || error.code === code;
    });
  }
  const search = { model: MODEL, input: "hello", tools: [{ type: "web_search" }] };
  await assert.rejects(client.responses.create(search), OpenAI.BadRequestError);
  await assert.rejects(client.responses.retrieve("resp_0"), OpenAI.NotFoundError);
  await assert.rejects(
    clientOf({ ...server, token: "no-token" }).models.list(),
    (error) => error instanceof OpenAI.AuthenticationError && error.code === "invalid_api_key",
  );
  assert.equal((await ask("chats")).count, 0);

  // An error of the model, in each form in which a client can read it.
  await ask("refuse");
  await assert.rejects(
    clientOf(server, 2).chat.completions.create({ model: MODEL, messages }),
    OpenAI.InternalServerError,
  );
  assert.equal((await ask("chats")).count, 1);
  await ask("refuse");
  const stream = await client.chat.completions.create({ model: MODEL, messages, stream: true });
  await assert.rejects(
    (async () => {
      for await (const _ of stream);
    })(),
    OpenAI.APIError,
  );
  await ask("refuse");
  const failed = await client.responses.create({ model: MODEL, input: "hello" });
  assert.equal(failed.status, "failed");
  assert.ok(failed.error.message);
}

/** The server is killed in the middle of three answers, and started again. */
async function killed(server) {
  const client = clientOf(server);
  const BEGINNING = "The lamp was lit ";
  const WHOLE = "The lamp was lit before the storm came.";
  const body = { model: "fake", input: "a response" };

  const part = { text: "", last: -1, id: "" };
  const reading = (async () => {
    for await (const event of await client.responses.create({ ...body, stream: true })) {
      part.last = event.sequence_number;
      if (event.response) part.id = event.response.id;
      if (event.type === "response.output_text.delta") part.text += event.delta;
    }
  })();
  await ask("reached");
  const options = { idempotencyKey: "once", headers: { "Idempotency-Key": "once" } };
  const completion = { model: "fake", messages: [user("a completion")], stream: true };
  const chunks = await client.chat.completions.create(completion, options);
  const completing = (async () => {
    for await (const _ of chunks);
  })();
  await ask("reached");
  // Its package asks again by itself until the server is back.
  const waiting = clientOf(server, 60).responses.create({ ...body, input: "an answer" });
  await ask("reached");

  // Both streams end with an error of the connection, not as if the answer were whole.
  const ends = Promise.allSettled([reading, completing]);
  await ask("kill");
  for (const end of await ends) assert.equal(end.status, "rejected");
  assert.equal(part.text, BEGINNING);
  await ask("restart");

  const rest = await read(
    await client.responses.retrieve(part.id, { stream: true, starting_after: part.last }),
  );
  assert.equal(part.text + rest.text, WHOLE);
  assert.equal((await client.responses.retrieve(part.id)).output_text, WHOLE);
  let text = "";
  for await (const one of await client.chat.completions.create(completion, options))
    text += one.choices[0]?.delta.content ?? "";
  assert.equal(text, WHOLE);
  assert.equal((await waiting).output_text, WHOLE);
  assert.equal((await ask("chats")).count, 3);
}

await main({ completions, responses, errors, killed });
