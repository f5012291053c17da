/** What the turn, the chat, or the working tree has changed. */
import { useQueryClient } from "@tanstack/react-query";
import {
  ExternalLink,
  FileDiff as FileDiffIcon,
  GitBranch,
  GitMerge,
  GitPullRequest,
  GitPullRequestClosed,
  GitPullRequestDraft,
  RefreshCw,
} from "lucide-react";
import { useCallback, useState } from "react";
import { api, type ApiError } from "@/api/client";
import { queryKeys } from "@/api/queries";
import type { components } from "@/api/schema";
import { isBusy } from "@/chat-state/reducer";
import { Button, ConfirmDialog, EmptyState, ErrorNote, Icon, IconButton, PlusMinus, Segmented, Skeleton, Tag } from "@/components";
import { useChatDetails, useChatSelector } from "@/connection";
import { openPanel, type PanelOptions, usePanelRequest } from "@/platform/actions";
import { useWidth } from "@/platform/media";
import { usePreference } from "@/platform/preferences";
import { toast } from "@/platform/toasts";
import { sumCounts } from "@/text/diff";
import type { FileDiff } from "@/text/git-diff";
import { changeMark, findFile, nextScope, type RepositoryChanges, type Scope, useChanges, useViewed } from "./changes";
import { FileCard } from "./file-card";

const SCOPES = [
  { value: "turn", label: "This turn" },
  { value: "chat", label: "Chat" },
  { value: "git", label: "Git" },
] as const;
const VIEWS = [
  { value: "split", label: "Split" },
  { value: "unified", label: "Unified" },
] as const;
const SPLIT_FROM_PX = 560;
const FIRST_OPEN = 20;
const FIRST_FILES = 100;

export function ChangesTab({ chatId }: { chatId: string }) {
  const [scope, setScope] = useState<Scope>("turn");
  const [view, setView] = usePreference("diffView");
  const [ref, width] = useWidth();
  const changes = useChanges(chatId, scope);
  const isWide = width >= SPLIT_FROM_PX;
  const sums = sumCounts((changes.data ?? []).flatMap((repository) => repository.files));
  const [wanted, setWanted] = useState<string | null>(null);
  const [target, setTarget] = useState<Target | null>(null);
  const [missing, setMissing] = useState<string | null>(null);
  const ask = useCallback(({ path }: PanelOptions) => {
    setTarget(null);
    setMissing(null);
    setWanted(path ?? null);
  }, []);
  usePanelRequest("changes", ask);
  if (wanted !== null && changes.data !== undefined) {
    const found = findFile(changes.data, wanted);
    const next = nextScope(scope);
    if (found !== null) setTarget({ file: found });
    else if (next !== null) setScope(next);
    else setMissing(wanted);
    if (found !== null || next === null) setWanted(null);
  }
  const choose = (next: Scope) => {
    setScope(next);
    setTarget(null);
    setMissing(null);
  };
  return (
    <div className="changes-tab" ref={ref}>
      <div className="panel-bar">
        <Segmented label="Scope" value={scope} options={SCOPES} onChange={choose} />
        {sums.added + sums.removed > 0 && <PlusMinus {...sums} />}
        <span className="ui-grow" />
        {isWide && <Segmented label="View" value={view} options={VIEWS} onChange={setView} />}
        <IconButton icon={RefreshCw} label="Refresh" disabled={changes.isFetching} onClick={() => void changes.refetch()} />
      </div>
      <BranchBar chatId={chatId} />
      <div className="panel-scroll" tabIndex={0} role="region" aria-label="Changed files">
        {missing !== null && (
          <p className="tone-muted" role="status">
            {missing} has no changes now.
          </p>
        )}
        {changes.data === undefined ? (
          <Waiting error={changes.error} onRetry={() => void changes.refetch()} />
        ) : (
          <Files key={scope} chatId={chatId} repositories={changes.data} isSplit={isWide && view === "split"} scope={scope} target={target} onScope={choose} />
        )}
      </div>
    </div>
  );
}

function Waiting({ error, onRetry }: { error: ApiError | null; onRetry: () => void }) {
  if (error === null) return <Skeleton rows={4} />;
  if (error.code === "no_workspace" || error.code === "workspaces_off") {
    return <EmptyState icon={FileDiffIcon}>This chat has no workspace, so it has changed no files.</EmptyState>;
  }
  const isStopped = error.code === "no_agent" || error.code === "agent_refused";
  return (
    <ErrorNote
      error={error}
      action={
        <Button size="xs" onClick={isStopped ? () => openPanel("workspace") : onRetry}>
          {isStopped ? "Workspace" : "Try again"}
        </Button>
      }
    />
  );
}

interface FilesProps {
  readonly chatId: string;
  readonly repositories: readonly RepositoryChanges[];
  readonly isSplit: boolean;
  readonly scope: Scope;
  /** The file to open and scroll to. */
  readonly target: Target | null;
  readonly onScope: (scope: Scope) => void;
}

/** A new object for each wish. */
interface Target {
  readonly file: { readonly root: string; readonly path: string };
}

function Files({ chatId, repositories, isSplit, scope, target, onScope }: FilesProps) {
  const [most, setMost] = useState(FIRST_FILES);
  const [viewed, setViewed] = useViewed(chatId);
  const [reverting, setReverting] = useState<Reverting | null>(null);
  const isOwner = useChatDetails(chatId).data?.is_owner !== false;
  const listed = repositories.flatMap((repository) => repository.files.map((file) => ({ repository, file, mark: changeMark(repository.root, file) })));
  const notes = repositories.filter((repository) => repository.note !== "");
  if (listed.length === 0 && notes.length === 0) return <NoChanges scope={scope} onScope={onScope} />;
  const isTarget = (root: string, path: string) => target?.file.root === root && target.file.path === path;
  const targetAt = listed.findIndex(({ repository, file }) => isTarget(repository.root, file.path));
  const shown = listed.slice(0, Math.max(most, targetAt + 1));
  return (
    <>
      {repositories.map((repository) => (
        <div key={repository.root} className="changes-repository">
          {(repositories.length > 1 || scope === "git") && (
            <h3 className="panel-heading">
              <span className="ui-ellipsis">{repository.root}</span>
              {repository.branch !== "" && <Tag icon={GitBranch}>{repository.branch}</Tag>}
            </h3>
          )}
          {repository.note !== "" && <p className="tone-muted">{repository.note}</p>}
          {shown.map(({ repository: owner, file, mark }, index) =>
            owner === repository ? (
              <FileCard
                key={file.path}
                chatId={chatId}
                root={repository.root}
                file={file}
                isSplit={isSplit}
                isSeen={viewed.has(mark)}
                startsOpen={index < FIRST_OPEN}
                target={isTarget(repository.root, file.path) ? target : null}
                onSeen={(isSeen) => setViewed(mark, isSeen)}
                onRevert={isOwner ? () => setReverting({ root: repository.root, file }) : null}
              />
            ) : null,
          )}
        </div>
      ))}
      {reverting !== null && <RevertDialog chatId={chatId} scope={scope} reverting={reverting} onClose={() => setReverting(null)} />}
      {listed.length > shown.length && (
        <Button size="sm" variant="quiet" onClick={() => setMost(most + FIRST_FILES)}>
          Show more of {listed.length.toLocaleString("en")} files
        </Button>
      )}
    </>
  );
}

const NOTHING: Readonly<Record<Scope, string>> = {
  turn: "Nothing changed in this turn.",
  chat: "This chat has changed nothing.",
  git: "Nothing changed since the last commit.",
};

function NoChanges({ scope, onScope }: { scope: Scope; onScope: (scope: Scope) => void }) {
  const next =
    scope === "turn"
      ? { scope: "chat" as const, label: "Look at the whole chat" }
      : scope === "chat"
        ? { scope: "git" as const, label: "Look at the working tree" }
        : null;
  return (
    <EmptyState
      icon={FileDiffIcon}
      actions={
        next !== null && (
          <Button size="sm" onClick={() => onScope(next.scope)}>
            {next.label}
          </Button>
        )
      }
    >
      {NOTHING[scope]}
    </EmptyState>
  );
}

// The branch of the chat, what its remote lacks, and its pull request.

type DiffStatus = components["schemas"]["DiffStatus"];
type PullRequest = components["schemas"]["PullRequest"];

const SIGNS = { open: GitPullRequest, draft: GitPullRequestDraft, merged: GitMerge, closed: GitPullRequestClosed } as const;
const CHECKS = { none: null, pending: "checks running", passing: "checks passed", failing: "checks failed" } as const;
const TONES = { none: undefined, pending: undefined, passing: "ok", failing: "danger" } as const;

function BranchBar({ chatId }: { chatId: string }) {
  const status = useChatDetails(chatId).data?.diff_status ?? null;
  if (status === null || status.branch === "") return null;
  const commits = commitWords(status);
  return (
    <div className="changes-branch-bar">
      <Tag icon={GitBranch}>{status.branch}</Tag>
      {commits !== null && <span className="tone-muted">{commits}</span>}
      <span className="ui-grow" />
      <PullRequestLink status={status} />
    </div>
  );
}

function PullRequestLink({ status }: { status: DiffStatus }) {
  const found = status.pull_request ?? null;
  if (found !== null) {
    return (
      <a className="ui-button is-xs" href={found.url} target="_blank" rel="noreferrer" title={found.title}>
        <Icon of={SIGNS[found.state]} size="sm" /> {pullRequestWords(found)}
        {CHECKS[found.checks ?? "none"] !== null && <Tag tone={TONES[found.checks ?? "none"]}>{CHECKS[found.checks ?? "none"]}</Tag>}
      </a>
    );
  }
  const page = status.new_pull_request_url ?? null;
  if (page === null) return null;
  return (
    <a className="ui-button is-xs" href={page} target="_blank" rel="noreferrer">
      <Icon of={ExternalLink} size="sm" /> Open a pull request
    </a>
  );
}

export function pullRequestWords(found: PullRequest): string {
  return `#${found.number} ${found.state}`;
}

/** Null if nothing is known, or nothing differs. */
export function commitWords(status: Pick<DiffStatus, "ahead" | "behind">): string | null {
  const words = [(status.ahead ?? 0) > 0 && `${status.ahead} to push`, (status.behind ?? 0) > 0 && `${status.behind} behind`].filter((word) => word !== false);
  return words.length === 0 ? null : words.join(", ");
}

// Asks before a file is put back, and does it.

interface Reverting {
  readonly root: string;
  readonly file: FileDiff;
}

interface RevertDialogProps {
  readonly chatId: string;
  readonly scope: Scope;
  readonly reverting: Reverting;
  readonly onClose: () => void;
}

const BEFORE: Readonly<Record<Scope, string>> = {
  turn: "before this turn",
  chat: "before this chat changed it",
  git: "in the last commit",
};

function RevertDialog({ chatId, scope, reverting, onClose }: RevertDialogProps) {
  const client = useQueryClient();
  const busy = useChatSelector(chatId, (state) => isBusy(state.status));
  const { root, file } = reverting;
  const revert = async () => {
    const body = { scope, repo_root: root, path: file.path, ...(file.oldPath === null || file.kind !== "renamed" ? {} : { old_path: file.oldPath }) };
    await api.POST("/api/v1/chats/{chat_id}/workspace/revert", { path: { chat_id: chatId }, body });
    toast(`${file.path} is as it was ${BEFORE[scope]}.`);
    await client.invalidateQueries({ queryKey: queryKeys.anyChanges(chatId) });
  };
  return (
    <ConfirmDialog
      open
      onOpenChange={(isOpen) => {
        if (!isOpen) onClose();
      }}
      title="Revert file"
      description={revertWords(file, scope)}
      action="Revert"
      onConfirm={revert}
    >
      {busy && <p className="tone-muted">The chat runs and may change the file. Stop it first.</p>}
    </ConfirmDialog>
  );
}

export function revertWords(file: Pick<FileDiff, "path" | "kind">, scope: Scope): string {
  if (file.kind === "added") return `${file.path} was not there ${BEFORE[scope]}. It is deleted, and this cannot be undone.`;
  return `${file.path} gets the content it had ${BEFORE[scope]}. What changed since is lost, and this cannot be undone.`;
}
