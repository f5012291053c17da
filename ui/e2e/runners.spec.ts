/** Runners: what an administrator sees of them and does with them. Their rows are those that connections would write. */
import { expectGoodState } from "./everywhere";
import { expect, test } from "./test";

const TOKEN = /^chatd_runner_[0-9a-f]{12}_[A-Za-z0-9_-]{43}$/;

/** A connected runner of a pool, one that is gone, and a build that waits for a label that no runner has. */
const rows = (tokenId: string) => `
  INSERT INTO runners (id, name, pool, token_id, version, labels, backends, capacity, running, os, arch, orphans, connected_at, seen_at)
  VALUES ('e2e-1', 'rack-1', 'build', '${tokenId}', '0.1.0', '{gpu,big}',
      '[{"kind": "container", "isolation": "runsc", "detail": "Podman 5.4"}, {"kind": "sandbox", "isolation": "bwrap+uid"}]',
      8, 7, 'linux', 'x86_64', '{}', now() + interval '1 hour', now() + interval '1 hour');
  INSERT INTO runners (id, name, pool, token_id, version, backends, os, arch, orphans, connected_at, disconnected_at, seen_at)
  VALUES ('e2e-2', 'rack-2', 'build', '${tokenId}', '99.0.0', '[{"kind": "sandbox"}]', 'linux', 'aarch64',
      '{chatd-ws-old-1,chatd-ws-old-2}', now() - interval '2 hours', now() - interval '1 hour', now() - interval '1 hour');
  INSERT INTO templates (id, name, backend, active_version_id)
  VALUES ('00000000-0000-4000-8000-00000000e2e1', 'e2e-container', 'container', '00000000-0000-4000-8000-00000000e2e2');
  INSERT INTO template_versions (id, template_id, spec)
  VALUES ('00000000-0000-4000-8000-00000000e2e2', '00000000-0000-4000-8000-00000000e2e1', '{"pool": "build", "labels": ["tpu"]}');
  INSERT INTO workspaces (id, owner_id, template_id, name, host_id, latest_build)
  SELECT '00000000-0000-4000-8000-00000000e2e3', id, '00000000-0000-4000-8000-00000000e2e1', 'training', NULL, 1 FROM users WHERE username = 'admin';
  INSERT INTO workspaces (id, owner_id, template_id, name, host_id, latest_build)
  SELECT '00000000-0000-4000-8000-00000000e2e5', id, '00000000-0000-4000-8000-00000000e2e1', 'kept', 'e2e-2', 1 FROM users WHERE username = 'admin';
  INSERT INTO workspace_builds (id, workspace_id, build_number, transition, template_version_id, initiator_id, reason)
  SELECT '00000000-0000-4000-8000-00000000e2e4', id, 1, 'start', '00000000-0000-4000-8000-00000000e2e2', owner_id, 'initiator'
  FROM workspaces WHERE name = 'training';
  INSERT INTO workspace_builds (id, workspace_id, build_number, transition, template_version_id, initiator_id, reason, status, completed_at)
  SELECT '00000000-0000-4000-8000-00000000e2e6', id, 1, 'start', '00000000-0000-4000-8000-00000000e2e2', owner_id, 'initiator', 'succeeded', now()
  FROM workspaces WHERE name = 'kept';`;

const GONE = `
  UPDATE workspaces SET deleted = true WHERE name IN ('training', 'kept');
  UPDATE workspace_builds SET status = 'canceled', completed_at = now() WHERE id = '00000000-0000-4000-8000-00000000e2e4';
  UPDATE templates SET deleted = true WHERE name = 'e2e-container'`;

test("an administrator makes a token, sees runners and why builds wait, drains one and removes one", async ({ page, server }) => {
  test.setTimeout(90_000);
  await page.goto("/admin/runners");
  await expect(page.getByRole("heading", { name: "Workspaces on another machine" })).toBeVisible();
  await expect(page.getByRole("navigation", { name: "Settings" }).getByRole("link", { name: "Runners" })).toBeInViewport({ ratio: 1 });
  const first = page.getByRole("list", { name: "Commands that start a runner" });
  await expect(first.getByRole("listitem")).toHaveCount(3);
  await expect(first).toContainText(`chatd runner start --server ${server.url} --token-file`);
  await expectGoodState(page, "no runner yet");

  await page.getByRole("region", { name: "Tokens" }).getByRole("button", { name: "Create a token" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Pool").fill("No pool");
  await expect(dialog).toContainText("Small letters");
  await expect(dialog.getByRole("button", { name: "Create" })).toBeDisabled();
  await expectGoodState(page, "a token with a wrong pool");
  await dialog.getByLabel("Pool").fill("build");
  await dialog.getByLabel("Name").fill("rack 3");
  await dialog.getByRole("button", { name: "Create" }).click();
  await expect(dialog).toContainText("It is not shown again");
  const token = await dialog.locator("code").first().innerText();
  expect(token).toMatch(TOKEN);
  await expect(dialog.getByRole("list", { name: "Commands that start a runner" })).toContainText(token);
  await expectGoodState(page, "a new token");
  await dialog.getByRole("button", { name: "Done" }).click();
  const tokens = page.getByRole("table", { name: "Tokens of runners" });
  await expect(tokens).toContainText("rack 3");
  await expect(page.getByText(token)).toHaveCount(0);

  const made = await server.api<{ items: { id: string }[] }>("GET", "/runner-tokens");
  await server.execute(rows(made.items[0]?.id ?? ""));
  await page.reload();
  const runners = page.getByRole("table", { name: "Runners", exact: true });
  const north = runners.getByRole("row", { name: /rack-1/ });
  const south = runners.getByRole("row", { name: /rack-2/ });
  await expect(north).toContainText("connected");
  await expect(north).toContainText("7 of 8");
  await expect(south).toContainText("not connected");
  await expect(south).toContainText("Upgrade the server");
  await expect(south).toContainText("chatd-ws-old-1");
  const waiting = page.getByRole("table", { name: "Waiting builds" });
  await expect(waiting).toContainText("No runner of the pool build offers container workspaces with the labels tpu.");
  await expect(page.getByRole("heading", { name: "Workspaces on another machine" })).toHaveCount(0);
  await expectGoodState(page, "runners and a build that waits");

  await page.getByRole("button", { name: "More for rack-1" }).click();
  await page.getByRole("menuitem", { name: "Drain" }).click();
  await expect(north).toContainText("drained");

  await page.getByRole("button", { name: "More for rack-2" }).click();
  await expect(page.getByRole("menuitem", { name: "Remove" })).toContainText("It has 1 workspace.");
  await expectGoodState(page, "the menu of a runner");
  await page.getByRole("menuitem", { name: "Show its workspaces" }).click();
  await expect(page.getByRole("dialog").getByRole("list", { name: "Workspaces" })).toContainText("kept of admin");
  await expect(page.getByRole("dialog").getByRole("list", { name: "Orphans" })).toContainText("chatd-ws-old-2");
  await expectGoodState(page, "the workspaces of a runner");
  await page.getByRole("dialog").getByRole("button", { name: "Close" }).click();

  await server.execute(GONE);
  await page.reload();
  await expect(waiting).toHaveCount(0);
  await page.getByRole("button", { name: "More for rack-2" }).click();
  await page.getByRole("menuitem", { name: "Remove" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Remove" }).click();
  await expect(south).toHaveCount(0);

  await tokens.getByRole("button", { name: "Revoke" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Revoke" }).click();
  await expect(tokens).toHaveCount(0);
  await server.execute("DELETE FROM runners WHERE id = 'e2e-1'");
  await page.goto("/admin/audit");
  await expect(page.getByRole("table", { name: "Audit log" })).toContainText("admin removed the runner rack-2");
});
