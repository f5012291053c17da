/** The MCP servers of a chat, as choices of the menu. */
import { useQueryClient } from "@tanstack/react-query";
import { KeyRound, Plug, PlugZap } from "lucide-react";
import { api, ApiError } from "@/api/client";
import { beginConnect, connectionWords, isUsed, type McpServer, needsConnect, queryKeys, useConnectedNotice, useMcpServers, withServer } from "@/api/queries";
import { MenuChoice, MenuHeading, MenuItem, MenuSeparator } from "@/components";
import { type ChatReply, useChatDetails } from "@/connection";
import { toast } from "@/platform/toasts";
import type { MessageDraft } from "./draft";

interface McpChoicesProps {
  chatId: string | null;
  draft: MessageDraft;
  onDraft: (change: (draft: MessageDraft) => MessageDraft) => void;
}

const report = (error: unknown) => toast({ text: error instanceof ApiError ? error.message : "That did not work. Try again.", tone: "danger" });

export function McpChoices({ chatId, draft, onDraft }: McpChoicesProps) {
  const client = useQueryClient();
  const { data: servers } = useMcpServers();
  const details = useChatDetails(chatId).data;
  useConnectedNotice();
  if (servers === undefined || servers.length === 0) return null;
  const chosen = chatId === null ? draft.mcpServerIds : (details?.mcp_server_ids ?? null);
  const save = async (ids: string[]) => {
    if (chatId === null) {
      onDraft((was) => ({ ...was, mcpServerIds: ids }));
      return;
    }
    const show = (shown: string[] | null) =>
      client.setQueryData<ChatReply>(queryKeys.chat(chatId), (known) => (known === undefined ? undefined : { ...known, mcp_server_ids: shown }));
    show(ids);
    try {
      await api.PATCH("/api/v1/chats/{chat_id}", { path: { chat_id: chatId }, body: { mcp_server_ids: ids } });
    } catch (error) {
      show(details?.mcp_server_ids ?? null);
      report(error);
    }
  };
  return (
    <>
      <MenuSeparator />
      <MenuHeading>MCP servers</MenuHeading>
      {servers.map((server) => (
        <ServerChoice
          key={server.id}
          server={server}
          isOn={isUsed(server, chosen)}
          onChange={(isOn) => void save(withServer(servers, chosen, server.id, isOn))}
        />
      ))}
    </>
  );
}

function ServerChoice({ server, isOn, onChange }: { server: McpServer; isOn: boolean; onChange: (isOn: boolean) => void }) {
  const connect = async () => {
    try {
      window.location.assign(await beginConnect(server.id));
    } catch (error) {
      report(error);
    }
  };
  return (
    <>
      <MenuChoice
        icon={isOn ? PlugZap : Plug}
        keepOpen
        checked={isOn}
        disabled={server.availability === "force_on"}
        hint={server.availability === "force_on" ? "Every chat uses it" : server.description === "" ? connectionWords(server.connection) : server.description}
        onChecked={onChange}
      >
        {server.display_name}
      </MenuChoice>
      {isOn && needsConnect(server) && (
        <MenuItem icon={KeyRound} hint={`${connectionWords(server.connection)}. Its tools act with your account there.`} onSelect={() => void connect()}>
          Connect {server.display_name}
        </MenuItem>
      )}
    </>
  );
}
