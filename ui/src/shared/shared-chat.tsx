import { Download, FileX, Image, Link2Off, RotateCw, Sparkles, User, Wrench } from "lucide-react";
import { useEffect, useState } from "react";
import { Button, classes, EmptyState, Icon, Skeleton } from "@/components";
import { fullText } from "@/platform/words";
import { safeHref } from "@/text/links";
import { Markdown } from "@/text/markdown";
import { loadFile, type Problem, type SharedMessage, type SharedPart, useSecret, useShared } from "./link";

const PROBLEMS: Readonly<Record<Problem, string>> = {
  gone: "There is nothing under this link: it was revoked, has expired, or is incomplete. Ask the person who sent it.",
  busy: "Too many requests came from this address. Wait a minute, then try again.",
  offline: "The server does not answer. Try again in a moment.",
};

export function SharedChat() {
  const secret = useSecret();
  const { shared, problem, busy, loadMore } = useShared(secret);
  useEffect(() => {
    document.title = shared === null ? "Shared chat" : `${shared.title} – shared chat`;
  }, [shared]);
  const retry = problem !== null && problem !== "gone" && (
    <Button icon={RotateCw} onClick={loadMore}>
      Try again
    </Button>
  );
  return (
    <div className="shared-page">
      <main className="shared-column" aria-busy={busy}>
        {shared !== null && (
          <header className="shared-head">
            <h1>{shared.title}</h1>
            <p className="tone-muted">
              A shared chat, read-only, as it was on {fullText(new Date(shared.shared_at))}. The link ends on {fullText(new Date(shared.expires_at))}.
            </p>
          </header>
        )}
        {shared?.messages.map((message, at) => (
          <Message key={message.id} secret={secret} message={message} isNext={message.is_answer && shared.messages[at - 1]?.is_answer === true} />
        ))}
        {shared?.messages.length === 0 && !busy && <p className="tone-muted">The messages that this link showed are not in the chat any more.</p>}
        {busy && <Skeleton rows={4} label="Loading the chat" />}
        {problem !== null && (
          <div role="alert">
            <EmptyState icon={Link2Off} actions={retry === false ? undefined : retry}>
              {PROBLEMS[problem]}
            </EmptyState>
          </div>
        )}
        {shared?.next_after != null && !busy && problem === null && <Button onClick={loadMore}>Show more messages</Button>}
      </main>
    </div>
  );
}

interface MessageProps {
  readonly secret: string;
  readonly message: SharedMessage;
  /** The next step of the answer above. */
  readonly isNext: boolean;
}

function Message({ secret, message, isNext }: MessageProps) {
  const author = message.is_answer ? "Answer" : "Question";
  return (
    <article className={classes("shared-message", !message.is_answer && "is-question", isNext && "is-next")} aria-label={author}>
      {!isNext && (
        <h2 className="shared-author">
          <Icon of={message.is_answer ? Sparkles : User} size="sm" />
          {author}
          <time className="tone-subtle" dateTime={message.created_at}>
            {fullText(new Date(message.created_at))}
          </time>
        </h2>
      )}
      {message.parts.map((part, at) => (
        <Part key={at} secret={secret} messageId={message.id} part={part} />
      ))}
    </article>
  );
}

function Part({ secret, messageId, part }: { readonly secret: string; readonly messageId: number; readonly part: SharedPart }) {
  switch (part.type) {
    case "text":
      return <Markdown text={part.text} />;
    case "source":
      return <Source url={part.url} title={part.title} />;
    case "call":
      return <Folded title={`Called ${part.name}`} text={part.input ?? ""} />;
    case "output":
      return <Folded title={part.failed === true ? `${part.name} failed` : `Output of ${part.name}`} text={part.text ?? ""} />;
    case "quote":
      return <Folded title={`${part.file_name}, from line ${part.start_line}`} text={part.content} isOpen />;
    case "file":
      return <File secret={secret} messageId={messageId} at={part.part} name={part.name ?? ""} mediaType={part.media_type} />;
    case "hidden_file":
      return (
        <p className="shared-note">
          <Icon of={FileX} size="sm" />A file that is not shared
        </p>
      );
  }
}

function Source({ url, title }: { readonly url: string; readonly title: string }) {
  const href = safeHref(url);
  if (href === null) return <p className="shared-note">{title}</p>;
  return (
    <p className="shared-note">
      <a className="ui-link" href={href} target="_blank" rel="noreferrer noopener">
        {title}
      </a>
    </p>
  );
}

function Folded({ title, text, isOpen = false }: { readonly title: string; readonly text: string; readonly isOpen?: boolean }) {
  if (text === "") {
    return (
      <p className="shared-note">
        <Icon of={Wrench} size="sm" />
        {title}
      </p>
    );
  }
  return (
    <details className="shared-tool" open={isOpen}>
      <summary>
        <Icon of={Wrench} size="sm" />
        {title}
      </summary>
      <pre tabIndex={0} role="region" aria-label={title}>
        {text}
      </pre>
    </details>
  );
}

interface FileProps {
  readonly secret: string;
  readonly messageId: number;
  readonly at: number;
  readonly name: string;
  readonly mediaType: string;
}

/** Loaded by a press, by the route of this link alone. */
function File({ secret, messageId, at, name, mediaType }: FileProps) {
  const [url, setUrl] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const [failed, setFailed] = useState(false);
  const isImage = /^image\/(png|jpeg|gif|webp)$/.test(mediaType);
  const shown = name === "" ? (isImage ? "image" : "file") : name;
  useEffect(() => () => (url === null ? undefined : URL.revokeObjectURL(url)), [url]);
  const load = async () => {
    setBusy(true);
    setFailed(false);
    try {
      const made = URL.createObjectURL(await loadFile(secret, messageId, at));
      if (isImage) {
        setUrl(made);
        return;
      }
      const link = document.createElement("a");
      link.href = made;
      link.download = shown;
      link.click();
      URL.revokeObjectURL(made);
    } catch {
      setFailed(true);
    } finally {
      setBusy(false);
    }
  };
  if (url !== null) return <img className="shared-image" src={url} alt={shown} />;
  return (
    <p className="shared-note">
      <Button size="sm" icon={isImage ? Image : Download} busy={busy} onClick={() => void load()}>
        {isImage ? `Show ${shown}` : `Download ${shown}`}
      </Button>
      {failed && <span role="alert">It could not be loaded.</span>}
    </p>
  );
}
