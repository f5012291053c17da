/** Two thumbs below the last answer, and a comment. The answer of another version has its own. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { ThumbsDown, ThumbsUp } from "lucide-react";
import { type SyntheticEvent, useEffect, useRef, useState } from "react";
import { api } from "@/api/client";
import { queryKeys } from "@/api/queries";
import type { components } from "@/api/schema";
import { Button, IconButton } from "@/components";
import { announce } from "@/platform/toasts";
import { told, useTimelineActions } from "../actions";

type Rating = components["schemas"]["Rating"];
type Value = Rating["value"];

const PAGE = 200;
const MAX_CHARS = 2000;

async function readRatings(chatId: string, signal: AbortSignal): Promise<Rating[]> {
  const found: Rating[] = [];
  let cursor: string | undefined;
  do {
    const query = { limit: PAGE, ...(cursor === undefined ? {} : { cursor }) };
    const page = await api.GET("/api/v1/chats/{chat_id}/ratings", { path: { chat_id: chatId }, query, signal });
    found.push(...page.items);
    cursor = page.next_cursor ?? undefined;
  } while (cursor !== undefined);
  return found;
}

export function RatingControl({ messageId }: { readonly messageId: number }) {
  const { chatId } = useTimelineActions();
  const client = useQueryClient();
  const key = queryKeys.ratings(chatId);
  const ratings = useQuery({ queryKey: key, queryFn: ({ signal }) => readRatings(chatId, signal) });
  const [isWriting, setWriting] = useState(false);
  const rating = ratings.data?.find((one) => one.message_id === messageId) ?? null;
  const path = { chat_id: chatId, message_id: messageId };
  const keep = (next: Rating | null) =>
    client.setQueryData<Rating[]>(key, (known = []) => [...known.filter((one) => one.message_id !== messageId), ...(next === null ? [] : [next])]);
  const save = async (value: Value, comment: string) => {
    keep(await told(api.PUT("/api/v1/chats/{chat_id}/messages/{message_id}/rating", { path, body: { value, comment } })));
    announce(value === "up" ? "Rated: good answer" : "Rated: bad answer");
  };
  const press = async (value: Value) => {
    if (rating?.value === value) {
      setWriting(false);
      await told(api.DELETE("/api/v1/chats/{chat_id}/messages/{message_id}/rating", { path }));
      keep(null);
      announce("Rating removed");
      return;
    }
    await save(value, rating?.comment ?? "");
    setWriting(true);
  };
  if (ratings.data === undefined) return null;
  const thumb = (value: Value, label: string) => (
    <IconButton
      size="sm"
      icon={value === "up" ? ThumbsUp : ThumbsDown}
      label={label}
      aria-pressed={rating?.value === value}
      onClick={() => void press(value).catch(() => undefined)}
    />
  );
  return (
    <div className="timeline-rating" role="group" aria-label="Rate this answer">
      {thumb("up", "Good answer")}
      {thumb("down", "Bad answer")}
      {rating !== null && !isWriting && (
        <Button size="xs" variant="quiet" onClick={() => setWriting(true)}>
          {rating.comment === "" ? "Add a comment" : "Edit the comment"}
        </Button>
      )}
      {rating !== null && isWriting && (
        <CommentForm
          key={rating.value}
          rating={rating}
          onDone={() => setWriting(false)}
          onSave={(comment) => save(rating.value, comment).then(() => setWriting(false))}
        />
      )}
    </div>
  );
}

interface CommentProps {
  readonly rating: Rating;
  readonly onDone: () => void;
  readonly onSave: (comment: string) => Promise<void>;
}

function CommentForm({ rating, onDone, onSave }: CommentProps) {
  const [text, setText] = useState(rating.comment);
  const [isBusy, setBusy] = useState(false);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus(), []);
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    setBusy(true);
    void onSave(text).catch(() => setBusy(false));
  };
  return (
    <form className="timeline-rating-comment" onSubmit={submit}>
      <input
        ref={field}
        className="ui-field"
        aria-label="Comment on this answer"
        placeholder={rating.value === "up" ? "What was good?" : "What was wrong?"}
        maxLength={MAX_CHARS}
        value={text}
        onChange={(event) => setText(event.target.value)}
        onKeyDown={(event) => {
          if (event.key !== "Escape") return;
          event.stopPropagation();
          onDone();
        }}
      />
      <Button size="xs" type="submit" variant="primary" busy={isBusy}>
        Save
      </Button>
      <Button size="xs" variant="quiet" onClick={onDone}>
        Close
      </Button>
    </form>
  );
}
