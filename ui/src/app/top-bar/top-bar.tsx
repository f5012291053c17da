import { ChevronLeft, Ellipsis, Eye, GitBranch, PanelLeft, PanelRight, Sparkles } from "lucide-react";
import { useState } from "react";
import { Link, useLocation } from "wouter";
import { api } from "@/api/client";
import { useDemoModel } from "@/api/models";
import { useMe } from "@/api/queries";
import { errorWords, Icon, IconButton, Menu, Tag, Tooltip } from "@/components";
import { useChatDetails } from "@/connection";
import { usePreference } from "@/platform/preferences";
import { chatPath, HOME_PATH, usePanelTab } from "@/platform/routes";
import { toast } from "@/platform/toasts";
import { useIsPhone } from "@/platform/use-media";
import { ChatMenuItems } from "../chat-menu";
import type { ListChat } from "../sidebar/list-chat";
import { TopState } from "./chat-state";
import { ChatTitle } from "./chat-title";

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
      <IconButton icon={PanelRight} label={tab === null ? "Show panel" : "Hide panel"} shortcut="]" pressed={tab !== null} onClick={() => setTab(tab === null ? "changes" : null)} />
      {chat !== undefined && (
        <Menu trigger={<IconButton icon={Ellipsis} label="More" />}>
          <ChatMenuItems chat={chat} withDebug />
        </Menu>
      )}
    </header>
  );
}
