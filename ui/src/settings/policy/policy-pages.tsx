/** Tool policies of the deployment and of the user. */
import { api } from "@/api/client";
import { useMe } from "@/api/queries";
import { Dialog, Tag } from "@/components";
import { Loaded, readAll, Section, SettingsPage, Table, useResource, useSave } from "../frame";
import { PolicyEditor } from "./policy-editor";
import { OWN_TOOLS, type Policy, type ToolRule } from "./rules";

interface Change {
  rules: ToolRule[];
  may_loosen: boolean;
  version: number;
}

export function ServerPolicyPage() {
  const policy = useResource(["tool-policy"], () => api.GET("/api/v1/settings/tool-policy"));
  const canEdit = useMe().data?.user.role === "admin";
  const save = useSave((body: Change) => api.PUT("/api/v1/settings/tool-policy", { body }), {
    refresh: [["tool-policy"]],
    quiet: true,
    done: "Saved. It holds from the next call on.",
  });
  return (
    <SettingsPage
      title="Tool policy"
      lead="Which tool calls run at once, which a person approves first, and which never run. It holds for all chats; without a rule a call runs."
    >
      <Section title="Rules">
        <Loaded query={policy}>
          {(found) => (
            <PolicyEditor
              policy={found}
              hasLoosen
              canEdit={canEdit}
              onSave={(rules, mayLoosen) => save.mutateAsync(changeOf(found, rules, mayLoosen))}
              onTry={(body) => api.POST("/api/v1/settings/tool-policy/try", { body })}
            />
          )}
        </Loaded>
      </Section>
      <ToolList />
    </SettingsPage>
  );
}

export function OwnPolicyPage() {
  const policy = useResource(["own-tool-policy"], () => api.GET("/api/v1/settings/me/tool-policy"));
  const save = useSave((body: Change) => api.PUT("/api/v1/settings/me/tool-policy", { body }), {
    refresh: [["own-tool-policy"]],
    quiet: true,
    done: "Saved. It holds from the next call of your chats on.",
  });
  return (
    <SettingsPage
      title="Tool policy"
      lead="Which calls of your chats need your approval. The rules of the server come first; a chat can have rules of its own."
    >
      <Section title="Your rules">
        <Loaded query={policy}>
          {(found) => (
            <PolicyEditor
              policy={found}
              hasLoosen={false}
              canEdit
              onSave={(rules) => save.mutateAsync(changeOf(found, rules, false))}
              onTry={(body) => api.POST("/api/v1/settings/me/tool-policy/try", { body })}
            />
          )}
        </Loaded>
      </Section>
      <ToolList />
    </SettingsPage>
  );
}

/** With the version that was read: a change of somebody else meanwhile is not overwritten. */
function changeOf(found: Policy, rules: ToolRule[], mayLoosen: boolean): Change {
  return { rules, may_loosen: mayLoosen, version: found.version };
}

/** What a rule can name. Tools of MCP servers are known when a chat uses them; their names begin with that of the server. */
function ToolList() {
  const servers = useResource(["mcp-servers"], () => readAll((query) => api.GET("/api/v1/mcp-servers", { query })));
  return (
    <Section title="Tools" hint="Names that rules can have.">
      <Table label="Tools" heads={["Tool", "What it does", "Effect"]}>
        {OWN_TOOLS.map((tool) => (
          <tr key={tool.name}>
            <td>
              <code>{tool.name}</code>
            </td>
            <td>{tool.does}</td>
            <td>
              <Tag tone={tool.changes ? "warn" : "ok"}>{tool.changes ? "changes" : "looks"}</Tag> {tool.needsWorkspace && <Tag>workspace</Tag>}
            </td>
          </tr>
        ))}
        {(servers.data ?? []).map((server) => (
          <tr key={server.id}>
            <td>
              <code>{server.slug}__*</code>
            </td>
            <td>Tools of the MCP server {server.display_name}.</td>
            <td>
              <Tag>MCP</Tag>
            </td>
          </tr>
        ))}
      </Table>
    </Section>
  );
}

// The tool policy of one chat and its subagents, in a dialog.

export function ChatPolicyDialog({ chatId, canEdit, onClose }: { chatId: string; canEdit: boolean; onClose: () => void }) {
  const path = { chat_id: chatId };
  const name = ["chat-tool-policy", chatId];
  const policy = useResource(name, () => api.GET("/api/v1/chats/{chat_id}/tool-policy", { path }));
  const save = useSave((body: { rules: ToolRule[]; version: number }) => api.PUT("/api/v1/chats/{chat_id}/tool-policy", { path, body }), {
    refresh: [name],
    quiet: true,
  });
  return (
    <Dialog
      open
      wide
      onOpenChange={(open) => {
        if (!open) onClose();
      }}
      title="Tool policy of this chat"
      description="Which calls of this chat and its subagents need approval. «Always in this chat» adds a rule here."
    >
      <Loaded query={policy}>
        {(found) => (
          <PolicyEditor
            policy={found}
            hasLoosen={false}
            canEdit={canEdit}
            onSave={(rules) => save.mutateAsync({ rules, version: found.version })}
            onTry={(body) => api.POST("/api/v1/chats/{chat_id}/tool-policy/try", { path, body })}
          />
        )}
      </Loaded>
    </Dialog>
  );
}
