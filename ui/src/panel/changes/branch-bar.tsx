/** The branch of the chat, what its remote lacks, and its pull request. */
import { ExternalLink, GitBranch, GitMerge, GitPullRequest, GitPullRequestClosed, GitPullRequestDraft } from "lucide-react";
import type { components } from "@/api/schema";
import { Icon, Tag } from "@/components";
import { useChatDetails } from "@/connection";

type DiffStatus = components["schemas"]["DiffStatus"];
type PullRequest = components["schemas"]["PullRequest"];

const SIGNS = { open: GitPullRequest, draft: GitPullRequestDraft, merged: GitMerge, closed: GitPullRequestClosed } as const;
const CHECKS = { none: null, pending: "checks running", passing: "checks passed", failing: "checks failed" } as const;
const TONES = { none: undefined, pending: undefined, passing: "ok", failing: "danger" } as const;

export function BranchBar({ chatId }: { chatId: string }) {
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
  const words = [
    (status.ahead ?? 0) > 0 && `${status.ahead} to push`,
    (status.behind ?? 0) > 0 && `${status.behind} behind`,
  ].filter((word) => word !== false);
  return words.length === 0 ? null : words.join(", ");
}
