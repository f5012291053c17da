/** The controls of versions, and who knows them: loaded when a chat is open, after its messages. */
import { useQuery } from "@tanstack/react-query";
import { ChevronDown, ChevronLeft, ChevronRight, RotateCcw } from "lucide-react";
import { useEffect, useMemo, useRef, useState } from "react";
import { api } from "@/api/client";
import { effortName, effortsOf, queryKeys, useModelNames, useModels } from "@/api/queries";
import type { Effort } from "@/chat-state/outbox";
import { isBusy } from "@/chat-state/reducer";
import type { ChatState, Message } from "@/chat-state/types";
import { Button, ConfirmDialog, IconButton, Menu, MenuHeading, MenuItem } from "@/components";
import { useChatDetails } from "@/connection";
import { announce } from "@/platform/toasts";
import { ExactText } from "@/text/exact-text";
import { told, useTimelineActions } from "../actions";
import { RatingControl } from "./rating-control";
import type { Versions } from "./versions";

const PAGE = 200;

interface ReaderProps {
  readonly state: ChatState;
  readonly onRead: (versions: Versions) => void;
}

interface ControlProps {
  readonly versions: Versions;
  readonly messageId: number;
}

/** One of them: so the page loads one thing. */
export default function VersionPart(props: ReaderProps | { readonly versions: Versions; readonly messageId: number | null }) {
  if ("onRead" in props) return <VersionReader {...props} />;
  const { versions, messageId } = props;
  if (messageId !== null) return <VersionSteps versions={versions} messageId={messageId} />;
  if (versions.repeatable === null) return null;
  return (
    <>
      {versions.rateable !== null && <RatingControl messageId={versions.rateable} />}
      {versions.command === null ? (
        <AnswerAgain versions={versions} messageId={versions.repeatable} />
      ) : (
        <RunAgain command={versions.command} messageId={versions.repeatable} />
      )}
    </>
  );
}

/** Reads the versions of the chat, again whenever messages of it were replaced. Shows nothing. */
function VersionReader({ state, onRead }: ReaderProps) {
  const { chatId } = state;
  const details = useChatDetails(chatId).data;
  const isOwner = details?.is_owner === true;
  const rewrites = useRewrites(state.messages);
  const { data } = useQuery({
    queryKey: queryKeys.versions(chatId, rewrites),
    queryFn: async ({ signal }) => (await api.GET("/api/v1/chats/{chat_id}/versions", { path: { chat_id: chatId }, query: { limit: PAGE }, signal })).items,
    enabled: isOwner,
    placeholderData: (before) => before,
    staleTime: Number.POSITIVE_INFINITY,
  });
  const busy = isBusy(state.status);
  const prompt = state.messages.findLast((message) => message.role === "user");
  const repeatable = isOwner && !busy && state.status === "waiting" ? (prompt?.id ?? null) : null;
  const command = prompt === undefined ? null : commandOf(prompt);
  const last = state.messages.findLast((message) => message.role !== "system");
  const rateable = repeatable !== null && last?.role === "assistant" ? last.id : null;
  const modelId = details?.last_model_config_id ?? null;
  const versions = useMemo<Versions>(() => {
    const groups = new Map((data ?? []).flatMap((group) => group.versions.map((version) => [version.message_id, group] as const)));
    return { groups, isBusy: busy, repeatable, command, rateable, modelId };
  }, [data, busy, repeatable, command, rateable, modelId]);
  useEffect(() => onRead(versions), [versions, onRead]);
  return null;
}

/** The command that a message of the user runs. */
function commandOf(message: Message): string | null {
  for (const part of message.content) if (part.type === "command") return part.command;
  return null;
}

/** Counts how often messages of the chat were replaced by others. */
function useRewrites(messages: readonly Message[]): number {
  const [seen, setSeen] = useState({ messages, rewrites: 0 });
  if (seen.messages === messages) return seen.rewrites;
  const ids = new Set(messages.map((message) => message.id));
  const isRewritten = seen.messages.some((message) => !ids.has(message.id));
  const rewrites = seen.rewrites + (isRewritten ? 1 : 0);
  setSeen({ messages, rewrites });
  return rewrites;
}

interface Choice {
  readonly messageId: number;
  readonly step: 1 | -1;
}

/** The version that was asked for from here, and the way: its row takes the focus when it is there. */
const asked: { choice: Choice | null } = { choice: null };

function ask(choice: Choice): void {
  asked.choice = choice;
}

function takeChoice(messageId: number): Choice | null {
  const { choice } = asked;
  if (choice?.messageId !== messageId) return null;
  asked.choice = null;
  return choice;
}

/** ‹ 1/2 › below a message that has versions. */
function VersionSteps({ versions: { groups, isBusy }, messageId }: ControlProps) {
  const { chatId } = useTimelineActions();
  const names = useModelNames();
  const earlier = useRef<HTMLButtonElement>(null);
  const later = useRef<HTMLButtonElement>(null);
  const versions = groups.get(messageId)?.versions ?? [];
  const at = versions.findIndex((version) => version.message_id === messageId);
  const count = versions.length;
  useEffect(() => {
    const choice = at < 0 ? null : takeChoice(messageId);
    if (choice === null) return;
    const canGoOn = choice.step < 0 ? at > 0 : at < count - 1;
    (choice.step < 0 === canGoOn ? earlier : later).current?.focus({ preventScroll: true });
    announce(`Version ${at + 1} of ${count}`);
  }, [messageId, at, count]);
  if (at < 0 || count < 2) return null;
  const go = (step: 1 | -1) => {
    const target = versions[at + step]?.message_id;
    if (target === undefined) return;
    ask({ messageId: target, step });
    const path = { chat_id: chatId, message_id: target };
    void told(api.PUT("/api/v1/chats/{chat_id}/messages/{message_id}/version", { path }));
  };
  const models = new Set(versions.map((version) => version.model_config_id));
  const model = models.size > 1 ? names(versions[at]?.model_config_id ?? null) : null;
  return (
    <div className="timeline-prompt-meta" role="group" aria-label={`Version ${at + 1} of ${count}`}>
      <IconButton ref={earlier} size="sm" icon={ChevronLeft} label="Earlier version" disabled={isBusy || at === 0} onClick={() => go(-1)} />
      <span aria-hidden="true">
        {at + 1}/{count}
      </span>
      <IconButton ref={later} size="sm" icon={ChevronRight} label="Later version" disabled={isBusy || at === count - 1} onClick={() => go(1)} />
      {model !== null && <span>{model}</span>}
    </div>
  );
}

/** Below the report of a command of the user. It asks first: the command has effects, and a chat may come from somebody else. */
function RunAgain({ command, messageId }: { readonly command: string; readonly messageId: number }) {
  const { regenerate } = useTimelineActions();
  const [isAsking, setAsking] = useState(false);
  return (
    <>
      <Button size="xs" variant="quiet" icon={RotateCcw} onClick={() => setAsking(true)}>
        Run again
      </Button>
      {isAsking && (
        <ConfirmDialog
          open
          onOpenChange={setAsking}
          danger={false}
          title="Run this command again?"
          description="It runs in the workspace of this chat. The report that is there is kept as a version."
          action="Run again"
          onConfirm={() => regenerate(messageId, {})}
        >
          <pre className="ask-command" tabIndex={0} aria-label="Command">
            <ExactText text={command} />
          </pre>
        </ConfirmDialog>
      )}
    </>
  );
}

const MAX_MODELS = 6;

/** Below the last answer: the same message is answered again. The answer that was there is kept as a version. */
function AnswerAgain({ versions: { modelId }, messageId }: ControlProps) {
  const { regenerate } = useTimelineActions();
  const models = useModels().data ?? [];
  const current = models.find((model) => model.id === modelId);
  const others = models.filter((model) => model.id !== modelId).slice(0, MAX_MODELS);
  const efforts: readonly Effort[] = current === undefined ? [] : effortsOf(current);
  return (
    <>
      <Button size="xs" variant="quiet" icon={RotateCcw} onClick={() => void regenerate(messageId, {})}>
        Answer again
      </Button>
      {others.length + efforts.length > 0 && (
        <Menu align="start" label="Answer again" trigger={<IconButton size="sm" icon={ChevronDown} label="Answer again with another model or effort" />}>
          {others.length > 0 && <MenuHeading>By another model</MenuHeading>}
          {others.map((model) => (
            <MenuItem key={model.id} onSelect={() => void regenerate(messageId, { model_config_id: model.id })}>
              {model.display_name === "" ? model.name : model.display_name}
            </MenuItem>
          ))}
          {efforts.length > 0 && <MenuHeading>With another effort</MenuHeading>}
          {efforts.map((effort) => (
            <MenuItem key={effort} onSelect={() => void regenerate(messageId, { reasoning_effort: effort })}>
              {effortName(effort)}
            </MenuItem>
          ))}
        </Menu>
      )}
    </>
  );
}
