import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { ChevronDown, ChevronUp, Search, X } from "lucide-react";
import { type KeyboardEvent, useEffect, useRef, useState } from "react";
import { useLocation, useSearch } from "wouter";
import { api } from "@/api/client";
import { queryKeys } from "@/api/queries";
import { errorWords, Icon, IconButton } from "@/components";
import { withQuery } from "@/platform/routes";
import { announce } from "@/platform/toasts";

/** One phrase: what stands in the box is meant as it stands. */
const asPhrase = (text: string): string => `"${text.replaceAll('"', " ")}"`;

interface Found {
  count: number;
  message_ids: readonly number[];
  has_more: boolean;
}

function placeText(found: Found, at: number): string {
  if (found.count === 0) return "Not found";
  const all = `${found.count.toLocaleString("en")}${found.has_more ? "+" : ""}`;
  return at < 0 ? `${all} messages` : `${(at + 1).toLocaleString("en")} of ${all}`;
}

interface OpenBarProps {
  chatId: string;
  box: React.RefObject<HTMLInputElement | null>;
  onClose: () => void;
}

/** Finds words in the messages of the open chat, also those that are not loaded, and goes from one to the next. */
export function OpenBar({ chatId, box, onClose }: OpenBarProps) {
  const [text, setText] = useState("");
  const words = useSettled(text.trim());
  const [path, navigate] = useLocation();
  const search = useSearch();
  const query = useQuery({
    queryKey: queryKeys.chatMatches(chatId, words),
    queryFn: ({ signal }) => api.GET("/api/v1/chats/{chat_id}/matches", { path: { chat_id: chatId }, query: { q: asPhrase(words) }, signal }),
    enabled: /[\p{L}\p{N}_]/u.test(words),
    staleTime: 5000,
    retry: false,
  });
  const found = query.data;
  const ids = found?.message_ids ?? [];
  const at = ids.indexOf(Number(new URLSearchParams(search).get("m") ?? Number.NaN));
  const show = (id: number) => navigate(withQuery(path, search, { m: String(id) }), { replace: true });
  const step = (by: 1 | -1) => {
    const next = ids.at(at < 0 ? -1 : (at + by) % ids.length);
    if (next !== undefined) show(next);
  };
  const newest = useRef(show);
  useEffect(() => {
    newest.current = show;
  });
  // The newest one at first: it is the nearest to where a chat opens.
  useEffect(() => {
    if (found === undefined) return;
    const last = found.message_ids.at(-1);
    if (last !== undefined) newest.current(last);
    announce(found.count === 0 ? "Not found" : `Found in ${found.count} messages`);
  }, [found]);
  const press = (event: KeyboardEvent) => {
    if (event.nativeEvent.isComposing) return;
    if (event.key === "Escape") onClose();
    else if (event.key === "Enter") step(event.shiftKey ? 1 : -1);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const state = query.error !== null ? errorWords(query.error).text : found !== undefined ? placeText(found, at) : "";
  return (
    <search className="app-find-bar">
      <div className="ui-field">
        <Icon of={Search} className="tone-subtle" />
        <input
          ref={box}
          type="text"
          aria-label="Find in this chat"
          placeholder="Find in this chat"
          autoFocus
          maxLength={500}
          value={text}
          onChange={(event) => setText(event.target.value)}
          onKeyDown={press}
        />
        <span className="tone-muted ui-number">{state}</span>
      </div>
      <IconButton icon={ChevronUp} label="Earlier message" shortcut="Enter" disabled={ids.length === 0} onClick={() => step(-1)} />
      <IconButton icon={ChevronDown} label="Later message" shortcut="⇧ Enter" disabled={ids.length === 0} onClick={() => step(1)} />
      <IconButton icon={X} label="Close" shortcut="Esc" onClick={onClose} />
    </search>
  );
}

const WAIT_MS = 150;

/** A value that follows another when that has been still for a moment. */
export function useSettled<T>(value: T, waitMs = WAIT_MS): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), waitMs);
    return () => clearTimeout(timer);
  }, [value, waitMs]);
  return settled;
}

/** Chats with these words in a message or the title, by their newest hit. */
export function useChatSearch(text: string, limit: number) {
  const words = useSettled(text.trim());
  return useQuery({
    queryKey: queryKeys.chatSearch(words, limit),
    queryFn: ({ signal }) => api.GET("/api/v1/chats", { query: { q: words, limit }, signal }),
    enabled: words !== "",
    placeholderData: keepPreviousData,
    staleTime: 5000,
  });
}

/** Text with the found words marked. Places count characters, as the server's do. */
export function Highlighted({ text, places = [] }: { text: string; places?: readonly (readonly [number, number])[] | undefined }) {
  const characters = Array.from(text);
  const parts: React.ReactNode[] = [];
  let done = 0;
  for (const [start, end] of places) {
    if (start < done || end <= start) continue;
    parts.push(characters.slice(done, start).join(""), <mark key={start}>{characters.slice(start, end).join("")}</mark>);
    done = end;
  }
  parts.push(characters.slice(done).join(""));
  return <>{parts}</>;
}
