import { FileText, RefreshCw } from "lucide-react";
import { useState } from "react";
import { api } from "@/api/client";
import { Button, ErrorNote, Icon, Tag, Time } from "@/components";
import type { ChatReply } from "@/connection";
import { bytesText } from "./state";

const MAX_SHOWN = 50;

interface InstructionsProps {
  readonly chat: ChatReply;
  readonly canChange: boolean;
  readonly onPinned: (chat: ChatReply) => void;
}

/** The instruction files that the model has, as they were pinned. */
export function Instructions({ chat, canChange, onPinned }: InstructionsProps) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const context = chat.context ?? null;
  const pin = async () => {
    setBusy(true);
    setError(null);
    try {
      onPinned(await api.PUT("/api/v1/chats/{chat_id}/context", { path: { chat_id: chat.id } }));
    } catch (caught) {
      setError(caught);
    } finally {
      setBusy(false);
    }
  };
  return (
    <>
      <h3 className="panel-heading">
        Instructions
        {context?.dirty === true && <Tag tone="warn">changed since</Tag>}
        <span className="ui-meta">
          {canChange && (
            <Button size="xs" variant={context?.dirty === true ? undefined : "quiet"} icon={RefreshCw} busy={busy} onClick={() => void pin()}>
              Read again
            </Button>
          )}
        </span>
      </h3>
      {error !== null && <ErrorNote error={error} />}
      {context === null ? (
        <p className="tone-muted">None are pinned. They are read when the chat first uses the workspace.</p>
      ) : (
        <>
          {context.dirty && <p className="tone-muted">Files in the workspace differ from what the model has. Read them again to use the new ones.</p>}
          {context.error !== null && <p className="tone-warn">{context.error}</p>}
          <ul className="workspace-resources">
            {context.resources.slice(0, MAX_SHOWN).map((item) => (
              <li key={`${item.kind} ${item.source}`}>
                <Icon of={FileText} size="sm" className={item.status === "ok" ? "tone-subtle" : "tone-warn"} />
                <span className="ui-ellipsis" title={item.source}>
                  {item.source === "" ? item.name : item.source}
                </span>
                <span className="tone-subtle">{item.status === "ok" ? `${item.kind}, ${bytesText(item.size)}` : (item.error ?? "") === "" ? item.status : item.error}</span>
              </li>
            ))}
          </ul>
          {context.resources.length === 0 && <p className="tone-muted">The workspace has no instruction files, such as AGENTS.md.</p>}
          <p className="tone-subtle">
            Pinned <Time at={context.pinned_at} />
          </p>
        </>
      )}
    </>
  );
}
