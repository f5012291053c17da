import { CloudOff, Pencil, RotateCw, TriangleAlert } from "lucide-react";
import { Button, Icon } from "@/components";
import type { OutboxItem } from "@/chat-state";
import { draftOf } from "./draft/draft";
import { refusalText } from "./limit-text";

/** While a sent message is edited. */
export function EditNotice({ onCancel }: { onCancel: () => void }) {
  return (
    <div className="composer-note tone-warn" role="status">
      <Icon of={Pencil} size="sm" />
      <span className="ui-grow">Editing a sent message. What came after it, and the queue, will be deleted.</span>
      <Button size="xs" variant="quiet" onClick={onCancel}>
        Cancel
      </Button>
    </div>
  );
}

interface UnsentProps {
  items: readonly OutboxItem[];
  isBusy: boolean;
  onRetry: (id: string) => void;
  onEdit: (id: string) => void;
  onDiscard: (id: string) => void;
}

/** Messages that the server has refused, and of a busy chat those that wait for the server: an idle chat has them in its timeline. */
export function Unsent({ items, isBusy, onRetry, onEdit, onDiscard }: UnsentProps) {
  const shown = items.filter((item) => item.state === "refused" || (isBusy && item.error !== null && item.state !== "sent"));
  return shown.map((item) => {
    const isRefused = item.state === "refused";
    const text = draftOf(item.draft.content).text;
    return (
      <div key={item.id} className={isRefused ? "composer-note tone-danger" : "composer-note"} role={isRefused ? "alert" : "status"}>
        <Icon of={isRefused ? TriangleAlert : CloudOff} size="sm" />
        <span className="ui-grow">
          <b className="ui-ellipsis">{text === "" ? "Files" : text}</b>
          <span>{isRefused && item.error !== null ? refusalText(item.error) : "Kept here. It is sent when the server answers."}</span>
        </span>
        {isRefused && (
          <Button size="xs" icon={RotateCw} onClick={() => onRetry(item.id)}>
            Try again
          </Button>
        )}
        {item.state !== "sending" && (
          <>
            <Button size="xs" variant="quiet" onClick={() => onEdit(item.id)}>
              Edit
            </Button>
            <Button size="xs" variant="quiet" onClick={() => onDiscard(item.id)}>
              Discard
            </Button>
          </>
        )}
      </div>
    );
  });
}
