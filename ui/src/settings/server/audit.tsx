/** The audit log: who did what, newest first. */
import { useInfiniteQuery } from "@tanstack/react-query";
import { useState } from "react";
import { api } from "@/api/client";
import type { components } from "@/api/schema";
import { Button, EmptyState, ErrorNote, Skeleton, Tag, TextField, Time } from "@/components";
import { Section, SettingsPage, Table } from "../frame";
import { labelOf } from "../form/json-schema";

type Entry = components["schemas"]["AuditEntryReply"];

const KINDS = ["", "chat", "user", "group", "credential", "provider", "model", "settings", "spend_limit", "file"];

export function AuditPage() {
  const [kind, setKind] = useState("");
  const [object, setObject] = useState("");
  const log = useInfiniteQuery({
    queryKey: ["settings", "audit", kind, object],
    initialPageParam: null as string | null,
    queryFn: ({ pageParam }) =>
      api.GET("/api/v1/audit", {
        query: { limit: 100, cursor: pageParam ?? undefined, object_type: kind || undefined, object_id: object.trim() || undefined },
      }),
    getNextPageParam: (page) => page.next_cursor,
  });
  const entries = log.data?.pages.flatMap((page) => page.items) ?? [];
  const filters = (
    <>
      <select className="select" aria-label="Kind of object" value={kind} onChange={(event) => setKind(event.target.value)}>
        {KINDS.map((one) => <option key={one} value={one}>{one === "" ? "Everything" : labelOf(one)}</option>)}
      </select>
    </>
  );
  return (
    <SettingsPage title="Audit log" lead="Changes by users and administrators, sign-ins, and reads of other users' chats by administrators and viewers.">
      <Section title="Entries" end={filters}>
        <div className="mb-3 max-w-md"><TextField label="Object" aside="optional" placeholder="The id of a chat, a user, a provider" value={object} onChange={(event) => setObject(event.target.value)} /></div>
        {log.error !== null && <ErrorNote error={log.error} action={<Button size="sm" onClick={() => void log.refetch()}>Try again</Button>} />}
        {log.isPending && <Skeleton rows={5} />}
        {!log.isPending && log.error === null && entries.length === 0 && <EmptyState>No entries for these filters.</EmptyState>}
        {entries.length > 0 && (
          <Table label="Audit log" heads={["When", "Who", "What", "Object", "Outcome"]}>
            {entries.map((entry) => <EntryRow key={entry.id} entry={entry} />)}
          </Table>
        )}
        {log.hasNextPage && <Button className="mt-3" busy={log.isFetchingNextPage} onClick={() => void log.fetchNextPage()}>Older entries</Button>}
      </Section>
    </SettingsPage>
  );
}

function EntryRow({ entry }: { entry: Entry }) {
  const detail = entry.detail === null ? "" : JSON.stringify(entry.detail);
  return (
    <tr>
      <td><Time at={entry.at} /></td>
      <td>{entry.actor}<p>{entry.ip ?? ""}</p></td>
      <td><code>{entry.action}</code>{detail !== "" && <p className="break-all">{detail}</p>}</td>
      <td className="m">{entry.object_type}<p><code>{entry.object_id}</code></p></td>
      <td>{entry.outcome === "done" ? "done" : <Tag tone={entry.outcome === "refused" ? "warn" : "danger"}>{entry.outcome}</Tag>}</td>
    </tr>
  );
}
