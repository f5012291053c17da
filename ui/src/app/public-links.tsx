/** The public links of a chat, in its share dialog: make one, copy it once, let it show more, revoke it. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Copy, Globe, RefreshCw } from "lucide-react";
import { type SyntheticEvent, useState } from "react";
import { api } from "@/api/client";
import { queryKeys } from "@/api/queries";
import type { components } from "@/api/schema";
import { Button, ErrorNote, Field, Icon, IconButton, Time } from "@/components";
import { copyText } from "@/platform/plain-http";
import { fullText } from "@/platform/words";
import { toast } from "@/platform/toasts";

type PublicLink = components["schemas"]["PublicLinkReply"];

const DAYS = [1, 7, 30, 90, 365];
const DEFAULT_DAYS = 7;
const daysText = (days: number): string => (days === 1 ? "After a day" : days === 365 ? "After a year" : `After ${days} days`);

export function PublicLinks({ chatId }: { chatId: string }) {
  const client = useQueryClient();
  const key = queryKeys.publicLinks(chatId);
  const links = useQuery({
    queryKey: key,
    queryFn: ({ signal }) => api.GET("/api/v1/chats/{chat_id}/public-links", { path: { chat_id: chatId }, signal }),
  });
  const [making, setMaking] = useState(false);
  const [made, setMade] = useState<string | null>(null);
  const [busyId, setBusyId] = useState<string | null>(null);
  const [error, setError] = useState<unknown>(null);
  const found = links.data;
  if (found === undefined || (!found.enabled && found.items.length === 0)) return null;

  const attempt = async (id: string, work: () => Promise<unknown>) => {
    setBusyId(id);
    setError(null);
    try {
      await work();
    } catch (caught) {
      setError(caught);
    } finally {
      setBusyId(null);
      void client.invalidateQueries({ queryKey: key });
    }
  };
  const path = (link: PublicLink) => ({ path: { public_link_id: link.id } });
  const update = (link: PublicLink) => attempt(link.id, () => api.POST("/api/v1/public-links/{public_link_id}/update", path(link)));
  const revoke = (link: PublicLink) => attempt(link.id, () => api.DELETE("/api/v1/public-links/{public_link_id}", path(link)));
  const create = (body: components["schemas"]["PublicLinkBody"]) =>
    attempt("new", async () => {
      const link = await api.POST("/api/v1/chats/{chat_id}/public-links", { path: { chat_id: chatId }, body });
      setMade(new URL(link.path, window.location.href).href);
      setMaking(false);
    });

  return (
    <section className="app-links" aria-label="Public links">
      <h3 className="ui-strong">Public links</h3>
      <p className="tone-muted">Everyone who has the link reads the chat as it is now, without an account, until the link ends.</p>
      {made !== null && <NewLink url={made} />}
      {found.items.length > 0 && (
        <ul className="app-readers" aria-label="Public links">
          {found.items.map((link) => (
            <LinkRow key={link.id} link={link} busy={busyId === link.id} onUpdate={() => void update(link)} onRevoke={() => void revoke(link)} />
          ))}
        </ul>
      )}
      {error !== null && <ErrorNote error={error} />}
      {making ? (
        <NewLinkForm maxDays={found.max_days} busy={busyId === "new"} onCancel={() => setMaking(false)} onCreate={(body) => void create(body)} />
      ) : (
        found.enabled && (
          <div>
            <Button icon={Globe} onClick={() => setMaking(true)}>
              Make a public link
            </Button>
          </div>
        )
      )}
    </section>
  );
}

function NewLink({ url }: { url: string }) {
  const copy = async () => {
    toast((await copyText(url)) ? "Link copied" : "The browser did not allow copying. Select the text and copy it.");
  };
  return (
    <div className="app-links-new" role="status">
      <p className="ui-strong">Copy the link now. It is not shown again.</p>
      <div>
        <code className="ui-grow">{url}</code>
        <IconButton icon={Copy} label="Copy the public link" onClick={() => void copy()} />
      </div>
    </div>
  );
}

interface RowProps {
  link: PublicLink;
  busy: boolean;
  onUpdate: () => void;
  onRevoke: () => void;
}

const shownText = (link: Pick<PublicLink, "with_tools" | "with_files">): string =>
  ["Texts", ...(link.with_tools ? ["tools"] : []), ...(link.with_files ? ["files"] : [])].join(", ");

function LinkRow({ link, busy, onUpdate, onRevoke }: RowProps) {
  const name = `the link of ${fullText(new Date(link.created_at))}`;
  return (
    <li>
      <Icon of={Globe} className="tone-muted" />
      <span className="ui-grow">
        {shownText(link)}
        <span className="tone-subtle app-links-times">
          Made <Time at={link.created_at} /> · ends {new Date(link.expires_at).toLocaleDateString()} ·{" "}
          {link.last_read_at === null ? "not opened yet" : <>opened {<Time at={link.last_read_at} />}</>}
        </span>
      </span>
      {link.has_newer && (
        <Button size="xs" icon={RefreshCw} busy={busy} onClick={onUpdate} aria-label={`Update ${name}`} title="Show what the chat has now">
          Update
        </Button>
      )}
      <Button size="xs" busy={busy} onClick={onRevoke} aria-label={`Revoke ${name}`}>
        Revoke
      </Button>
    </li>
  );
}

interface FormProps {
  maxDays: number;
  busy: boolean;
  onCancel: () => void;
  onCreate: (body: components["schemas"]["PublicLinkBody"]) => void;
}

function NewLinkForm({ maxDays, busy, onCancel, onCreate }: FormProps) {
  const choices = [...DAYS.filter((days) => days < maxDays), maxDays];
  const [days, setDays] = useState(Math.min(DEFAULT_DAYS, maxDays));
  const [withTools, setWithTools] = useState(false);
  const [withFiles, setWithFiles] = useState(false);
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    onCreate({ days, with_tools: withTools, with_files: withFiles });
  };
  return (
    <form className="app-links-form" onSubmit={submit}>
      <Field label="Ends">
        {(names) => (
          <select {...names} className="ui-select" value={days} onChange={(event) => setDays(Number(event.target.value))}>
            {choices.map((one) => (
              <option key={one} value={one}>
                {daysText(one)}
              </option>
            ))}
          </select>
        )}
      </Field>
      <label>
        <input type="checkbox" checked={withTools} onChange={(event) => setWithTools(event.target.checked)} />
        <span>
          Show tools <span className="tone-subtle">What they were asked to do, and their output</span>
        </span>
      </label>
      <label>
        <input type="checkbox" checked={withFiles} onChange={(event) => setWithFiles(event.target.checked)} />
        <span>
          Show files <span className="tone-subtle">Images and attachments of the messages</span>
        </span>
      </label>
      <footer className="ui-actions">
        <Button onClick={onCancel}>Cancel</Button>
        <Button type="submit" variant="primary" busy={busy}>
          Make the link
        </Button>
      </footer>
    </form>
  );
}
