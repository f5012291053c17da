import { BookOpen, KeyRound, Upload } from "lucide-react";
import { useRef, useState } from "react";
import { Link, useLocation } from "wouter";
import { api } from "@/api/client";
import { useMe } from "@/api/queries";
import { errorWords, Icon, Spinner } from "@/components";
import { useCreatedChat } from "@/connection";
import { chatPath } from "@/platform/routes";
import { toast } from "@/platform/toasts";

/** Opens a run that any chatd has exported. */
function ImportLink() {
  const input = useRef<HTMLInputElement>(null);
  const [busy, setBusy] = useState(false);
  const [, navigate] = useLocation();
  const onCreated = useCreatedChat();
  const take = async (file: File | undefined) => {
    if (file === undefined) return;
    setBusy(true);
    try {
      const chat = await api.POST("/api/v1/chats/import", { body: file, headers: { "Content-Type": "application/jsonl" } });
      onCreated(chat);
      navigate(chatPath(chat.id));
    } catch (error) {
      toast({ text: errorWords(error).text, tone: "danger" });
    } finally {
      setBusy(false);
    }
  };
  return (
    <>
      <button type="button" onClick={() => input.current?.click()}>
        {busy ? <Spinner /> : <Icon of={Upload} />}
        Import a run
      </button>
      <input
        ref={input}
        type="file"
        accept=".jsonl,application/jsonl"
        hidden
        onChange={(event) => {
          void take(event.target.files?.[0]);
          event.target.value = "";
        }}
      />
    </>
  );
}

/** Where to go after the demo. */
export function NextLinks({ withDocs = true }: { withDocs?: boolean }) {
  const isAdmin = useMe().data?.user.role === "admin";
  return (
    <>
      {isAdmin && (
        <Link className="ui-link" href="/admin/providers">
          <Icon of={KeyRound} />
          Add a provider
        </Link>
      )}
      <ImportLink />
      {withDocs && (
        <a href="/docs">
          <Icon of={BookOpen} />
          Read the docs
        </a>
      )}
    </>
  );
}
