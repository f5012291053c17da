import { Command as Cmdk } from "cmdk";
import { BookOpen, CircleHelp, Filter, LogOut, type LucideIcon, Monitor, Moon, PanelRight, Plus, Search, Settings2, Sun } from "lucide-react";
import { Dialog as Primitive } from "radix-ui";
import { useState } from "react";
import { useLocation } from "wouter";
import { Icon, StatusIcon, Time } from "@/components";
import { useChatList } from "@/connection";
import { type Command, runCommand, shortcutOf } from "@/platform/keys";
import { setPreference } from "@/platform/preferences";
import { chatPath, HELP_PATH, SEARCH_PATH } from "@/platform/routes";
import { Highlighted, useChatSearch } from "./find-bar";
import { type ListChat, shownStatus } from "./sidebar/list-chat";

interface PaletteCommand {
  text: string;
  icon: LucideIcon;
  command?: Command;
  path?: string;
  run?: () => void;
}

const COMMANDS: readonly PaletteCommand[] = [
  { text: "New chat", icon: Plus, command: "chat.new" },
  { text: "Next chat that needs you", icon: Filter, command: "chat.needsYou" },
  { text: "Changes", icon: PanelRight, command: "panel.changes" },
  { text: "Runs", icon: PanelRight, command: "panel.runs" },
  { text: "Terminal", icon: PanelRight, command: "panel.terminal" },
  { text: "Settings", icon: Settings2, path: "/settings/general" },
  { text: "Providers and models", icon: Settings2, path: "/admin/providers" },
  { text: "Archived chats", icon: Filter, path: "/?archived=true" },
  { text: "Shortcuts", icon: CircleHelp, command: "help.open" },
  { text: "Documentation", icon: BookOpen, run: () => window.location.assign(HELP_PATH) },
  { text: "Account and sign out", icon: LogOut, path: "/settings/account" },
  { text: "Light theme", icon: Sun, run: () => setPreference("theme", "light") },
  { text: "Dark theme", icon: Moon, run: () => setPreference("theme", "dark") },
  { text: "Theme of the system", icon: Monitor, run: () => setPreference("theme", "system") },
];

function ChatItem({ chat, onChoose }: { chat: ListChat; onChoose: (path: string) => void }) {
  const match = chat.match ?? null;
  const inMessage = match?.message_id != null;
  return (
    <Cmdk.Item value={`chat ${chat.id}`} className="ui-menu-item" onSelect={() => onChoose(chatPath(match?.chat_id ?? chat.id, match?.message_id))}>
      <StatusIcon status={shownStatus(chat)} />
      <b className="ui-ellipsis">{match !== null && !inMessage ? <Highlighted text={match.text} places={match.highlights} /> : chat.title}</b>
      <span className="tone-subtle ui-meta">
        <Time at={chat.updated_at} />
      </span>
      {inMessage && (
        <p className="ui-ellipsis">
          <Highlighted text={match.text} places={match.highlights} />
        </p>
      )}
    </Cmdk.Item>
  );
}

/** Search of chats, recent chats and commands. */
export function Palette({ onClose }: { onClose: () => void }) {
  const [text, setText] = useState("");
  const [, navigate] = useLocation();
  const recent = useChatList().chats;
  const search = useChatSearch(text, 8);
  const words = text.trim();
  const found: readonly ListChat[] = words === "" ? recent.slice(0, 6) : (search.data?.items ?? []);
  const commands = COMMANDS.filter((one) => one.text.toLowerCase().includes(words.toLowerCase()));
  const go = (path: string) => {
    onClose();
    navigate(path);
  };
  const run = (chosen: PaletteCommand) => {
    onClose();
    if (chosen.path !== undefined) navigate(chosen.path);
    else if (chosen.command !== undefined) runCommand(chosen.command);
    else chosen.run?.();
  };
  // What is typed begins the name of a command: Enter runs it, whatever the search finds a moment later.
  const namesCommand = words.length >= 4 && commands.some((one) => one.text.toLowerCase().startsWith(words.toLowerCase()));
  const chatGroup = found.length > 0 && (
    <Cmdk.Group heading={words === "" ? "Recent" : "Chats"}>
      {found.map((chat) => (
        <ChatItem key={chat.id} chat={chat} onChoose={go} />
      ))}
      {search.data?.has_more === true && words !== "" && (
        <Cmdk.Item value="all results" className="ui-menu-item" onSelect={() => go(`${SEARCH_PATH}?q=${encodeURIComponent(words)}`)}>
          <Icon of={Search} />
          <b>All results for “{words}”</b>
          <span />
        </Cmdk.Item>
      )}
    </Cmdk.Group>
  );
  const commandGroup = commands.length > 0 && (
    <Cmdk.Group heading="Commands">
      {commands.map((one) => (
        <Cmdk.Item key={one.text} value={`command ${one.text}`} className="ui-menu-item" onSelect={() => run(one)}>
          <Icon of={one.icon} />
          <b>{one.text}</b>
          {one.command === undefined ? <span /> : <kbd>{shortcutOf(one.command)}</kbd>}
        </Cmdk.Item>
      ))}
    </Cmdk.Group>
  );
  return (
    <Primitive.Root open onOpenChange={onClose}>
      <Primitive.Portal>
        <Primitive.Overlay className="ui-scrim" />
        <Primitive.Content className="app-palette" aria-describedby={undefined}>
          <Primitive.Title className="ui-screen-reader">Search and commands</Primitive.Title>
          <Cmdk shouldFilter={false} label="Search and commands" loop>
            <div className="app-palette-find">
              <Icon of={Search} className="tone-subtle" />
              <Cmdk.Input value={text} onValueChange={setText} placeholder="Search chats, or type a command" />
              <kbd>Esc</kbd>
            </div>
            <Cmdk.List className="app-palette-list">
              {namesCommand && commandGroup}
              {chatGroup}
              {words !== "" && search.isSuccess && !search.isPlaceholderData && found.length === 0 && (
                <p className="app-empty">Nothing found for “{words}”. Archived chats are left out.</p>
              )}
              {!namesCommand && commandGroup}
            </Cmdk.List>
          </Cmdk>
        </Primitive.Content>
      </Primitive.Portal>
    </Primitive.Root>
  );
}
