// The protocol's own package for TypeScript as an editor, over `chatd acp`. The arguments: a scenario, and {command, cwd, env}.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { Readable, Writable } from "node:stream";
import * as acp from "@agentclientprotocol/sdk";
import { ask, main } from "./steps.js";

const { session: SESSION, initialize: INITIALIZE, authenticate: AUTHENTICATE } = acp.methods.agent;
const says = (text) => [{ type: "text", text }];
const texts = (updates, kind) =>
  updates.filter((one) => one.sessionUpdate === kind).map((one) => one.content.text).join("");

/** An editor: the package checks every message of both sides against the schema of the protocol. */
async function withEditor({ command, cwd, env }, run) {
  const agent = spawn(command[0], command.slice(1), { cwd, env, stdio: ["pipe", "pipe", "inherit"] });
  const editor = { updates: [], asked: [], choice: "approve", changed: () => {} };
  editor.said = () => texts(editor.updates, "agent_message_chunk");
  editor.calls = () => editor.updates.filter((one) => one.sessionUpdate.startsWith("tool_call"));
  editor.until = async (look) => {
    while (!look()) await new Promise((resolve) => (editor.changed = resolve));
  };
  const stream = acp.ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout));
  const app = acp
    .client({ name: "test editor" })
    .onNotification(acp.methods.client.session.update, ({ params }) => {
      editor.updates.push(params.update);
      editor.changed();
    })
    .onRequest(acp.methods.client.session.requestPermission, ({ params }) => {
      editor.asked.push(params);
      return { outcome: { outcome: "selected", optionId: editor.choice } };
    });
  const ended = new Promise((resolve) => agent.on("exit", resolve));
  try {
    return await app.connectWith(stream, async (context) => {
      const told = await context.request(INITIALIZE, {
        protocolVersion: acp.PROTOCOL_VERSION,
        clientCapabilities: {},
        clientInfo: { name: "test editor", version: "1" },
      });
      assert.equal(told.protocolVersion, acp.PROTOCOL_VERSION);
      assert.equal(told.agentInfo.name, "chatd");
      assert.equal(told.agentCapabilities.loadSession, true);
      return await run(context, editor);
    });
  } finally {
    // Its input has ended: so does it.
    agent.stdin.end();
    await ended;
  }
}

const call = (name, args) => ask("call", { name, arguments: JSON.stringify(args) });
const newSession = (context, cwd) => context.request(SESSION.new, { cwd, mcpServers: [] });
const prompt = (context, sessionId, text) => context.request(SESSION.prompt, { sessionId, prompt: says(text) });

async function sessions(given) {
  const { cwd } = given;
  let sessionId;
  await withEditor(given, async (context, editor) => {
    await context.request(AUTHENTICATE, { methodId: "chatd-login" });
    const made = await newSession(context, cwd);
    sessionId = made.sessionId;
    assert.deepEqual(made.modes.availableModes.map((one) => one.id), ["default", "plan"]);

    await ask("answer", { text: "Good day." });
    assert.equal((await prompt(context, sessionId, "hello")).stopReason, "end_turn");
    assert.equal(editor.said(), "Good day.");

    // Interrupted: what was said is kept, and the next prompt goes on.
    await ask("answer", { text: "A long answer that is cut.", held: true });
    const cut = prompt(context, sessionId, "tell me");
    await editor.until(() => editor.said().includes("A long answer"));
    await context.notify(SESSION.cancel, { sessionId });
    assert.equal((await cut).stopReason, "cancelled");
    await ask("open");
    assert.equal((await ask("chats")).count, 1);

    await assert.rejects(prompt(context, "no-session", "x"), { code: -32002 });
    await assert.rejects(context.request(SESSION.new, { cwd: "not/absolute", mcpServers: [] }), { code: -32602 });
    await assert.rejects(context.request("session/unknown", {}), { code: -32601 });
    await assert.rejects(context.request(SESSION.setMode, { sessionId, modeId: "none" }), { code: -32602 });
    await context.request(SESSION.setMode, { sessionId, modeId: "plan" });
    await context.request(SESSION.close, { sessionId });
    await context.request(SESSION.close, { sessionId });
  });
  await withEditor(given, async (context, editor) => {
    const { sessions: listed } = await context.request(SESSION.list, { cwd });
    assert.deepEqual(listed.map((one) => [one.sessionId, one.cwd]), [[sessionId, cwd]]);
    assert.deepEqual((await context.request(SESSION.list, { cwd: "/elsewhere" })).sessions, []);

    const loaded = await context.request(SESSION.load, { sessionId, cwd, mcpServers: [] });
    assert.equal(loaded.modes.currentModeId, "plan");
    assert.equal(texts(editor.updates, "user_message_chunk"), "hellotell me");
    const before = editor.said();
    assert.ok(before.startsWith("Good day.A long answer"), before);
    await context.request(SESSION.close, { sessionId });

    // Resumed: only what is new is told.
    editor.updates.length = 0;
    await context.request(SESSION.resume, { sessionId, cwd, mcpServers: [] });
    await context.request(SESSION.setMode, { sessionId, modeId: "default" });
    await ask("answer", { text: "On we go." });
    assert.equal((await prompt(context, sessionId, "go on")).stopReason, "end_turn");
    assert.equal(editor.said(), "On we go.");
    await assert.rejects(context.request(SESSION.load, { sessionId: "7", cwd, mcpServers: [] }), { code: -32002 });
  });
  assert.equal((await ask("chats")).count, 1);
}

async function permissions(given) {
  await withEditor(given, async (context, editor) => {
    const { sessionId } = await newSession(context, given.cwd);
    await ask("rules");
    for (const [choice, status] of [["approve", "completed"], ["deny", "failed"], ["always", "completed"]]) {
      editor.choice = choice;
      editor.updates.length = 0;
      await call("list_agents", {});
      await ask("answer", { text: "So be it." });
      assert.equal((await prompt(context, sessionId, choice)).stopReason, "end_turn");
      assert.equal(editor.said(), "I look.So be it.");
      const [first, ...later] = editor.calls();
      assert.deepEqual([first.sessionUpdate, first.title], ["tool_call", "list_agents"]);
      assert.deepEqual(new Set(later.map((one) => one.toolCallId)), new Set([first.toolCallId]));
      assert.equal(later.at(-1).status, status);
      assert.equal(editor.asked.at(-1).toolCall.toolCallId, first.toolCallId);
    }
    assert.deepEqual(editor.asked.map((one) => one.options.map((option) => option.kind)), Array(3).fill(["allow_once", "allow_always", "reject_once"]));
    // What was always allowed is not asked for again.
    await call("list_agents", {});
    await ask("answer", { text: "Done." });
    await prompt(context, sessionId, "again");
    assert.equal(editor.asked.length, 3);
  });
}

async function work(given) {
  await withEditor(given, async (context, editor) => {
    const { sessionId } = await newSession(context, given.cwd);
    const path = `${given.cwd}/lamp.txt`;
    await call("write_file", { path, content: "lit\n" });
    await call("edit_files", { files: [{ path, edits: [{ old_text: "lit", new_text: "dark" }] }] });
    await call("execute", { command: "cat lamp.txt" });
    await ask("answer", { text: "It is dark." });
    assert.equal((await prompt(context, sessionId, "light the lamp")).stopReason, "end_turn");
    const calls = editor.calls();
    const done = calls.filter((one) => one.status === "completed");
    assert.equal(done.length, 3, JSON.stringify(calls));
    const diffs = calls.flatMap((one) => one.content ?? []).filter((one) => one.type === "diff");
    assert.deepEqual(
      diffs.map((one) => [one.path.split("/").at(-1), one.oldText ?? null, one.newText]),
      [["lamp.txt", null, "lit\n"], ["lamp.txt", "lit", "dark"]],
    );
    assert.match(JSON.stringify(done.at(-1).content), /dark/);
    assert.ok(calls.some((one) => one.locations?.length === 1));

    await context.request(SESSION.setMode, { sessionId, modeId: "plan" });
    const { path: plan } = await ask("plan_path");
    await call("write_file", { path: plan, content: "# Lamp\n\n1. Find oil\n2. Light it\n" });
    await call("propose_plan", {});
    await ask("answer", { text: "That is the plan." });
    await prompt(context, sessionId, "plan it");
    await editor.until(() => editor.updates.some((one) => one.sessionUpdate === "plan"));
    const { entries } = editor.updates.find((one) => one.sessionUpdate === "plan");
    assert.deepEqual(entries.map((one) => one.content), ["Find oil", "Light it"]);
  });
}

async function killed(given) {
  await withEditor(given, async (context, editor) => {
    const { sessionId } = await newSession(context, given.cwd);
    const waiting = prompt(context, sessionId, "tell me of the lamp");
    await editor.until(() => editor.said().includes(given.beginning));
    await ask("kill");
    await ask("restart");
    assert.equal((await waiting).stopReason, "end_turn");
    assert.equal(editor.said(), given.whole);
  });
  assert.equal((await ask("chats")).count, 1);
}

await main({ sessions, permissions, work, killed });
