/** Tool policies of the deployment and of the user. */
import { api } from "@/api/client";
import { useMe } from "@/connection";
import { Loaded, Section, SettingsPage } from "../frame";
import { useResource, useSave } from "../resource";
import { PolicyEditor } from "./policy-editor";
import type { Policy, ToolRule } from "./rules";

interface Change {
  rules: ToolRule[];
  may_loosen: boolean;
  version: number;
}

export function ServerPolicyPage() {
  const policy = useResource(["tool-policy"], () => api.GET("/api/v1/settings/tool-policy"));
  const canEdit = useMe().data?.user.role === "admin";
  const save = useSave((body: Change) => api.PUT("/api/v1/settings/tool-policy", { body }), { refresh: [["tool-policy"]], quiet: true, done: "Saved. It holds from the next call on." });
  return (
    <SettingsPage title="Tool policy" lead="Which tool calls run at once, which a person approves first, and which never run. It holds for all chats; without a rule a call runs.">
      <Section title="Rules">
        <Loaded query={policy}>
          {(found) => <PolicyEditor policy={found} hasLoosen canEdit={canEdit} onSave={(rules, mayLoosen) => save.mutateAsync(changeOf(found, rules, mayLoosen))} />}
        </Loaded>
      </Section>
    </SettingsPage>
  );
}

export function OwnPolicyPage() {
  const policy = useResource(["own-tool-policy"], () => api.GET("/api/v1/settings/me/tool-policy"));
  const save = useSave((body: Change) => api.PUT("/api/v1/settings/me/tool-policy", { body }), { refresh: [["own-tool-policy"]], quiet: true, done: "Saved. It holds from the next call of your chats on." });
  return (
    <SettingsPage title="Tool policy" lead="Which calls of your chats need your approval. The rules of the server come first; a chat can have rules of its own.">
      <Section title="Your rules">
        <Loaded query={policy}>{(found) => <PolicyEditor policy={found} hasLoosen={false} canEdit onSave={(rules) => save.mutateAsync(changeOf(found, rules, false))} />}</Loaded>
      </Section>
    </SettingsPage>
  );
}

/** With the version that was read: a change of somebody else meanwhile is not overwritten. */
function changeOf(found: Policy, rules: ToolRule[], mayLoosen: boolean): Change {
  return { rules, may_loosen: mayLoosen, version: found.version };
}
