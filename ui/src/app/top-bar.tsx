import { ChevronLeft, CloudOff, Ellipsis, Eye, GitBranch, PanelLeft, PanelRight, Sparkles } from "lucide-react";
import { type KeyboardEvent, lazy, Suspense, useState } from "react";
import { Link, useLocation } from "wouter";
import { api } from "@/api/client";
import { useDemoModel, useMe } from "@/api/queries";
import { isWorking } from "@/chat-state/reducer";
import type { ChatState } from "@/chat-state/types";
import { Countdown, Elapsed, errorWords, Icon, IconButton, Menu, StatusState, Tag, Tooltip } from "@/components";
import { useAmendChat, useChatDetails, useChatSelector, useConnection } from "@/connection";
import { useIsPhone } from "@/platform/media";
import { usePreference } from "@/platform/preferences";
import { chatPath, HOME_PATH, usePanelTab } from "@/platform/routes";
import { toast } from "@/platform/toasts";
import { ChatMenuItems } from "./chat-menu";
import type { ListChat } from "./sidebar/list-chat";

const ProjectLink = lazy(async () => ({ default: (await import("./projects/chosen-project")).ProjectLink }));

/** The chat that started this one. */
function ParentLink({ parentId }: { parentId: string }) {
  const parent = useChatDetails(parentId).data;
  return (
    <>
      <Link className="app-bar-parent ui-ellipsis tone-muted" href={chatPath(parentId)}>
        {parent?.title ?? "Parent chat"}
      </Link>
      <span className="tone-subtle" aria-hidden="true">
        /
      </span>
    </>
  );
}

function ForkButton({ chatId }: { chatId: string }) {
  const [, navigate] = useLocation();
  const [busy, setBusy] = useState(false);
  const fork = async () => {
    setBusy(true);
    try {
      const made = await api.POST("/api/v1/chats/{chat_id}/fork", { path: { chat_id: chatId }, body: {} });
      navigate(chatPath(made.id));
      toast("This is a copy. The first chat goes on by itself.");
    } catch (error) {
      toast({ text: errorWords(error).text, tone: "danger" });
    } finally {
      setBusy(false);
    }
  };
  return <IconButton icon={GitBranch} label="Fork chat" disabled={busy} onClick={() => void fork()} />;
}

export function SidebarButton() {
  const [hidden, setHidden] = usePreference("sidebarHidden");
  const isPhone = useIsPhone();
  if (isPhone) {
    return (
      <Link className="ui-icon-button" href={HOME_PATH} aria-label="Back to the list">
        <Icon of={ChevronLeft} />
      </Link>
    );
  }
  return hidden ? <IconButton icon={PanelLeft} label="Show sidebar" shortcut="[" onClick={() => setHidden(false)} /> : null;
}

function Title({ chat }: { chat: ListChat }) {
  const me = useMe().data?.user;
  const isMine = me === undefined || me.id === chat.owner_id;
  return (
    <>
      {chat.parent_chat_id != null && <ParentLink parentId={chat.parent_chat_id} />}
      <ChatTitle key={chat.id} chat={chat} canRename={isMine || me.role === "admin"} />
      {!isMine && <Tag icon={Eye}>{chat.owner_username == null ? "Read only" : `By ${chat.owner_username}`}</Tag>}
    </>
  );
}

/** The bar above a chat. */
export function TopBar({ chatId }: { chatId: string }) {
  const chat = useChatDetails(chatId).data as ListChat | undefined;
  const [tab, setTab] = usePanelTab();
  const isPhone = useIsPhone();
  const isDemo = useDemoModel(chat?.last_model_config_id ?? null);
  return (
    <header className="app-bar">
      <SidebarButton />
      <div className="app-bar-title">
        {chat?.project_id != null && !isPhone && (
          <Suspense>
            <ProjectLink id={chat.project_id} />
          </Suspense>
        )}
        {chat !== undefined && <Title chat={chat} />}
        <TopState chatId={chatId} />
      </div>
      {isDemo && !isPhone && (
        <Tooltip text="Scripted answers, real tools, free">
          <span>
            <Tag tone="accent" icon={Sparkles}>
              Demo model
            </Tag>
          </span>
        </Tooltip>
      )}
      {!isPhone && <ForkButton chatId={chatId} />}
      <IconButton
        icon={PanelRight}
        label={tab === null ? "Show panel" : "Hide panel"}
        shortcut="]"
        pressed={tab !== null}
        onClick={() => setTab(tab === null ? "changes" : null)}
      />
      {chat !== undefined && (
        <Menu trigger={<IconButton icon={Ellipsis} label="More" />}>
          <ChatMenuItems chat={chat} withDebug />
        </Menu>
      )}
    </header>
  );
}

interface ChatTitleProps {
  chat: ListChat;
  canRename: boolean;
}

/** The title; a press turns it into a box. Enter keeps, Escape drops. */
function ChatTitle({ chat, canRename }: ChatTitleProps) {
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

const selectStatus = (state: ChatState) => (state.loaded ? state.status : null);
const selectRetryAt = (state: ChatState) => (state.retry === null ? null : (state.retry.retrying_at ?? ""));
/** The user stopped the turn and holds the queue: nothing failed. */
const selectHeld = (state: ChatState) => state.error?.kind === "queue_held";
/** A turn begins with the last message of a person. */
const selectSince = (state: ChatState) => state.messages.findLast((message) => message.role === "user")?.created_at ?? null;

/** What the open chat does now, in icon, word and time. Nothing while it waits for you. */
export function TopState({ chatId }: { chatId: string }) {
  const status = useChatSelector(chatId, selectStatus);
  const retryAt = useChatSelector(chatId, selectRetryAt);
  const since = useChatSelector(chatId, selectSince);
  const held = useChatSelector(chatId, selectHeld);
  if (status === null || status === "waiting" || status === "archived") return null;
  // Between two calls of a failing model no worker has the chat.
  if (isWorking(status) && retryAt !== null) {
    return (
      <StatusState
        status="retrying"
        detail={
          retryAt === "" ? null : (
            <>
              in <Countdown until={retryAt} />
            </>
          )
        }
      />
    );
  }
  if (status === "error" && held) return <StatusState status="stopped" detail="queue held" />;
  return <StatusState status={status} detail={status === "running" && since !== null ? <Elapsed since={since} /> : null} />;
}

/** Says that the page is not connected, and for how long. Silent while all is well. */
export function ConnectionBadge() {
  const { state, retryAt, retryNow } = useConnection();
  if (state !== "waiting" && state !== "offline") return null;
  return (
    <div className="app-offline" role="status">
      <Icon of={CloudOff} size="sm" />
      <span className="ui-grow">
        {state === "offline" || retryAt === null ? (
          "Offline"
        ) : (
          <>
            Reconnecting in <Countdown until={retryAt} />
          </>
        )}
        <span className="tone-subtle">What you send is kept.</span>
      </span>
      <button type="button" className="ui-link" onClick={retryNow}>
        Retry now
      </button>
    </div>
  );
}
