/**
 * Keys of messages. The message that an answer becomes when it is committed keeps the key that its
 * live parts had, so that its rows stay where they are. So does the next attempt at the answer if it
 * goes on with the same text.
 */
import type { ChatState, LiveParts, Message } from "@/chat-state/types";
import { isNotice } from "./message-rows";

interface LiveAnswer {
  readonly episode: string;
  readonly key: string;
  readonly afterId: number;
  readonly live: LiveParts;
}

export class LiveKeys {
  private readonly aliases = new Map<number, string>();
  private readonly used = new Set<string>();
  private answer: LiveAnswer | null = null;

  /** The key of the live answer, if there is one. */
  follow(state: ChatState): string | null {
    const lastId = state.messages.at(-1)?.id ?? 0;
    this.adopt(state);
    if (state.live === null) return null;
    const episode = `live-${state.live.historyVersion}-${state.live.attempt}`;
    if (this.answer !== null && (this.answer.episode === episode || continues(state.live, this.answer.live))) {
      this.answer = { ...this.answer, episode, live: state.live };
    } else {
      const key = this.used.has(episode) ? `${episode}-${lastId}` : episode;
      this.used.add(key);
      this.answer = { episode, key, afterId: lastId, live: state.live };
    }
    return this.answer.key;
  }

  of(messageId: number): string {
    return this.aliases.get(messageId) ?? `m${messageId}`;
  }

  /** The first answer after the live one began is what it became. */
  private adopt(state: ChatState): void {
    const answer = this.answer;
    if (answer === null) return;
    let first: Message | null = null;
    for (let index = state.messages.length - 1; index >= 0; index -= 1) {
      const message = state.messages[index];
      if (message === undefined || message.id <= answer.afterId) break;
      this.answer = null;
      // A notice may stand before the answer.
      if (!isNotice(message)) first = message;
    }
    if (first?.role === "assistant") this.aliases.set(first.id, answer.key);
  }
}

function continues(live: LiveParts, before: LiveParts): boolean {
  const [first, second] = before.parts;
  const now = live.parts[0];
  if (live.historyVersion !== before.historyVersion || second !== undefined) return false;
  // Another worker leaves out white space at the end, until the model says it again.
  return first?.type === "text" && now?.type === "text" && now.text.startsWith(first.text.trimEnd());
}
