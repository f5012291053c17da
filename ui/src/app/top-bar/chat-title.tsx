import { type KeyboardEvent, useState } from "react";
import { errorWords } from "@/components";
import { useAmendChat } from "@/connection";
import { toast } from "@/platform/toasts";
import type { ListChat } from "../sidebar/list-chat";

interface ChatTitleProps {
  chat: ListChat;
  canRename: boolean;
}

/** The title; a press turns it into a box. Enter keeps, Escape drops. */
export function ChatTitle({ chat, canRename }: ChatTitleProps) {
  const [draft, setDraft] = useState<string | null>(null);
  const amend = useAmendChat();
  const shown = chat.title === "" ? "New chat" : chat.title;

  const save = () => {
    const title = draft?.trim() ?? "";
    setDraft(null);
    if (title === "" || title === chat.title) return;
    amend(chat, { title }).catch((error: unknown) => toast({ text: errorWords(error).text, tone: "danger" }));
  };
  const press = (event: KeyboardEvent) => {
    if (event.nativeEvent.isComposing) return;
    if (event.key === "Enter") save();
    else if (event.key === "Escape") setDraft(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };

  if (draft !== null) {
    return (
      <input
        className="app-title-input"
        aria-label="Title of the chat"
        value={draft}
        maxLength={200}
        autoFocus
        onFocus={(event) => event.target.select()}
        onChange={(event) => setDraft(event.target.value)}
        onBlur={save}
        onKeyDown={press}
      />
    );
  }
  return (
    <h1>
      {canRename ? (
        <button type="button" className="app-title ui-ellipsis" title={`${shown} (press to rename)`} onClick={() => setDraft(chat.title)}>
          {shown}
        </button>
      ) : (
        <span className="ui-ellipsis">{shown}</span>
      )}
    </h1>
  );
}
