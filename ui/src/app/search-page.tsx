import { Search } from "lucide-react";
import { useMemo } from "react";
import { Link, useLocation, useSearch } from "wouter";
import { Button, ErrorNote, Icon, Skeleton, StatusIcon, Time } from "@/components";
import { useChatList } from "@/connection";
import { chatPath, SEARCH_PATH } from "@/platform/routes";
import { Highlighted, useSettled } from "./find-bar";
import { useProjects } from "./projects/project-queries";
import { type ListChat, shownStatus } from "./sidebar/list-chat";
import { SidebarButton } from "./top-bar";

function Hit({ chat }: { chat: ListChat }) {
  const match = chat.match ?? null;
  return (
    <li>
      <Link className="app-hit" href={chatPath(match?.chat_id ?? chat.id, match?.message_id)}>
        <StatusIcon status={shownStatus(chat)} />
        <span className="ui-strong ui-ellipsis">{chat.title}</span>
        <Time at={chat.updated_at} />
        {match !== null && (
          <p className="tone-muted">
            <Highlighted text={match.text} places={match.highlights} />
          </p>
        )}
      </Link>
    </li>
  );
}

function Hits({ words, project }: { words: string; project: string }) {
  const filters = useMemo(() => ({ q: words, ...(project === "" ? {} : { project_id: project }) }), [words, project]);
  const list = useChatList(filters);
  if (list.isLoading) return <Skeleton rows={6} label="Searching" />;
  if (list.error !== null) return <ErrorNote error={list.error} />;
  const indexing = list.isIndexing && <p className="tone-muted">Older chats are still being indexed after an upgrade and are missing here.</p>;
  if (list.chats.length === 0)
    return (
      <>
        <p className="tone-muted">Nothing found for “{words}”. Archived chats are left out.</p>
        {indexing}
      </>
    );
  return (
    <>
      {indexing}
      <ul className="app-hits">
        {list.chats.map((chat) => (
          <Hit key={chat.id} chat={chat} />
        ))}
      </ul>
      {list.hasMore && (
        <Button onClick={list.loadMore} busy={list.isLoadingMore}>
          More
        </Button>
      )}
    </>
  );
}

/** All hits of a search; the words are in the address. */
export function SearchPage() {
  const query = new URLSearchParams(useSearch());
  const words = query.get("q") ?? "";
  const project = query.get("project") ?? "";
  const projects = useProjects().data ?? [];
  const [, navigate] = useLocation();
  const settled = useSettled(words.trim(), 250);
  const go = (q: string, inProject: string) => {
    const next = new URLSearchParams({ q, ...(inProject === "" ? {} : { project: inProject }) });
    navigate(`${SEARCH_PATH}?${next}`, { replace: true });
  };
  return (
    <>
      <header className="app-bar">
        <SidebarButton />
        <h1>Search</h1>
      </header>
      <div className="app-search-page">
        <div className="ui-field">
          <Icon of={Search} className="tone-subtle" />
          <input
            type="search"
            aria-label="Words to search for"
            autoFocus
            value={words}
            onChange={(event) => go(event.target.value, project)}
            placeholder='Words, "a phrase", title:build, label:team:blue, archived:true'
          />
        </div>
        {projects.length > 0 && (
          <select className="ui-select" aria-label="Search in" value={project} onChange={(event) => go(words, event.target.value)}>
            <option value="">All my chats</option>
            {projects.map((one) => (
              <option key={one.id} value={one.id}>
                {one.name}
              </option>
            ))}
          </select>
        )}
        {settled !== "" && <Hits words={settled} project={project} />}
      </div>
    </>
  );
}
